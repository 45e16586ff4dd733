"""Tools inside the kernel: each is a function of its own name, those of an MCP server in a namespace of its name.

This file is not imported by the host: its source runs inside the jail, where `call` reaches the host and `TOOLS`
maps each tool's name to its signature and description.
"""

import types as _types
from collections.abc import Callable
from typing import Any

call: Callable[..., Any]  # put here by the kernel
TOOLS: dict[str, tuple[str, str]]  # put here by the host


class ToolFailed(Exception):
    """A tool did not give a result; the text is the tool's own."""


def _function(name: str, header: str, doc: str) -> Callable[..., Any]:
    def tool(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = call(f"tools.{name}", *args, **kwargs)
        except Exception as error:
            kind, _, text = str(error).partition(": ")
            if kind != "ToolFailed":
                raise
            raise ToolFailed(text) from None
        if "handle" in answer:
            import handles

            return handles.handle(answer["handle"])
        return answer["value"]

    tool.__name__ = tool.__qualname__ = name.rpartition(".")[2]
    tool.__doc__ = f"{header}\n\n{doc}"
    return tool


def _mount() -> None:
    for name, (header, doc) in TOOLS.items():
        space, dot, own = name.partition(".")
        if dot:
            globals().setdefault(space, _types.SimpleNamespace())
            setattr(globals()[space], own, _function(name, header, doc))
        else:
            globals()[name] = _function(name, header, doc)


_mount()
