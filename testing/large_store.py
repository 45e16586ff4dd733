"""A store of any size, made quickly: one long session whose views, plans and hashes are real, and
many short ones.

The events of the long session are those that a session of an agent records. Its view is kept in
memory by the same code, so every request has the hash of the messages that it stands for; only the
kernel and the model are left out.
"""

import random
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.events import Draft, Event, Kind
from scroll_context.session.context import WindowedContext
from scroll_context.store import Store
from scroll_context.view.eviction import Budget, plan_eviction

SESSION = "long"
WINDOW = 8_000
WORDS = (
    "harbour ledger walnut train receipt garden signal copper weather margin folder bridge "
    "lantern number"
).split()


class _LongSession:
    """Drafts of one session, and the view that they lead to."""

    def __init__(self, first: int) -> None:
        self.drafts: list[Draft] = []
        self._seq = first
        self._context = WindowedContext(lambda event: event.content)
        self._random = random.Random(7)
        self._asked = 0

    def add(self, kind: str, **fields: Any) -> int:
        draft = Draft(kind=kind, session_id=SESSION, agent_id="worker", task_id="ledger", **fields)
        self.drafts.append(draft)
        facts = {name: getattr(draft, name) for name in draft.__struct_fields__}
        self._context.add(Event(**facts, seq=self._seq, recorded_at="2026-01-01T00:00:00+00:00"))
        self._seq += 1
        return self._seq - 1

    def sentence(self, words: int) -> str:
        return " ".join(self._random.choices(WORDS, k=words))

    def step(self, number: int) -> None:
        digest = f"rows: list {number} of dict\ntotal: int = {number}"
        budget = Budget(window=WINDOW, overhead=400)
        if (plan := plan_eviction(self._context.view, budget)) is not None:
            self.add(Kind.EVICTION, content=plan.summary(), metadata=plan.metadata())
        rendered = self._context.render("You keep a ledger.", digest)
        self.add(
            Kind.REQUEST,
            name="scripted",
            metadata=rendered.metadata() | {"tokens": rendered.tokens, "digest": digest},
        )
        call = {
            "id": f"c{number}",
            "name": "exec",
            "arguments": {"source": f"rows = fetch({number})"},
        }
        usage = {
            "input_tokens": rendered.tokens,
            "output_tokens": 40,
            "cache_read_tokens": rendered.tokens // 2,
        }
        facts = {"tool_calls": [call], "usage": usage, "model": "scripted", "cost": 0.001}
        headline = f"page {number} | {self.sentence(4)} | page {number + 1} | ok"
        self.add(Kind.CONVERSATION, role="assistant", headline=headline, metadata=facts)
        cell = self.add(
            Kind.CELL,
            role="assistant",
            name="exec",
            tool_call_id=f"c{number}",
            content=f"rows = fetch({number})",
        )
        rows = []
        for part in range(12):
            inside = {"inside_cell": cell}
            made = self.add(
                Kind.TOOL_CALL,
                role="assistant",
                name="fetch",
                content=f'{{"n": {part}}}',
                metadata=inside,
            )
            text = msgspec.json.encode([self.sentence(8) for _ in range(4)]).decode()
            rows.append(
                self.add(
                    Kind.TOOL_RESULT,
                    role="tool",
                    name="fetch",
                    content=text,
                    reply_to=made,
                    tool_state="ok",
                    metadata=inside,
                )
            )
        self.add(
            Kind.OBSERVATION,
            role="tool",
            name="exec",
            tool_call_id=f"c{number}",
            reply_to=cell,
            tool_state="ok",
            content=f"page {number}: {self.sentence(30)}",
            metadata={"bound": ["rows", "total"], "seqs": rows},
        )
        saved = [
            {
                "name": name,
                "group": number * 2 + i,
                "type": kind,
                "size": number + 9,
                "cell": number,
                "cells": [number],
            }
            for i, (name, kind) in enumerate(
                (("rows", "list"), ("total", "int"), (f"page_{number % 40}", "dict"))
            )
        ]
        content = msgspec.json.encode(
            {"cell": number, "python": "3.11.7", "saved": saved, "sources": {number: rows}}
        )
        self.add(
            Kind.SNAPSHOT, content=content.decode(), reply_to=cell, metadata={"bytes": len(content)}
        )


def build(folder: Path, events: int = 100_000) -> Path:
    """A store of about this many events: nine tenths in one session, the rest in imported ones."""
    with Store(folder, create=True) as store:
        for number in range(events // 10 // 20):
            name = f"import-{number:04}"
            store.log.append_many(
                Draft(
                    session_id=name,
                    role="assistant" if at % 2 else "user",
                    source_key=f"import:{name}:{at}",
                    content=f"about the {WORDS[(number + at) % len(WORDS)]} of day {number}",
                    agent_id=f"a{number % 5}",
                )
                for at in range(20)
            )
        session = _LongSession(store.log.last_seq() + 1)
        session.add(
            Kind.SESSION,
            content="opened",
            metadata={"settings": {"reach": "agent", "context": "scroll"}},
        )
        tools = [{"name": "exec", "description": "", "parameters": {}}]
        facts = {"context": "scroll", "window": WINDOW, "tools": tools}
        number = 0
        while len(session.drafts) < events * 9 // 10:
            if number % 400 == 0:
                session.add(
                    Kind.CONVERSATION, role="user", content=f"Enter the pages from {number} on."
                )
            if number == 0:
                session.add(
                    Kind.SESSION, content="You keep a ledger.", name="scripted", metadata=facts
                )
            session.step(number)
            number += 1
        for at in range(0, len(session.drafts), 10_000):
            store.log.append_many(session.drafts[at : at + 10_000])
        store.index.catch_up()
    return folder
