"""Coding assistants: import and capture their histories, answer their hooks, and serve recall over
MCP.
"""
