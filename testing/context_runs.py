"""Runs for the tests of contexts and budgets: one made-up task, played the same way under any
context.
"""

import random
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from scroll_context.agent.agent import Agent, Run
from scroll_context.events import Event, Kind
from scroll_context.messages import ToolCall
from scroll_context.models import Reply, Request, ScriptedModel, answer, exec_cell
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store

TASK = "Read every record and report the code of each."
SUMMARY = "Records were read in order; the codes are noted."

Script = Callable[[Request, int], Reply]


def code(number: int) -> str:
    """What only record `number` says."""
    return f"code-{number * 7919 % 100_003}"


@lru_cache(maxsize=64)
def record(number: int, size: int) -> str:
    """A record of `size` characters, its code in the first hundred."""
    words = random.Random(number).choices(
        ["amber", "birch", "cedar", "delta", "ember", "fjord"], k=size // 6
    )
    return f"record {number} has {code(number)} {' '.join(words)}"[:size].ljust(size, ".")


def fetch(number: int, size: int) -> str:
    """One record."""
    return record(number, size)


def call(name: str, **arguments: Any) -> Reply:
    """A reply that calls one tool natively."""
    return Reply(text="", tool_calls=(ToolCall("", name, arguments),))


def open_session(store: Store, context: str, session_id: str = "work") -> Session:
    return Session.open(
        store, session_id=session_id, tools=[fetch], options=SessionOptions(context=context)
    )


def resume(store: Store, context: str, session_id: str = "work") -> Session:
    return Session.resume(store, session_id, tools=[fetch], options=SessionOptions(context=context))


def reader(
    session: Session, steps: int, size: int | Callable[[int], int], printed: int = 1_000
) -> Script:
    """A script that fetches record after record, by cells or natively, and writes a summary when
    asked for one.
    """
    played = 0
    size_of = size if callable(size) else lambda _: size

    def script(request: Request, _: int) -> Reply:
        nonlocal played
        if not request.tools:
            return answer(SUMMARY)
        if played == steps:
            return answer("All read.")
        number, played = played, played + 1
        if not session.context.actions.exec:
            return call("fetch", number=number, size=size_of(number))
        return exec_cell(
            f"r{number % 9} = fetch({number}, {size_of(number)})\nprint(r{number % 9}[:{printed}])",
            headline=f"read records | {number} is {code(number)} | read {number + 1} | running",
        )

    return script


def run(
    session: Session, script: Script, window: int, message: str | None = TASK
) -> tuple[Run, ScriptedModel]:
    model = ScriptedModel(script, window=window, keep=1_000)
    return Agent(session, model).run(message), model


def of_kind(session: Session, *kinds: Kind) -> list[Event]:
    return [event for event in session.events() if event.kind in kinds]


def counted(session: Session) -> Iterator[int]:
    """The input tokens of each request, as the model counted them."""
    return (
        event.metadata["usage"]["input_tokens"]
        for event in session.events()
        if "usage" in event.metadata
    )
