"""Files of other systems, and exports of Scroll, into a store.

    from scroll_context.importers import import_file

    report = import_file(store, "chat.jsonl", agent_id="helper")

`fields` and `messages` turn one message into drafts, `formats` finds the messages in a file, and `run` appends them.
"""

from scroll_context.importers.messages import Fault, Format
from scroll_context.importers.run import ImportFile, ImportOptions, ImportReport, import_file

__all__ = ["Fault", "Format", "ImportFile", "ImportOptions", "ImportReport", "import_file"]
