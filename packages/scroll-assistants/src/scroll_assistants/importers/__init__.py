"""Files of other systems, and exports of Scroll, into a store.

    from scroll_assistants.importers import capture
    from scroll_assistants.importers import import_file

    report = import_file(store, "chat.jsonl", agent_id="helper")

    capture(store, transcript)  # what a transcript has had added since the last time

`sources` finds the files that a path stands for, `formats` names the format of each and holds the
table of readers (`transcripts`, `databases`, `chats`, `text_files`), `records` has the values that
these give, `messages` turns a message of any shape into drafts, `run` appends them, and `capture`
follows histories that grow.
"""

from scroll_assistants.importers.capture import capture
from scroll_assistants.importers.records import Fault, Format
from scroll_assistants.importers.run import ImportFile, ImportOptions, ImportReport, import_file

__all__ = [
    "Fault",
    "Format",
    "ImportFile",
    "ImportOptions",
    "ImportReport",
    "capture",
    "import_file",
]
