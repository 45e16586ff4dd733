"""One attack: a Python program that leaves a true value in `evidence` when it got through.

It runs with the names of `attack_names.prelude`: `T` (the world it is aimed at), `call` (a system
call by name), `ctypes`, `os` and so on; and `hold`, to wait for what the jail does about it. An
OSError, a MemoryError, "can't start new thread" or a false `evidence` is a refusal; being killed is
one too; any other exception is a fault of the attack and fails its test.
"""

from __future__ import annotations

from typing import NamedTuple


class Attack(NamedTuple):
    name: str
    source: str
    needs_root: bool = False
    only_on: str = ""  # an architecture
    metadata: bool = False  # expected to get through in tier kernel-only
    keeps_terminal: bool = False  # the terminal's descriptor is kept on purpose


def attacks(sources: dict[str, str], **facts: bool) -> list[Attack]:
    return [Attack(name, source, **facts) for name, source in sources.items()]
