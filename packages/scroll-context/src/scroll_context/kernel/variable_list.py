"""The variable list: the lines at the end of a request that describe the variables of a kernel.

Modules, None, empty values, loop variables and names that begin with an underscore are not listed:
they did not help a model and took a third of the list.
"""

from collections.abc import Iterable, Sequence
from math import log2

from scroll_context.kernel.results import Variable

# A larger value is listed even if a loop bound it.
_LOOP_BYTES = 64 << 10
_FUNCTIONS_CHARS = 600
# Descriptions of values without content.
_EMPTY = frozenset({"0", "0 bytes"})
_EMPTY_TEXT = frozenset({"''"})


def variable_list(
    variables: Iterable[tuple[Variable, bool]], limit: int, heading: str = ""
) -> tuple[str, tuple[str, ...]]:
    """The list in about `limit` characters, and the names in it: data by use and size, then
    functions.

    Each variable comes with whether a loop bound it.
    """
    data: list[Variable] = []
    callables: list[Variable] = []
    for variable, is_by_loop in variables:
        if variable.type in ("function", "class"):
            callables.append(variable)
        elif variable.type != "module" and not _is_leftover(variable, is_by_loop):
            data.append(variable)
    data.sort(key=_rank)
    callables.sort(key=lambda variable: (-variable.used, variable.name))
    lines = [heading] if heading else []
    functions = _functions_line(callables, min(_FUNCTIONS_CHARS, limit // 3))
    room = limit - sum(len(line) + 1 for line in (*lines, functions) if line)
    names: list[str] = []
    for position, variable in enumerate(data):
        line = describe_line(variable)
        left = len(data) - position
        reserved = 0 if left == 1 else len(_rest(left))
        if len(line) + 1 > room - reserved:
            lines.append(_rest(left))
            break
        lines.append(line)
        names.append(variable.name)
        room -= len(line) + 1
    if functions:
        lines.append(functions)
    return "\n".join(lines), tuple(names)


def _rank(variable: Variable) -> tuple[float, int, str]:
    """The order of the variable list: recent and large values first."""
    weight = variable.used + log2(variable.size + 1) / 2
    return -weight, -variable.cell, variable.name


def _is_leftover(variable: Variable, is_by_loop: bool) -> bool:
    """Whether a variable is not a result that a later cell would use."""
    if variable.name.startswith("_") or variable.type == "NoneType":
        return True
    if variable.detail in (_EMPTY_TEXT if variable.inline else _EMPTY):
        return True
    return is_by_loop and variable.size <= _LOOP_BYTES


def describe_line(variable: Variable) -> str:
    """A variable in one line of plain text."""
    is_type_name = all(map(str.isidentifier, variable.type.split(".")))
    text = f"{variable.name}: {variable.type if is_type_name else '?'}"
    if variable.detail:
        text += f" = {variable.detail}" if variable.inline else f" {variable.detail}"
    if variable.size >= 1 << 20 and not variable.inline:
        text += f", {variable.size / (1 << 20):,.1f} MB"
    if not text.isprintable():
        # A worker in the hands of its cell may claim anything.
        text = "".join(character if character.isprintable() else "?" for character in text)
    return text


def _functions_line(callables: Sequence[Variable], limit: int) -> str:
    text = ""
    for position, variable in enumerate(callables):
        label = f"class {variable.name}"
        if variable.type == "function":
            label = f"{variable.name}{variable.detail}"
        if not label.isprintable():
            label = variable.name
        left = len(callables) - position
        if len(text) + len(label) > limit:
            return f"{text} and {left} more" if text else f"functions: {left}"
        text += f", {label}" if text else f"functions: {label}"
    return text


def _rest(count: int) -> str:
    return f"... and {count} more variable{'s' if count > 1 else ''}"
