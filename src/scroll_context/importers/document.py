"""A JSON document whose messages know where they stand in it.

The json module says where a syntax error is, and not where a value was. To name the line of a bad message in a file of
many lines, the outermost list or object, and the list under `messages`, are walked here by hand; everything inside
goes through the json module.
"""

import json
from typing import Any

_decode = json.JSONDecoder().raw_decode

Placed = tuple[int, Any]
"""The line that a value begins at, and the value."""


class Document:
    """The text of a document and how far it has been read. Errors are JSONDecodeError, as from json.loads."""

    def __init__(self, content: str) -> None:
        self._content = content
        self._at = 0
        self._line, self._counted = 1, 0

    def read(self) -> Placed | list[Placed]:
        """The outermost list, as placed elements, or the outermost value, its `messages` as placed elements."""
        char = self._peek()
        line = self._here()
        found: Placed | list[Placed]
        if char == "[":
            found = self._elements()
        elif char == "{":
            found = (line, self._members())
        else:
            found = (line, self._value())
        if self._peek():
            raise self._error("Extra data")
        return found

    def _elements(self) -> list[Placed]:
        self._at += 1
        elements: list[Placed] = []
        if self._peek() != "]":
            self._place(elements)
            while self._peek() == ",":
                self._at += 1
                self._peek()
                self._place(elements)
        self._take("]", "',' or ']'")
        return elements

    def _place(self, elements: list[Placed]) -> None:
        line = self._here()
        elements.append((line, self._value()))

    def _members(self) -> dict[str, Any]:
        self._at += 1
        members: dict[str, Any] = {}
        if self._peek() != "}":
            self._member(members)
            while self._peek() == ",":
                self._at += 1
                self._peek()
                self._member(members)
        self._take("}", "',' or '}'")
        return members

    def _member(self, members: dict[str, Any]) -> None:
        if self._peek() != '"':
            raise self._error("Expecting a property name in double quotes")
        name = self._value()
        self._take(":", "':'")
        is_list = self._peek() == "["
        members[name] = self._elements() if name == "messages" and is_list else self._value()

    def _value(self) -> Any:
        value, self._at = _decode(self._content, self._at)
        return value

    def _peek(self) -> str:
        """The next character that is not space; empty at the end."""
        while (char := self._content[self._at : self._at + 1]) and char in " \t\r\n":
            self._at += 1
        return char

    def _take(self, char: str, expected: str) -> None:
        if self._peek() != char:
            raise self._error(f"Expecting {expected}")
        self._at += 1

    def _here(self) -> int:
        self._line += self._content.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _error(self, reason: str) -> json.JSONDecodeError:
        return json.JSONDecodeError(reason, self._content, self._at)
