"""The importer that `scroll import` finds through the entry point `scroll_context.importers`."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scroll_assistants.importers import formats
from scroll_assistants.importers.capture import capture_all, installed
from scroll_assistants.importers.chats import slack_root
from scroll_assistants.importers.records import Format
from scroll_assistants.importers.saved_outputs import FOLDER
from scroll_assistants.importers.shapes import common_shape
from scroll_context.events import Progress
from scroll_context.importing.layouts import InstalledHistory, Layout, Sample
from scroll_context.importing.records import ImportReport
from scroll_context.store import Store


class AssistantImporter:
    """Imports histories of assistants, and the other formats of formats.py."""

    layouts = tuple(formats.LAYOUTS.values())

    def recognise(self, sample: Sample) -> Layout | None:
        return formats.recognise(sample)

    def recognise_folder(self, folder: Path) -> tuple[Path, Layout] | None:
        root = slack_root(folder)
        return (root, formats.LAYOUTS[Format.SLACK]) if root else None

    def is_attachment(self, folder: Path, file: Path) -> bool:
        """Whether a file is a saved output of a Claude Code session whose transcript is there."""
        for parent in file.parents:
            transcript = (folder / parent.parent).with_suffix(".jsonl")
            if parent.name == FOLDER and transcript.is_file():
                return True
        return False

    def common_shape(self, value: Any) -> tuple[Any, str] | None:
        return common_shape(value)

    def installed(self) -> list[InstalledHistory]:
        return installed()

    def capture_all(
        self,
        store: Store,
        files: Iterable[str],
        *,
        redact: bool,
        wait: float,
        progress: Progress | None,
        on_report: Callable[[ImportReport], None],
    ) -> None:
        capture_all(store, files, redact=redact, wait=wait, progress=progress, on_report=on_report)


importer = AssistantImporter()
