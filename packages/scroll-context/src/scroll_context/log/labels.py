"""The fields of an event that filters compare with texts, and that the search index keeps as they
are.
"""

LABELS = ("session_id", "agent_id", "task_id", "kind", "role")
"""The filters that compare a field of an event with one text or several."""
