"""OpenTelemetry spans for a session: agent runs, model calls, tool calls, cells, recalls and
evictions.

    stop = instrument(session)

The spans are made from the events of the session as they are recorded, and carry their times, so
nothing in a session depends on this module. They follow the GenAI semantic conventions, which are
still in development, in the version named by `SCHEMA`. Texts are not exported unless
`content=True`.

Spans: `invoke_agent` from a user's message to the reply that makes no calls; `chat MODEL` from a
request to its reply; `execute_tool NAME` for cells and for tools that the session carries out;
`search_memory` for the recalls of a cell, inside the cell's span; `scroll.eviction`. A tool that a
framework carries out has no span here, because the session learns of it when it has ended:
frameworks instrument their own tools.
"""

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace

from scroll_context.contents import usage_of
from scroll_context.events import Event, Kind

if TYPE_CHECKING:
    from scroll_context.session.session import Session

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the semantic conventions."""

OPERATION = "gen_ai.operation.name"


def instrument(
    session: "Session",
    *,
    tracer_provider: trace.TracerProvider | None = None,
    content: bool = False,
) -> Callable[[], None]:
    """Make spans of what happens in a session from now on; returns a function that stops it.

    The spans belong to the span that is current now. Without `tracer_provider`, the global one is
    used. With `content=True` they also carry the texts of replies, cells and results.
    """
    tracer = trace.get_tracer("scroll_context", schema_url=SCHEMA, tracer_provider=tracer_provider)
    spans = _Spans(tracer, session.scope.session_id, session.scope.agent_id, content)
    unsubscribe = session.subscribe(spans.add)

    def stop() -> None:
        session.journal.tell_all()
        unsubscribe()
        spans.close()

    return stop


class _Spans:
    """The spans of one session. Each event opens or ends some."""

    def __init__(self, tracer: trace.Tracer, session_id: str, agent_id: str, content: bool) -> None:
        self._tracer = tracer
        self._session_id = session_id
        self._agent_id = agent_id
        self._content = content
        self._outside = context.get_current()
        self._lock = threading.Lock()
        self._agent: trace.Span | None = None
        self._chat: trace.Span | None = None
        # Cells and tool calls that have not ended, by seq.
        self._open: dict[int, trace.Span] = {}
        # The recall inside each of them that has one.
        self._recalls: dict[int, trace.Span] = {}
        self._is_compacted = False
        self._newest = ""

    def add(self, event: Event) -> None:
        """Follow the next event of the session."""
        with self._lock:
            self._newest = event.created_at
            if event.is_from_user and self._agent is None:
                self._begin_agent(event)
            elif event.kind == Kind.REQUEST:
                self._begin_chat(event)
            elif event.kind == Kind.CONVERSATION and event.role == "assistant":
                self._end_chat(event)
            elif event.kind in (Kind.CELL, Kind.TOOL_CALL):
                self._open[event.seq] = self._begin_tool(event)
                if event.is_echo:
                    # The newest open span, that of the cell, is its parent.
                    recall = self._span("search_memory", event, "search_memory")
                    self._recalls[event.seq] = recall
            elif event.kind in (Kind.OBSERVATION, Kind.TOOL_RESULT):
                self._end_tool(event)
            elif event.kind == Kind.EVICTION:
                self._add_eviction(event)

    def close(self) -> None:
        """End what is still open."""
        with self._lock:
            unfinished = (*self._recalls.values(), *self._open.values(), self._chat, self._agent)
            for span in unfinished:
                if span is not None:
                    span.end(_nanoseconds(self._newest))
            self._recalls.clear()
            self._open.clear()
            self._chat = self._agent = None

    def _span(self, name: str, event: Event, operation: str, **facts: Any) -> trace.Span:
        inner = next(reversed(self._open.values()), None) or self._agent
        around = trace.set_span_in_context(inner, self._outside) if inner else self._outside
        attributes = {
            OPERATION: operation,
            "gen_ai.conversation.id": self._session_id,
            "scroll.seq": event.seq,
            **facts,
        }
        kind = trace.SpanKind.CLIENT if operation == "chat" else trace.SpanKind.INTERNAL
        return self._tracer.start_span(
            name,
            around,
            kind=kind,
            attributes=attributes,
            start_time=_nanoseconds(event.created_at),
        )

    def _begin_agent(self, event: Event) -> None:
        facts = {"gen_ai.agent.id": self._agent_id} if self._agent_id else {}
        self._agent = self._span("invoke_agent", event, "invoke_agent", **facts)

    def _begin_chat(self, event: Event) -> None:
        if self._chat is not None:
            self._chat.set_status(trace.StatusCode.ERROR, "no reply was recorded")
            self._chat.set_attribute("error.type", "no_reply")
            self._chat.end(_nanoseconds(event.created_at))
        facts: dict[str, Any] = {"gen_ai.request.model": event.name} if event.name else {}
        if self._is_compacted:
            facts["gen_ai.conversation.compacted"] = True
        facts["scroll.request.tokens"] = event.metadata.get("tokens", 0)
        self._chat = self._span(f"chat {event.name}".strip(), event, "chat", **facts)

    def _end_chat(self, event: Event) -> None:
        if self._chat is not None:
            usage = usage_of(event)
            facts = {
                "gen_ai.response.model": event.metadata.get("model"),
                "gen_ai.usage.input_tokens": usage.input_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
                "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
            }
            self._chat.set_attributes({name: value for name, value in facts.items() if value})
            if self._content:
                parts = [{"type": "text", "content": event.content}]
                messages = [{"role": "assistant", "parts": parts}]
                self._chat.set_attribute("gen_ai.output.messages", json.dumps(messages))
            self._chat.end(_nanoseconds(event.created_at))
            self._chat = None
        if self._agent is not None and not event.metadata.get("tool_calls"):
            self._agent.end(_nanoseconds(event.created_at))
            self._agent = None

    def _begin_tool(self, event: Event) -> trace.Span:
        facts: dict[str, Any] = {
            "gen_ai.tool.name": event.name,
            "gen_ai.tool.call.id": event.tool_call_id,
            "scroll.recall": event.is_echo,
        }
        if self._content:
            facts["gen_ai.tool.call.arguments"] = event.content
        return self._span(f"execute_tool {event.name}", event, "execute_tool", **facts)

    def _end_tool(self, event: Event) -> None:
        span = self._open.pop(event.reply_to or 0, None)
        if span is None:
            # A tool of a framework.
            return
        recall = self._recalls.pop(event.reply_to or 0, None)
        if recall is not None:
            recall.set_attribute("scroll.recall.events", len(event.metadata.get("seqs", ())))
            recall.end(_nanoseconds(event.created_at))
        if self._content:
            span.set_attribute("gen_ai.tool.call.result", event.content)
        if event.tool_state != "ok":
            span.set_status(trace.StatusCode.ERROR, event.tool_state)
            span.set_attribute("error.type", event.tool_state or "error")
        span.end(_nanoseconds(event.created_at))

    def _add_eviction(self, event: Event) -> None:
        self._is_compacted = True
        span = self._span("scroll.eviction", event, "scroll.eviction")
        span.end(_nanoseconds(event.created_at))


def _nanoseconds(moment: str) -> int:
    """A recorded time as OpenTelemetry counts it."""
    try:
        time = datetime.fromisoformat(moment)
    except ValueError:
        time = datetime.now(UTC)
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return int(time.timestamp() * 1e6) * 1_000
