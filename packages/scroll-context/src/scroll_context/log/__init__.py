"""The durable half of Scroll: log, payloads, search. Never imports kernel or view."""
