"""The folder of a search index, opened for reading: which files the engine may open, and up to
where the log was read into it.

The indexer builds on this, and so does a prompt hook, for which an assistant waits: it cannot
afford the imports of the log. So this module imports next to nothing.
"""

import json
import os
import re

import tantivy

from scroll_context.errors import IndexUnavailable
from scroll_context.log.ownership import is_own, open_folder
from scroll_context.search import tokenize
from scroll_context.search.tokenize import SCHEMA

Folder = str | os.PathLike[str]

_ENGINE_FILE = re.compile(r"[0-9a-f]{32}\.[a-z0-9.]+|meta\.json")


def version_folder(root: Folder) -> str:
    """The folder of this version's index below the index folder of a store."""
    return os.path.join(root, f"v{tokenize.VERSION}")


def open_engine(folder: Folder) -> tantivy.Index:
    """The index in a folder, which is created if there is none."""
    index = tantivy.Index(SCHEMA, os.fspath(folder))
    index.config_reader("manual")
    tokenize.register(index)
    return index


def check_files(folder: Folder) -> None:
    """Refuse an index with files that the engine must not open, follow or remove. It is built
    again then.

    The engine opens files by name, so a link would lead it out of the folder. It also removes
    every file that `.managed.json` lists and no segment needs: an absolute path there was
    removed wherever it was.
    """
    with open_folder(folder) as opened, opened.entries() as entries:
        are_plain = all(_is_plain(entry) for entry in entries)
    if not are_plain or not all(map(_is_engine_file, _managed(folder))):
        raise IndexUnavailable(
            "the search index has files that Scroll did not make. The log is not affected."
        )


def watermark(searcher: tantivy.Searcher) -> tuple[int, bytes]:
    """The seq up to which the log was read, and the chain value there."""
    query = tantivy.Query.term_query(SCHEMA, "mark", "last", "basic")
    hits = searcher.search(query, 1, count=False, order_by_field="upto").hits
    if not hits:
        return 0, b""
    upto, address = hits[0]
    return int(upto), bytes(searcher.doc(address)["chain"][0])


def _is_plain(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_file(follow_symlinks=False) and is_own(entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        # Another process has just removed it.
        return True


def _is_engine_file(name: object) -> bool:
    return isinstance(name, str) and _ENGINE_FILE.fullmatch(name) is not None


def _managed(folder: Folder) -> list[object]:
    """The files that the engine believes to be its own."""
    path = os.path.join(folder, ".managed.json")
    try:
        with open(path, "rb") as file:
            names = json.load(file)
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError) as error:
        raise IndexUnavailable(f"{path} cannot be read: {error}") from error
    if not isinstance(names, list):
        raise IndexUnavailable(f"{path} cannot be read: it is not a list of files")
    return names
