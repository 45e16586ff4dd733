"""Histories of assistants and other formats, into a store.

    from scroll_assistants.importers import capture

    capture(store, transcript)  # what a transcript has had added since the last time

`importer` is what the core's import finds, `formats` has the table of layouts and recognises them,
`transcripts`, `claude_code`, `databases` and `chats` read them, and `capture` follows histories
that grow.
"""

from scroll_assistants.importers.capture import capture

__all__ = ["capture"]
