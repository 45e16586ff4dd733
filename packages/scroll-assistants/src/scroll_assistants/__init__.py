"""Doors: how other software reaches a session.

Each module needs the library that it is named after, an extra.
"""
