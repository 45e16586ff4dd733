"""The exit statuses of `scroll`. Status 0 means done, 1 an error, and 2 a usage error."""

STOPPED_BY_LIMIT = 3
INTERRUPTED = 130
TERMINATED = 143
