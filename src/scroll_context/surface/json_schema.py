"""Tools that JSON schemas describe: Python names, signatures and descriptions, and results as Python values.

A schema is only followed as far as a signature can show it; what it says beyond that (patterns, ranges, nested
objects) is the server's to check. Results come back as Python values: structured content as it is, one block of text
as what it spells, one of media as bytes, several blocks as a list. Wrappers of one field are taken off. This module
knows the values of the Model Context Protocol, not its transport, and imports nothing of the SDK.
"""

import ast
import base64
import hashlib
import inspect
import json
import keyword
import re
import types
from collections.abc import Collection, Iterable
from typing import Any, Literal, Union

import msgspec

from scroll_context.surface.tool_results import Media
from scroll_context.surface.tools import RESERVED
from scroll_context.text.printable import printable

_WRAPPERS = {"result", "content", "root"}
_PRINTED = re.compile(r"[A-Z]\w*\((?:result|content|root)=")  # Root(content='…'), as Python prints it
DOC_CHARS = 20_000  # of a description, which a server may make as long as it likes
SPELT_CHARS = 56  # of a name that is made of a foreign one; a number may be added
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
    found, count = word, 1
    while found in taken:
        count += 1
        found = f"{word}_{count}"
    return found


def namespace_name(name: str) -> str:
    """A name for a server, which stands in the namespace of the cells."""
    return identifier(name, taken=RESERVED, limit=24)


def signature_of(schema: dict[str, Any], returned: dict[str, Any] | None) -> tuple[inspect.Signature, dict[str, str]]:
    """The signature that a tool's schemas describe, and the names of arguments that had to be changed for Python."""
    properties, demanded = _properties(schema), schema.get("required")
    required = [name for name in properties if isinstance(demanded, list) and name in demanded]
    aliases: dict[str, str] = {}
    parameters: list[inspect.Parameter] = []
    for name in [*required, *(name for name in properties if name not in required)]:
        spelt = identifier(name, taken=[parameter.name for parameter in parameters])
        if spelt != name:
            aliases[name] = spelt
        default = inspect.Parameter.empty if name in required else properties[name].get("default", ...)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        annotation = annotation_of(properties[name], _defined(schema))
        parameters.append(inspect.Parameter(spelt, kind, default=default, annotation=annotation))
    result = Any if returned is None else annotation_of(_unwrapped_schema(returned), _defined(returned))
    return inspect.Signature(parameters, return_annotation=result), aliases


def annotation_of(schema: dict[str, Any], defined: dict[str, Any], depth: int = 0) -> Any:
    """The Python type nearest to a schema; Any where there is none that can be checked."""
    if depth > 8:  # a schema that refers to itself
        return Any
    if isinstance(ref := schema.get("$ref"), str):
        target = defined.get(ref.removeprefix("#/$defs/"))
        return annotation_of(target, defined, depth + 1) if isinstance(target, dict) else Any
    found: Any
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    kinds = schema.get("type")
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(choices, list) and choices:
        found = Literal[tuple(choices)] if all(type(one) in (str, int) for one in choices) else Any
    elif isinstance(options, list):
        found = _union(annotation_of(option, defined, depth + 1) for option in options if isinstance(option, dict))
    elif isinstance(kinds, list):
        found = _union(annotation_of({**schema, "type": kind}, defined, depth + 1) for kind in kinds)
    elif kinds == "array":
        items = schema.get("items")
        inner = annotation_of(items, defined, depth + 1) if isinstance(items, dict) else Any
        found = types.GenericAlias(list, (inner,))
    else:
        found = _SCALARS.get(kinds, Any) if isinstance(kinds, str) else Any
    try:
        msgspec.json.Decoder(found)
    except TypeError:  # a union that msgspec cannot tell apart
        return Any
    return found


def doc_of(description: str | None, schema: dict[str, Any]) -> str:
    """The description, and what the schema says of each argument."""
    notes = [
        f"{name}: {' '.join(part['description'].split())}"
        for name, part in _properties(schema).items()
        if isinstance(part.get("description"), str)
    ]
    whole = "\n".join([*inspect.cleandoc(description or "").split("\n"), *notes]).strip()
    return whole if len(whole) <= DOC_CHARS else f"{whole[:DOC_CHARS]} …"


def text_value(text: str) -> Any:
    """The value that a text spells: a JSON object or array, the content of a printed wrapper; else the text itself."""
    if (printed := _PRINTED.match(text)) and text.endswith(")"):
        try:
            inner = ast.literal_eval(text[printed.end() : -1])
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return text
        return text_value(inner) if isinstance(inner, str) else inner
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return _without_wrapper(json.loads(text))
    except (ValueError, RecursionError):
        return text


def value_of(result: Any, returned: dict[str, Any] | None) -> Any:
    """The Python value of a CallToolResult that is no error."""
    blocks = [_block(block) for block in result.content]
    structured = result.structured_content
    if structured is None:
        values = [text_value(block) if isinstance(block, str) else block for block in blocks]
        return values[0] if len(values) == 1 else values or None
    if returned is not None and _wrapper(returned):
        structured = _without_wrapper(structured)
    media = [block for block in blocks if isinstance(block, Media)]  # text blocks repeat what is structured
    return [structured, *media] if media else structured


def text_of(result: Any) -> str:
    """What the server says of an error."""
    said = printable("\n".join(block.text for block in result.content if block.type == "text"))
    return said or "the server reported an error without a text"


def _block(block: Any) -> Any:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return Media(base64.b64decode(block.data), block.mime_type)
        case "resource" if hasattr(block.resource, "blob"):
            return Media(base64.b64decode(block.resource.blob), block.resource.mime_type or "")
        case "resource":
            return block.resource.text
        case _:
            return block.model_dump(mode="json", exclude_none=True)


def _wrapper(returned: dict[str, Any]) -> str:
    """The one field of a schema that only wraps a value; "" when it does not.

    Older versions of the protocol allow only objects as results, so servers wrap what is none.
    """
    names = list(_properties(returned))
    return names[0] if len(names) == 1 and names[0] in _WRAPPERS else ""


def _without_wrapper(value: Any) -> Any:
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _WRAPPERS:
        return next(iter(value.values()))
    return value


def _unwrapped_schema(returned: dict[str, Any]) -> dict[str, Any]:
    name = _wrapper(returned)
    return _properties(returned)[name] if name else returned


def _properties(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = schema.get("properties")
    return {n: part for n, part in found.items() if isinstance(part, dict)} if isinstance(found, dict) else {}


def _defined(schema: dict[str, Any]) -> dict[str, Any]:
    found = schema.get("$defs")
    return found if isinstance(found, dict) else {}


def _union(options: Iterable[Any]) -> Any:
    several = tuple(options)
    return Any if not several or Any in several else Union[several]  # noqa: UP007 - built at run time
