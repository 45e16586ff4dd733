"""The source that runs inside the kernel before the first cell, and binds `ms`, the tools and their handles."""

from importlib import resources

from scroll_context.kernel.messages import Prelude
from scroll_context.surface.toolbox import Toolbox


def handles_prelude() -> Prelude:
    return Prelude("handles", _source("handles_prelude"))


def memory_prelude() -> Prelude:
    return Prelude("ms", _source("ms_prelude"), ("ms",))


def tools_prelude(toolbox: Toolbox) -> Prelude:
    """Functions for the tools, and `ToolFailed` to catch."""
    table = {name: (one.header, one.doc) for name, one in sorted(toolbox.tools.items())}
    names = sorted({name.partition(".")[0] for name in table})
    return Prelude("tools", f"TOOLS = {table!r}\n" + _source("tools_prelude"), (*names, "ToolFailed"))


def _source(name: str) -> str:
    return resources.files("scroll_context.surface").joinpath(f"{name}.py").read_text("utf-8")
