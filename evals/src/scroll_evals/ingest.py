"""Ingesting a history: its turns are appended in order, exactly as they are, without any model.

Every turn carries a source key, so ingesting again (after a crash, or by a second process) adds only what is missing,
and a store that holds a history can be shared by everything that asks about it. What a question's view starts with is
not decided here: see carry.py.
"""

from scroll_context.store.store import Store
from scroll_evals.tasks import History


def ingest(history: History, store: Store) -> int:
    """Append a history, whole or not at all, and make it searchable; the number of its turns."""
    turns = store.log.append_many(history.drafts())
    store.index.catch_up()
    return len(turns)
