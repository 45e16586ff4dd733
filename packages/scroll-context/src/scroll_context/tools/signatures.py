"""Signatures of tools: written out for a model, and made of the JSON schemas of a server.

A tool that is a Python function has a signature, from which the text in the prompt is made here. A
tool of an MCP server has JSON schemas instead: they are followed as far as a signature can show
them; what they say beyond that (patterns, ranges, nested objects) is the server's to check.
"""

import builtins
import enum
import hashlib
import inspect
import keyword
import re
import types
import typing
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Literal, Union

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


# from JSON schemas --------------------------------------------------------------------------------

_WRAPPERS = {"result", "content", "root"}
# Characters of a description, which a server may make as long as it likes.
DESCRIPTION_CHARS = 20_000
# Characters of a Python name that is made from a foreign one; a number may be added.
SPELT_CHARS = 56
_SCALARS = {
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
    "null": None,
    "object": dict[str, Any],
}


def identifier(name: str, taken: Collection[str] = (), limit: int = SPELT_CHARS) -> str:
    """A Python name like `name` that hides nothing and is not taken."""
    word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "tool"
    word = f"_{word}" if word[0].isdigit() else word
    if len(word) > limit:
        word = f"{word[: limit - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    if keyword.iskeyword(word):
        word += "_"
    free, count = word, 1
    while free in taken:
        count += 1
        free = f"{word}_{count}"
    return free


def namespace_name(name: str) -> str:
    """A name for a server, which stands in the namespace of the cells."""
    return identifier(name, taken=RESERVED, limit=24)


def signature_of(
    schema: dict[str, Any], returned: dict[str, Any] | None
) -> tuple[inspect.Signature, dict[str, str]]:
    """The signature that a tool's schemas describe, and the names of arguments that had to be
    changed for Python.
    """
    properties, demanded = _properties(schema), schema.get("required")
    required = [name for name in properties if isinstance(demanded, list) and name in demanded]
    aliases: dict[str, str] = {}
    parameters: list[inspect.Parameter] = []
    for name in [*required, *(name for name in properties if name not in required)]:
        spelt = identifier(name, taken=[parameter.name for parameter in parameters])
        if spelt != name:
            aliases[name] = spelt
        default = inspect.Parameter.empty
        if name not in required:
            default = properties[name].get("default", ...)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        annotation = annotation_of(properties[name], _defined(schema))
        parameters.append(inspect.Parameter(spelt, kind, default=default, annotation=annotation))
    result: Any = Any
    if returned is not None:
        wrapper = wrapper_of(returned)
        unwrapped_schema = _properties(returned)[wrapper] if wrapper else returned
        result = annotation_of(unwrapped_schema, _defined(returned))
    return inspect.Signature(parameters, return_annotation=result), aliases


def annotation_of(schema: dict[str, Any], defined: dict[str, Any], depth: int = 0) -> Any:
    """The Python type nearest to a schema; Any where there is none that can be checked."""
    if depth > 8:
        # The schema probably refers to itself.
        return Any
    ref = schema.get("$ref")
    if isinstance(ref, str):
        target = defined.get(ref.removeprefix("#/$defs/"))
        return annotation_of(target, defined, depth + 1) if isinstance(target, dict) else Any
    annotation: Any
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    kinds = schema.get("type")
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(choices, list) and choices:
        is_literal = all(type(choice) in (str, int) for choice in choices)
        annotation = Literal[tuple(choices)] if is_literal else Any
    elif isinstance(options, list):
        annotation = _union(
            annotation_of(option, defined, depth + 1)
            for option in options
            if isinstance(option, dict)
        )
    elif isinstance(kinds, list):
        annotation = _union(
            annotation_of({**schema, "type": kind}, defined, depth + 1) for kind in kinds
        )
    elif kinds == "array":
        items = schema.get("items")
        inner = annotation_of(items, defined, depth + 1) if isinstance(items, dict) else Any
        annotation = types.GenericAlias(list, (inner,))
    else:
        annotation = _SCALARS.get(kinds, Any) if isinstance(kinds, str) else Any
    try:
        msgspec.json.Decoder(annotation)
    except TypeError:
        # It is a union whose members msgspec cannot tell apart.
        return Any
    return annotation


def doc_of(description: str | None, schema: dict[str, Any]) -> str:
    """The description, and what the schema says of each argument."""
    notes = [
        f"{name}: {' '.join(part['description'].split())}"
        for name, part in _properties(schema).items()
        if isinstance(part.get("description"), str)
    ]
    doc = "\n".join([*inspect.cleandoc(description or "").split("\n"), *notes]).strip()
    return doc if len(doc) <= DESCRIPTION_CHARS else f"{doc[:DESCRIPTION_CHARS]} …"


def wrapper_of(returned: dict[str, Any]) -> str:
    """The one field of a schema that only wraps a value; "" when it does not.

    Older versions of the protocol allow only objects as results, so servers wrap what is none.
    """
    names = list(_properties(returned))
    return names[0] if len(names) == 1 and names[0] in _WRAPPERS else ""


def unwrapped(value: Any) -> Any:
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _WRAPPERS:
        return next(iter(value.values()))
    return value


def _properties(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: part for name, part in properties.items() if isinstance(part, dict)}


def _defined(schema: dict[str, Any]) -> dict[str, Any]:
    definitions = schema.get("$defs")
    return definitions if isinstance(definitions, dict) else {}


def _union(options: Iterable[Any]) -> Any:
    types_in_union = tuple(options)
    if not types_in_union or Any in types_in_union:
        return Any
    # It is built at run time, where `|` cannot be used.
    return Union[types_in_union]  # noqa: UP007
