"""The schemas and results of an MCP server, as Python signatures and values.

JSON schemas are followed as far as a signature can show them; what they say beyond that (patterns,
ranges, nested objects) is the server's to check.

Results come back as Python values: structured content as it is, one block of text as the value that
it spells, one of media as bytes, several blocks as a list. Wrappers with one field are removed.
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

from scroll_context.text.printable import printable
from scroll_context.tools.plain import MediaBytes
from scroll_context.tools.signatures import RESERVED

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
    properties = _properties(schema)
    demanded = schema.get("required")
    if not isinstance(demanded, list):
        demanded = []
    aliases: dict[str, str] = {}
    parameters: dict[str, inspect.Parameter] = {}
    # Those with a default come last, as in Python.
    for name in sorted(properties, key=lambda name: name not in demanded):
        spelt = identifier(name, taken=parameters)
        if spelt != name:
            aliases[name] = spelt
        default = inspect.Parameter.empty
        if name not in demanded:
            default = properties[name].get("default", ...)
        parameters[spelt] = inspect.Parameter(
            spelt,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=default,
            annotation=annotation_of(properties[name], _defined(schema)),
        )
    result = Any if returned is None else _result_annotation(returned)
    return inspect.Signature(list(parameters.values()), return_annotation=result), aliases


def _result_annotation(returned: dict[str, Any]) -> Any:
    wrapper = wrapper_of(returned)
    schema = _properties(returned)[wrapper] if wrapper else returned
    return annotation_of(schema, _defined(returned))


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


# results ------------------------------------------------------------------------------------------

# Root(content='…'), as Python prints it.
_PRINTED = re.compile(r"[A-Z]\w*\((?:result|content|root)=")


def text_value(text: str) -> Any:
    """The value that a text spells: a JSON object or array, the content of a printed wrapper; else
    the text itself.
    """
    printed = _PRINTED.match(text)
    if printed and text.endswith(")"):
        try:
            inner = ast.literal_eval(text[printed.end() : -1])
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return text
        return text_value(inner) if isinstance(inner, str) else inner
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return unwrapped(json.loads(text))
    except (ValueError, RecursionError):
        return text


def value_of(result: Any, returned: dict[str, Any] | None) -> Any:
    """The Python value of a CallToolResult that is not an error."""
    blocks = [_block(block) for block in result.content]
    structured = result.structured_content
    if structured is None:
        values = [text_value(block) if isinstance(block, str) else block for block in blocks]
        return values[0] if len(values) == 1 else values or None
    if returned is not None and wrapper_of(returned):
        structured = unwrapped(structured)
    # Text blocks repeat the structured content.
    media = [block for block in blocks if isinstance(block, MediaBytes)]
    return [structured, *media] if media else structured


def text_of(result: Any) -> str:
    """The server's own text for an error."""
    text = printable("\n".join(block.text for block in result.content if block.type == "text"))
    return text or "the server reported an error without a text"


def _block(block: Any) -> Any:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return MediaBytes(base64.b64decode(block.data), block.mime_type)
        case "resource" if hasattr(block.resource, "blob"):
            return MediaBytes(base64.b64decode(block.resource.blob), block.resource.mime_type or "")
        case "resource":
            return block.resource.text
        case _:
            return block.model_dump(mode="json", exclude_none=True)
