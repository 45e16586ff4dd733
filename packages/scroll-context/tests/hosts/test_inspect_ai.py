"""Scroll under Inspect AI: a long task in a small window, in one agent and in several samples."""

import base64
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="inspect-ai is not installed: make test-hosts")

from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, ContentImage, ContentText, get_model

import host_scenario as scenario
from host_inspect_ai import Host, read_report
from host_scenario import PIXEL, WINDOW, Calls, Refuses, Says, reading, report, shown
from scroll_context.contents import media_of
from scroll_context.events import Kind
from scroll_context.hosts.inspect_ai import NOTHING_YET, ScrollCompaction
from scroll_context.session.explain import explain
from scroll_context.store import Store
from snippets import run_snippet

PICTURE = ChatMessageUser(
    content=[
        ContentText(text="Read all the reports that you find."),
        ContentImage(image=f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"),
    ]
)


def sessions(store: Store) -> list[str]:
    return sorted({event.session_id for event in store.log.iterate(kind=[Kind.REQUEST])})


def test_120_steps_in_a_small_window(folder: Path, tmp_path: Path) -> None:
    host = Host.open(folder)
    assert host.adapter is not None
    search = Calls((("search", {"query": "code 4711-11", "k": 1}),))
    plays = [
        *(reading(number) for number in range(60)),
        Refuses(),
        search,
        *(reading(number, number + 1) for number in range(100, 220, 2)),
        Says("All are read."),
    ]
    with host.adapter as compaction:
        assert host.run_task([PICTURE], plays, tmp_path) == "All are read."
        assert (compaction.bounds, compaction.stores, compaction.executes) == (True, False, False)
    assert len(host.requests) >= 120
    largest = max(scenario.text_tokens(request) for request in host.requests)
    assert largest <= WINDOW, f"{largest} tokens were sent"
    assert shown(host.sent(host.messages)).count("code 4711-") >= 180, "the history is complete"
    # The report had left the context, and the tool brought it back.
    answered = host.requests[62]
    assert "code 4711-11 " in answered[-1].text and "code 4711-11 " not in shown(answered[:-1])
    check_store(host, folder)


def check_store(host: Host, folder: Path) -> None:
    with Store(folder) as store:
        (session,) = sessions(store)
        events = list(store.log.iterate(session_id=session))
        requests = [event for event in events if event.kind == Kind.REQUEST]
        assert all(explain(store, event.seq).verified for event in requests)
        results = [event for event in events if event.kind == Kind.TOOL_RESULT]
        texts = {store.log.text(event) for event in results}
        # The last ones came after the newest compaction.
        assert {report(number) for number in (*range(60), *range(100, 180))} <= texts
        ids = [event.tool_call_id for event in results]
        assert len(ids) == len(set(ids)), "a result was recorded twice"
        (task,) = [event for event in events if event.is_from_user]
        assert [item.media_type for item in media_of(task)] == ["image/png"]
    changes = sum(after[: len(before)] != before for before, after in pairwise(host.requests))
    assert changes <= len(requests), "the prefix changed between compactions"
    assert len(requests) < 30


def test_without_scroll_the_window_is_exceeded(tmp_path: Path) -> None:
    host = Host(None)
    host.run_task("Read.", [*(reading(number) for number in range(60)), Says("Done.")], tmp_path)
    assert scenario.text_tokens(host.requests[-1]) > WINDOW


def test_nothing_to_recall_before_the_first_compaction(folder: Path, tmp_path: Path) -> None:
    host = Host.open(folder)
    assert host.adapter is not None
    with host.adapter:
        calls = Calls((("expand", {"seq": 1}),))
        host.run_task("Read.", [calls, Says("Nothing.")], tmp_path)
    assert host.requests[-1][-1].text == NOTHING_YET


def test_samples_of_an_evaluation_have_sessions_of_their_own(folder: Path, tmp_path: Path) -> None:
    def answer(messages: Any, *rest: Any) -> Any:
        # Every sample reads reports of its own number.
        number = int(messages[1].text.split()[1])
        script.setdefault(number, [reading(1000 * number + step) for step in range(40)])
        host._plays.append(script[number].pop(0) if script[number] else Says("Done."))
        return host.answer(messages, *rest)

    script: dict[int, list[Any]] = {}
    host = Host(None)
    model = get_model("scroll-scripted/model", custom_outputs=answer, memoize=False)
    with ScrollCompaction(folder, window=WINDOW) as compaction:
        agent = react(
            prompt="You read reports.",
            tools=[read_report(), *compaction.tools],
            submit=False,
            compaction=compaction,
        )
        samples = [Sample(input=f"Task {number}") for number in range(3)]
        task = Task(dataset=samples, solver=agent)
        (log,) = eval(task, model=model, display="none", log_dir=str(tmp_path / "logs"))
    assert log.status == "success", log.error
    with Store(folder) as store:
        names = sessions(store)
        assert len(names) == 3
        for name in names:
            events = list(store.log.iterate(session_id=name))
            thousands = {
                event.content.split()[1][:-3]
                for event in events
                if event.kind == Kind.TOOL_RESULT and event.content.startswith("report")
            }
            assert len(thousands) == 1, "two samples were mixed"


def test_the_snippet_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    host = Host(None)
    submit = Calls((("submit", {"answer": "To Lisbon."}),))
    host._plays.append(submit)
    model = get_model("scroll-scripted/model", custom_outputs=host.answer, memoize=False)
    samples = [Sample(input="Where do we go?")]
    names = {"model": model, "tools": [read_report()], "samples": samples}
    (log,) = run_snippet("FRAMEWORKS.md", "Inspect AI", names)["logs"]
    assert log.samples[0].output.completion == "To Lisbon."
    assert (tmp_path / "work.scroll" / "log.db").is_file()
