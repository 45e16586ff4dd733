"""Spans of a session, with the real OpenTelemetry SDK and its exporter to memory."""

import pytest

pytest.importorskip(
    "opentelemetry.sdk", reason="opentelemetry-sdk is not installed: make test-hosts"
)

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from scroll_adapters.telemetry import SCHEMA, instrument
from scroll_context import Agent, ScriptedModel, Session, Store, exec_cell
from scroll_context.hosts import HostAdapter, HostMessage, Reply, Usage
from snippets import run_snippet

USAGE = "gen_ai.usage"
SECRET = "the secret word is heron"


def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


def recording() -> tuple[InMemorySpanExporter, TracerProvider]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, provider


def spans_of(store: Store, *, content: bool, turns: int = 1) -> list[ReadableSpan]:
    """The spans of turns with a recall, a tool inside a cell, a cell that fails, and an answer."""
    exporter, provider = recording()
    plays = [
        exec_cell("print(ms.search('anything'))"),
        exec_cell("print(double(21))"),
        exec_cell("1 / 0"),
        f"Done: {SECRET}.",
    ]
    with Session.open(store, session_id="trip", agent_id="ada", tools=[double]) as session:
        stop = instrument(session, tracer_provider=provider, content=content)
        for _ in range(turns):
            Agent(session, ScriptedModel(plays)).run(f"Remember: {SECRET}.")
        stop()
        Agent(session, ScriptedModel(["Not seen."])).run("After the end.")
    return list(exporter.get_finished_spans())


def test_a_run_gives_a_tree_of_spans_with_the_tokens_of_each_reply(store: Store) -> None:
    spans = spans_of(store, content=False)
    by_id = {span.context.span_id: span for span in spans}
    names = [span.name for span in spans]
    assert names.count("invoke_agent") == 1 and names.count("chat scripted") == 4
    assert names.count("execute_tool exec") == 3 and names.count("execute_tool double") == 1
    root = next(span for span in spans if span.name == "invoke_agent")
    assert root.parent is None and root.attributes["gen_ai.agent.id"] == "ada"
    for span in spans:
        assert span.attributes["gen_ai.conversation.id"] == "trip"
        assert span.start_time <= span.end_time
        assert span.instrumentation_scope.schema_url == SCHEMA
        parent = by_id[span.parent.span_id].name if span.parent else ""
        expected = {
            "invoke_agent": "",
            "execute_tool double": "execute_tool exec",
            "search_memory": "execute_tool exec",
        }
        assert parent == expected.get(span.name, "invoke_agent")
        if span.name == "chat scripted":
            assert span.attributes["gen_ai.usage.input_tokens"] > 0
            assert span.attributes["gen_ai.response.model"] == "scripted"


def test_a_failed_cell_is_an_error_and_a_recall_is_marked(store: Store) -> None:
    spans = spans_of(store, content=False)
    cells = [span for span in spans if span.name == "execute_tool exec"]
    assert [span.status.is_ok for span in cells] == [True, True, False]
    assert [span.attributes.get("error.type") for span in cells] == [None, None, "error"]
    assert [span.attributes["scroll.recall"] for span in cells] == [True, False, False]
    recalls = [span for span in spans if span.name == "search_memory"]
    assert [span.parent.span_id for span in recalls] == [cells[0].context.span_id]
    assert recalls[0].attributes["gen_ai.operation.name"] == "search_memory"
    assert recalls[0].end_time == cells[0].end_time


@pytest.mark.parametrize("content", [False, True])
def test_texts_are_exported_only_on_request(store: Store, content: bool) -> None:
    spans = spans_of(store, content=content)
    exported = "\n".join(span.to_json() for span in spans)
    assert (SECRET in exported) is content and ("1 / 0" in exported) is content


def test_an_eviction_has_a_span_and_marks_the_requests_after_it(store: Store) -> None:
    exporter, provider = recording()
    with Session.open(store) as session:
        stop = instrument(session, tracer_provider=provider)
        model = ScriptedModel(["words " * 300] * 12, window=4_000)
        for number in range(12):
            Agent(session, model).run(f"Question {number}. " + "context " * 100)
        stop()
    spans = exporter.get_finished_spans()
    assert any(span.name == "scroll.eviction" for span in spans)
    chats = [span for span in spans if span.name.startswith("chat")]
    marks = ["gen_ai.conversation.compacted" in span.attributes for span in chats]
    assert marks[0] is False and marks[-1] is True and marks == sorted(marks)


def test_a_model_call_of_a_host_has_its_usage_and_cache(store: Store) -> None:
    exporter, provider = recording()
    usage = Usage(input_tokens=100, output_tokens=7, cache_read_tokens=60, cache_write_tokens=20)
    with HostAdapter(store, "trip", window=8_000) as adapter:
        stop = instrument(adapter.session, tracer_provider=provider)
        message = HostMessage(role="user", text=SECRET)
        adapter.follow([message], model_name="gpt-5")
        # The provider does not answer, and the host asks again.
        adapter.follow([message], model_name="gpt-5")
        adapter.session.replied(Reply(text="Yes.", usage=usage))
        stop()
    failed, answered, agent = exporter.get_finished_spans()
    assert [failed.name, answered.name, agent.name] == ["chat gpt-5", "chat gpt-5", "invoke_agent"]
    assert failed.attributes["error.type"] == "no_reply" and not failed.status.is_ok
    assert answered.kind == SpanKind.CLIENT
    counted = {name: value for name, value in answered.attributes.items() if name.startswith(USAGE)}
    assert counted == {
        f"{USAGE}.input_tokens": 100,
        f"{USAGE}.output_tokens": 7,
        f"{USAGE}.cache_read.input_tokens": 60,
        f"{USAGE}.cache_creation.input_tokens": 20,
    }


def test_the_snippet_of_the_documentation(store: Store) -> None:
    with Session.open(store) as session:
        names = {"session": session, "Agent": Agent, "model": ScriptedModel(["To Lisbon."])}
        run_snippet("FRAMEWORKS.md", "OpenTelemetry", names)
        assert [event.content for event in session.events()][-1] == "To Lisbon."
