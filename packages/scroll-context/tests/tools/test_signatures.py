"""JSON schemas as signatures, whatever servers write into them."""

import inspect
import keyword
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scroll_context.tools.mcp_values import (
    annotation_of,
    doc_of,
    identifier,
    namespace_name,
    signature_of,
)
from scroll_context.tools.signatures import signature_text, type_text


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, "str"),
        ({"type": "integer"}, "int"),
        ({"type": "number"}, "int | float"),
        ({"type": "boolean"}, "bool"),
        ({"type": "null"}, "None"),
        ({"type": "object", "properties": {"a": {}}}, "dict[str, Any]"),
        ({"type": "array", "items": {"type": "integer"}}, "list[int]"),
        ({"type": "array"}, "list[Any]"),
        ({"enum": ["a", "b"]}, "Literal['a', 'b']"),
        ({"const": 3}, "Literal[3]"),
        ({"enum": ["a", 1.5]}, "Any"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "str | None"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"oneOf": [{"type": "array"}, {"type": "array", "items": {"type": "string"}}]}, "Any"),
        ({"$ref": "#/$defs/Unit"}, "Literal['C', 'F']"),
        ({"$ref": "#/$defs/Loop"}, "Any"),
        ({"$ref": "#/$defs/Missing"}, "Any"),
        ({}, "Any"),
        ({"type": "strange"}, "Any"),
    ],
)
def test_types(schema: dict[str, Any], text: str) -> None:
    defined = {"Unit": {"enum": ["C", "F"]}, "Loop": {"$ref": "#/$defs/Loop"}}
    assert type_text(annotation_of(schema, defined)) == text


def test_required_arguments_come_first_and_odd_names_are_changed() -> None:
    schema = {
        "properties": {
            "max-results": {"type": "integer"},
            "class": {"type": "string", "default": "all"},
            "query": {"type": "string"},
            "max results": {"type": "boolean"},
            "2d": {},
        },
        "required": ["query"],
    }
    signature, aliases = signature_of(schema, {"properties": {"result": {"type": "array"}}})
    assert signature_text("s.find", signature) == (
        "s.find(query: str, max_results: int = ..., class_: str = 'all', max_results_2: bool = ..., _2d: Any = ...)"
        " -> list[Any]"
    )
    assert aliases == {
        "max-results": "max_results",
        "class": "class_",
        "max results": "max_results_2",
        "2d": "_2d",
    }


@pytest.mark.parametrize("junk", [None, 3, "text", [1], {"properties": 3}, {"x": {"y": 1}}])
def test_a_schema_that_is_nonsense_gives_a_signature_all_the_same(junk: Any) -> None:
    for key in (
        "properties",
        "required",
        "$defs",
        "enum",
        "anyOf",
        "type",
        "items",
        "$ref",
        "default",
    ):
        schema = {"properties": {"a": {key: junk}}, key: junk} | (
            {"type": "array"} if key == "items" else {}
        )
        assert signature_of(schema, schema) is not None
        assert isinstance(doc_of("x", schema), str)


def test_descriptions_of_arguments_join_the_docstring() -> None:
    schema = {
        "properties": {
            "a": {"description": "first\n  thing"},
            "b": {},
            "c": {"description": "last"},
        }
    }
    assert doc_of("Does it.\n\n    Well.", schema) == "Does it.\n\nWell.\na: first thing\nc: last"
    assert doc_of(None, {}) == ""


def test_a_server_cannot_hide_what_cells_need() -> None:
    assert namespace_name("ms") == "ms_2"
    assert namespace_name("print") == "print_2"
    assert len(namespace_name("a very long name of a server that goes on and on")) <= 24


@given(st.text(max_size=100), st.sets(st.sampled_from(["tool", "a", "a_2", "_1"])))
def test_any_name_becomes_a_free_identifier(name: str, taken: set[str]) -> None:
    found = identifier(name, taken)
    assert found.isidentifier() and not keyword.iskeyword(found)
    assert found not in taken
    assert len(found) <= 64
    inspect.Parameter(found, inspect.Parameter.POSITIONAL_OR_KEYWORD)
