"""The command `scroll`.

Nothing heavy is imported before a command runs: `scroll --help` must be instant.
"""
