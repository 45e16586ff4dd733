"""Damaging files of a store."""

from pathlib import Path


def replace_with(file: Path, body: bytes) -> None:
    """Put other bytes in the place of a file.

    Never write to a file of an index in place: some process may still map it, this one too, and to
    cut a mapped file short ends that process with SIGBUS.
    """
    other = file.with_name(f"{file.name}.damaged")
    other.write_bytes(body)
    other.replace(file)
