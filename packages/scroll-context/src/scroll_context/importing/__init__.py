"""Files of messages, and exports of Scroll, into a store.

    from scroll_context import import_file

    report = import_file(store, "chat.jsonl", agent_id="helper")

`sources` finds the files that a path stands for, `layouts` recognises how each is laid out and has
the table of layouts, `text_files` reads lines and JSON, `messages` turns a message into drafts,
`records` has the values that pass between them, `recorded` knows what the store has already and
which session a file adds to, and `run` appends. Installed packages add layouts, and other shapes of
messages, through the entry-point group `scroll_context.importers`.
"""
