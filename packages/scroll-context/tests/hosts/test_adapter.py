"""What all adapters share, without a framework: lifetimes, refusals, and the documented example."""

from pathlib import Path
from typing import Any

import pytest

from scroll_context import SessionOptions
from scroll_context.errors import BadInput, StoreClosed
from scroll_context.events import Kind
from scroll_context.hosts import HostAdapter, HostMessage
from scroll_context.session.session import Session
from scroll_context.store import Store
from snippets import run_snippet


def test_an_adapter_closes_what_it_opened_and_nothing_else(folder: Path) -> None:
    with HostAdapter(folder, "trip") as adapter:
        own = adapter.session.store
    with pytest.raises(StoreClosed):
        own.log.get(1)
    with Store(folder) as store:
        with HostAdapter(store, "trip") as adapter:
            adapter.follow([HostMessage(role="user", text="hello")])
        # The session was released, and the store of the caller is open.
        with Session.resume(store, "trip") as session:
            with HostAdapter(session) as adapter:
                assert adapter.answer("exec", {"source": "print(6 * 7)"}, "c1") == "42"
            assert session.run("print(1)").content == "1"


def test_an_adapter_that_nobody_holds_releases_its_session(store: Store) -> None:
    adapter = HostAdapter(store, "trip")
    del adapter
    with Session.resume(store, "trip") as session:
        assert session.scope.session_id == "trip"


def test_an_open_session_takes_no_name_and_no_options(store: Store) -> None:
    with Session.open(store) as session, pytest.raises(BadInput, match="open already"):
        HostAdapter(session, "trip")
    with pytest.raises(BadInput, match="session='trip'"):
        HostAdapter(store)


def test_the_window_of_the_adapter_wins(store: Store) -> None:
    prompt = [HostMessage(role="user", text="hello")]
    with HostAdapter(store, "a", window=5_000) as adapter:
        adapter.follow(prompt, window=90_000)
    with HostAdapter(store, "b") as adapter:
        adapter.follow(prompt, window=90_000)
        adapter.follow([*prompt, HostMessage(role="user", text="again")], window=0)
    events = store.log.iterate(kind=Kind.SESSION)
    windows = [event.metadata["window"] for event in events if "window" in event.metadata]
    assert windows == [5_000, 90_000, 128_000]


def test_without_cells_an_adapter_offers_plain_recall_tools(store: Store) -> None:
    with HostAdapter(store, "a", options=SessionOptions(context="plain")) as adapter:
        assert [spec.name for spec in adapter.specs] == ["search", "expand"]
        adapter.follow([HostMessage(role="user", text="The code is 4711.")])
        adapter.follow([HostMessage(role="user", text="Something else.")])
        assert "4711" in adapter.answer("search", {"query": "code"}, "c1")
        assert adapter.answer("search", "{", "c2").startswith("not run")


def test_system_messages_of_a_list_are_recorded_with_the_request(store: Store) -> None:
    heads = [HostMessage(role="system", text=text) for text in ("Be kind.", "Be brief.")]
    with HostAdapter(store, "a", window=8_000) as adapter:
        adapter.follow([*heads, HostMessage(role="user", text="hello")], system="You are Ada.")
    events = store.log.iterate(kind=Kind.SESSION)
    setups = [event.content for event in events if "window" in event.metadata]
    assert setups == ["You are Ada.\n\nBe kind.\n\nBe brief."]


def test_the_documented_example_of_an_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    requests: list[list[dict[str, Any]]] = []

    def ask_the_model(request: list[dict[str, Any]]) -> str:
        requests.append(request)
        return f"Answer {len(requests)}."

    names = run_snippet("FRAMEWORKS.md", "Write an adapter", {"ask_the_model": ask_the_model})
    assert len(names["history"]) == 120
    assert len(requests[-1]) < 119, "old messages left the request"
    assert requests[-1][-1]["content"].startswith("Question 59.")


def test_the_documented_snippet_for_pydantic_ai(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = pytest.importorskip("pydantic_ai.models.function")
    from pydantic_ai.messages import ModelResponse, TextPart

    monkeypatch.chdir(tmp_path)
    model = models.FunctionModel(lambda *_: ModelResponse([TextPart("To Lisbon.")]))
    names = run_snippet("FRAMEWORKS.md", "pydantic-ai", {"model": model})
    assert names["answer"] == "To Lisbon."
