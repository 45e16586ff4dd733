"""A gateway between programs and model providers that keeps conversations within a window."""
