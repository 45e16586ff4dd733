"""A gateway between programs and their model providers, which keeps conversations within a window."""
