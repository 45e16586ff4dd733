"""The session: its lifetimes, its journal and view, and the turn that an agent or another framework
drives.
"""
