"""A gateway between programs and model providers that keeps conversations within a window.

`wrap` does the same inside a program, for one client of the OpenAI or Anthropic SDK. It is loaded
when it is first used, like the names of `scroll_context`.
"""

from typing import TYPE_CHECKING

from scroll_context.plugins import lazy_names

PUBLIC = {"sdk_client": ("wrap",)}
"""The public names by the module of `scroll_gateway` that defines them."""

__all__, _load = lazy_names(__name__, PUBLIC)

if TYPE_CHECKING:
    # Type checkers cannot read the table. A test compares these lines with it.
    from scroll_gateway.sdk_client import wrap as wrap
else:
    # Type checkers must not see this function: they would accept any name.
    __getattr__ = _load


def __dir__() -> list[str]:
    return list(__all__)
