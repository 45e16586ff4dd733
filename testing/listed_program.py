"""A program of an SDK that keeps its list in a file and continues it when it is started again.

    python listed_program.py API URL SESSION FILE

A step that is not complete in the file, such as a reply whose calls have no results yet, is left
out and taken once more.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai

from gateways import PROMPT, SESSION, client_for
from provider_rules import broken_rule
from sdk_programs import PROGRAMS, start

Json = dict[str, Any]


class FileList(list[Json]):
    """A list whose additions are in a file before the program continues."""

    def __init__(self, file: Path, items: list[Json]) -> None:
        super().__init__(items)
        lines = [json.dumps(item) + "\n" for item in items]
        file.write_text("".join(lines))
        self._stream = file.open("a")

    def append(self, item: Json) -> None:
        super().append(item)
        self._stream.write(json.dumps(item) + "\n")
        self._stream.flush()

    def __iadd__(self, items: Any) -> "FileList":  # type: ignore[misc]
        for item in items:
            self.append(item)
        return self


def complete_steps(api: str, items: list[Json]) -> list[Json]:
    """The longest beginning of a list that a provider accepts and has not answered."""
    field = "input" if api == "responses" else "messages"
    while items and (_is_reply(items[-1]) or broken_rule(api, {field: items})):
        items = items[:-1]
    return items


def _is_reply(item: Json) -> bool:
    return item.get("role") == "assistant" or item.get("type") in ("reasoning", "function_call")


def read(file: Path) -> list[Json]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def main(api: str, url: str, session: str, file: Path) -> None:
    items = complete_steps(api, read(file)) or start(api, f"{PROMPT} This is {session}.")
    client = client_for(api, url, {SESSION: session})
    try:
        asyncio.run(PROGRAMS[api](client, FileList(file, items), stream=True))
    except (httpx2.TransportError, anthropic.APIError, openai.APIError) as error:
        # As an assistant gives up after some attempts; it can be started again.
        sys.exit(f"{session} gives up: {error!r}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
