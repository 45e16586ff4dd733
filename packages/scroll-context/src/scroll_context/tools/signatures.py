"""Signatures and docstrings of tools, written out for a model."""

import builtins
import enum
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

RESERVED = frozenset({"ms", "ask", "ask_many", "map_calls", "ToolFailed"}) | frozenset(
    dir(builtins)
)
DOC_LINES = 8
DOC_CHARS = 600
# Characters of a description on one line.
LINE_CHARS = 160
DEFAULT_CHARS = 80
_INDENT = "    "


def type_text(annotation: Any) -> str:
    """An annotation as source text."""
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is ...:
        return "..."
    if hasattr(annotation, "__value__"):
        # It was written as `type X = ...`.
        return type_text(annotation.__value__)
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_text(parts[0])
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, parts))}]"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(type_text(part) for part in parts)
    if origin in (typing.Required, typing.NotRequired):
        return type_text(parts[0])
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return f"Literal[{', '.join(repr(member.value) for member in annotation)}]"
    name = getattr(origin or annotation, "__name__", None)
    name = name or str(annotation).removeprefix("typing.")
    if not parts:
        return str(name)
    return f"{name}[{', '.join(type_text(part) for part in parts)}]"


def signature_text(name: str, signature: inspect.Signature) -> str:
    """`name(a: int, b: str = 'x') -> list[dict]`.

    A default of `...` means that the argument may be left out.
    """
    parts = []
    keywords = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            parts.append("*")
            keywords = True
        part = f"{parameter.name}: {type_text(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            part += f" = {_default_text(parameter.default)}"
        parts.append(part)
    returns = signature.return_annotation
    arrow = "" if returns is signature.empty else f" -> {type_text(returns)}"
    return f"{name}({', '.join(parts)}){arrow}"


def stub_text(signature: str, doc: str, shapes: Iterable[str], remarks: Iterable[str]) -> str:
    """A tool as the prompt shows it: a function without a body."""
    lines = [f"# {shape}" for shape in shapes]
    lines.append(f"def {signature}:")
    lines += [f"{_INDENT}# {remark}" for remark in remarks]
    brief = brief_doc(doc).replace('"""', "'''")
    body = f'"""{brief}"""' if brief else "..."
    lines += [f"{_INDENT}{line}".rstrip() for line in body.split("\n")]
    return "\n".join(lines)


def brief_doc(doc: str, lines: int = DOC_LINES, chars: int = DOC_CHARS) -> str:
    """The beginning of a docstring; an ellipsis says that there is more."""
    beginning = "\n".join(doc.split("\n")[:lines])[:chars].rstrip()
    return beginning if beginning == doc.rstrip() else f"{beginning} …"


def one_line(doc: str) -> str:
    """The first sentence of a docstring; an ellipsis says that there is more."""
    paragraph = " ".join(doc.partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?]) ", paragraph, maxsplit=1)[0]
    line = sentence if len(sentence) <= LINE_CHARS else sentence[:LINE_CHARS].rstrip()
    return line if line == " ".join(doc.split()) else f"{line} …"


def shapes(annotations: Iterable[Any], required: dict[str, list[str]]) -> list[str]:
    """The fields of every class among the annotations, one line a class; `?` marks what may be left
    out.
    """
    return [_shape(cls, required.get(cls.__name__)) for cls in _classes(annotations, [])]


def _shape(cls: type, required: list[str] | None) -> str:
    fields = typing.get_type_hints(cls, include_extras=True)
    if issubclass(cls, tuple):
        items = [f"{name}: {type_text(kind)}" for name, kind in fields.items()]
        return f"{cls.__name__}: [{', '.join(items)}]"
    items = []
    for name, kind in fields.items():
        if name.startswith("_") or typing.get_origin(kind) is typing.ClassVar:
            continue
        optional = "" if required is None or name in required else "?"
        items.append(f"{name}{optional}: {type_text(kind)}")
    return f"{cls.__name__}: {{{', '.join(items)}}}"


def _classes(annotations: Iterable[Any], seen: list[type]) -> list[type]:
    """The classes with fields that the annotations mention, directly or through each other's
    fields.
    """
    for annotation in annotations:
        for part in _parts(annotation):
            if part not in seen and _has_fields(part):
                seen.append(part)
                _classes(typing.get_type_hints(part, include_extras=True).values(), seen)
    return seen


def _parts(annotation: Any) -> Iterator[Any]:
    if hasattr(annotation, "__value__"):
        annotation = annotation.__value__
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    yield typing.get_origin(annotation) or annotation
    if typing.get_origin(annotation) is not typing.Literal:
        for part in typing.get_args(annotation):
            yield from _parts(part)


def _has_fields(annotation: Any) -> bool:
    if not isinstance(annotation, type):
        return False
    marks = (
        "__dataclass_fields__",
        "__struct_fields__",
        "__attrs_attrs__",
        "model_fields",
        "__total__",
        "_fields",
    )
    return any(hasattr(annotation, mark) for mark in marks)


def _default_text(default: Any) -> str:
    if default is ...:
        return "..."
    try:
        text = repr(msgspec.to_builtins(default))
    except TypeError:
        text = repr(default)
    return text if len(text) <= DEFAULT_CHARS else "..."
