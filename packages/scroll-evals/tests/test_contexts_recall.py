"""What a model can get back once it has left the view: by native memory tools, by a summary, or not
at all.
"""

import json

import pytest

from context_runs import (
    SUMMARY,
    Script,
    call,
    code,
    of_kind,
    open_session,
    reader,
    record,
    resume,
    run,
)
from scroll_context.errors import ContextOverflow, ModelUnavailable
from scroll_context.events import Kind
from scroll_context.models import Reply, Request, answer, exec_cell
from scroll_context.store import Store


def then(first: Script, *later: Reply) -> Script:
    """A script that goes on with `later` once `first` answers, and ends with the last result as its
    answer.
    """
    left = [*later]

    def script(request: Request, step: int) -> Reply:
        reply = first(request, step)
        if reply.tool_calls or not request.tools:
            return reply
        return left.pop(0) if left else answer(request.messages[-1].text)

    return script


def test_retrieval_finds_what_left_and_never_its_own_recalls(store: Store) -> None:
    with open_session(store, "retrieval") as session:
        ask = call("recall", query=code(0))
        script = then(reader(session, 12, 3_000), ask, call("recall", query=code(0), k=3))
        done, model = run(session, script, 6_000)
        first = next(m.text for m in model.requests[-2].messages[::-1] if m.role == "tool")
        for text in (first, done.answer):
            rows = json.loads(text)["rows"]
            assert [row["kind"] for row in rows] == ["tool_result"] and code(0) in rows[0][
                "snippet"
            ]
        recalls = [event for event in session.events() if event.name == "recall"]
        assert len(recalls) == 4 and all(
            event.is_echo and not event.is_searchable for event in recalls
        )


def test_without_a_kernel_memory_is_called_natively(store: Store) -> None:
    with open_session(store, "scroll-no-repl") as session:
        script = then(
            reader(session, 10, 50_000),
            call("ms_search", query=code(1), role="tool", first_seq=1, last_seq=30),
            call(
                "ms_sql_query",
                sql="SELECT seq FROM hist.conversation_history WHERE kind = ?",
                params=["tool_result"],
            ),
            call("ms_expand", seq="no number"),
            call("ms_expand", seq=10**9),
        )
        done, model = run(session, script, 16_000)
        assert not session.environment.kernel.interrupt(), "no kernel runs"
        first = of_kind(session, Kind.TOOL_RESULT)[1]
        answers = [request.messages[-1].text for request in list(model.requests)[-4:]]
    assert json.loads(answers[0])["rows"][0]["seq"] == first.seq
    assert {"seq": first.seq} in json.loads(answers[1])["rows"]
    assert "parameter 'seq' must be int" in answers[2]
    assert done.answer.startswith("UnknownSeq: no event within reach at seq 1000000000")


def test_a_long_text_is_read_in_pages(store: Store) -> None:
    with open_session(store, "scroll-no-repl") as session:
        run(session, reader(session, 1, 60_000), 200_000)
        seq = of_kind(session, Kind.TOOL_RESULT)[0].seq
        read, start = "", 0
        while start < 60_000:
            done, _ = run(
                session,
                then(lambda *_: answer(""), call("ms_expand", seq=seq, start=start)),
                200_000,
            )
            page = json.loads(done.answer)["rows"][0]
            read += page["content"]
            start = len(read)
            assert ("more" in page) == (start < 60_000)
    assert read == record(0, 60_000)


def test_the_index_is_gone_but_stubs_and_search_remain(store: Store) -> None:
    with open_session(store, "scroll-no-index") as session:
        find = exec_cell(
            f"hits = ms.search('{code(2)}', kind='tool_result')\nprint(len(ms.index()), hits[0]['content'][:40])"
        )
        done, model = run(session, then(reader(session, 40, 900), find), 6_000)
        assert session.context.index_lines() == []
    said = "\n".join(message.text for message in model.requests[-1].messages[1:])
    assert "- seq " not in said and "ms.search(query) finds it" in said
    assert done.answer == f"0 {record(2, 900)[:40]}"


@pytest.mark.parametrize("context", ["summarize", "scroll-lossy"])
def test_a_summary_stands_for_what_left(store: Store, context: str) -> None:
    with open_session(store, context) as session:
        _, model = run(session, reader(session, 30, 2_000), 6_000)
        plans = of_kind(session, Kind.EVICTION)
        asked = [request for request in model.requests if not request.tools]
        assert len(asked) == len(plans) >= 2
        assert all(
            plan.metadata["summary"] == SUMMARY and plan.metadata["usage"]["input_tokens"]
            for plan in plans
        )
        assert (
            "RESULT: record 0 has" in asked[0].messages[1].text
            and "SUMMARY SO FAR" not in asked[0].messages[1].text
        )
        assert f"SUMMARY SO FAR: {SUMMARY}" in asked[1].messages[1].text
        assert SUMMARY in model.requests[-1].messages[1].text
        assert code(0) not in "".join(message.text for message in model.requests[-1].messages)
    with resume(store, context) as again:
        assert SUMMARY in again.context.render("rules", "").messages[1].text


@pytest.mark.parametrize(
    "fault", [ModelUnavailable("down"), ContextOverflow("too long"), answer("  ")]
)
def test_without_a_summary_the_oldest_steps_are_dropped_and_that_is_said(
    store: Store, fault: object
) -> None:
    with open_session(store, "summarize") as session:
        reading = reader(session, 12, 2_000)

        def script(request: Request, step: int) -> Reply:
            if request.tools:
                return reading(request, step)
            if isinstance(fault, Exception):
                raise fault
            assert isinstance(fault, Reply)
            return fault

        done, model = run(session, script, 6_000)
        plans = of_kind(session, Kind.EVICTION)
    assert done.state == "answered" and plans
    assert all(
        "no summary was made" in plan.content and plan.metadata["unsummarized"] for plan in plans
    )
    assert (
        "steps and messages were dropped without a summary" in model.requests[-1].messages[1].text
    )


def test_a_summary_that_is_too_long_is_cut(store: Store) -> None:
    with open_session(store, "summarize") as session:
        reading = reader(session, 25, 2_000)
        done, _ = run(
            session, lambda r, n: reading(r, n) if r.tools else answer("word " * 20_000), 6_000
        )
        assert done.state == "answered"
        lengths = {len(plan.metadata["summary"]) for plan in of_kind(session, Kind.EVICTION)}
        assert lengths and max(lengths) < 0.1 * 6_000 * 5
