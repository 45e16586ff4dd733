"""Ingesting a history: its turns are appended session by session, exactly as they are, without any model.

Every turn carries a source key, so ingesting again (after a crash, or by a second process) adds only what is missing,
and a store that holds a history can be shared by everything that asks about it. What a question's view starts with is
not decided here: see carry.py.
"""

from itertools import groupby

from scroll_context.evals.tasks import History
from scroll_context.store.store import Store


def ingest(history: History, store: Store) -> int:
    """Append a history and make it searchable; the number of its turns. One commit a session."""
    turns = 0
    for _, session in groupby(history.drafts(), key=lambda draft: draft.session_id):
        turns += len(store.log.append_many(session))
    store.index.catch_up()
    return turns
