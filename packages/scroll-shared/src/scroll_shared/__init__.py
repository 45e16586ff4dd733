"""A store that many hosts share: the log on a Postgres server, a replica on each host."""
