"""The scripted model plays its script, measures usage, and fails where it is told to."""

import threading
from pathlib import Path

import pytest

from scroll_context.errors import BadInput, ContextOverflow, ModelCancelled, ModelRefused
from scroll_context.messages import Message, ToolCall, ToolSpec, canonical
from scroll_context.models import Reply, Request, ScriptedModel, Usage, answer, connect, exec_cell
from scroll_context.models.scripted import Answer


def ask(*texts: str) -> Request:
    return Request(tuple(Message(role="user", text=text) for text in texts))


def test_entries_are_played_in_order() -> None:
    model = ScriptedModel(
        [
            exec_cell("x = 1", headline="bind x", text="Binding."),
            lambda request: f"you said {request.messages[-1].text}",
            answer("done"),
        ]
    )
    first = model.reply(ask("go"))
    assert first.text == "Binding."
    assert first.tool_calls == (
        ToolCall("call_0_0", "exec", {"source": "x = 1", "headline": "bind x"}),
    )
    assert first.finish_reason == "tool_call"
    assert model.reply(ask("go", "on")).text == "you said on"
    assert model.reply(ask("end")).text == "done"
    with pytest.raises(ModelRefused, match="3 entries"):
        model.reply(ask("more"))


def test_one_function_can_be_the_script() -> None:
    def script(request: Request, step: int) -> Answer:
        return f"{step}: {len(request.messages)}"

    model = ScriptedModel(script, name="echo", window=1000)
    assert [model.reply(ask("a")).text, model.reply(ask("a", "b")).text] == ["0: 1", "1: 2"]
    assert (model.name, model.window) == ("echo", 1000)


def test_a_fault_is_an_entry_and_takes_a_step() -> None:
    model = ScriptedModel(["one", ContextOverflow("too long", tokens=9), "two"])
    assert model.reply(ask("a")).text == "one"
    with pytest.raises(ContextOverflow) as caught:
        model.reply(ask("a"))
    assert caught.value.tokens == 9
    assert model.reply(ask("a")).text == "two"


def test_text_is_streamed_in_pieces_and_can_be_stopped() -> None:
    model = ScriptedModel(["abcdefgh"] * 2, chunk=3)
    pieces: list[str] = []
    model.reply(ask("a"), on_text=pieces.append)
    assert pieces == ["abc", "def", "gh"]
    cancel = threading.Event()
    with pytest.raises(ModelCancelled) as caught:
        model.reply(ask("a"), on_text=lambda _: cancel.set(), cancel=cancel)
    assert caught.value.partial == "abc"


def test_usage_counts_the_repeated_beginning_as_cached() -> None:
    model = ScriptedModel(["ok"] * 4, count=len)
    tools = (ToolSpec("exec", "Run.", {"type": "object"}),)
    head = Message(role="system", text="s" * 1000)
    one = Message(role="user", text="u" * 500)
    first = model.reply(Request((head, one), tools)).usage
    size = sum(len(canonical(value)) for value in (tools, head, one))
    assert first == Usage(input_tokens=size, output_tokens=len(canonical(answer("ok").message())))

    marked = Message(role="user", text="u" * 500, cache_mark=True)
    second = model.reply(Request((head, marked, Message(role="user", text="new")), tools)).usage
    assert second.cache_read_tokens == size, "a cache mark must not change the prefix"
    assert second.input_tokens > size

    third = model.reply(
        Request((head, Message(role="user", text="u" * 250 + "v" * 250)), tools)
    ).usage
    shared = len(canonical(tools)) + len(canonical(head)) + 250
    assert shared < third.cache_read_tokens < shared + 40

    other = model.reply(Request((Message(role="system", text="t"), one))).usage
    assert other.cache_read_tokens < 30


def test_given_usage_is_left_alone() -> None:
    usage = Usage(input_tokens=5, output_tokens=6)
    assert ScriptedModel([Reply(text="x", usage=usage)]).reply(ask("a")).usage == usage


def test_the_same_script_gives_the_same_bytes() -> None:
    def play() -> list[bytes]:
        model = ScriptedModel([exec_cell("1"), "two", answer("three")])
        return [canonical(model.reply(ask("a", *"bcd"[:step]))) for step in range(3)]

    assert play() == play()


def test_only_the_newest_requests_are_kept() -> None:
    model = ScriptedModel(lambda _request, _step: "ok", keep=2)
    for text in "abc":
        model.reply(ask(text))
    assert [request.messages[0].text for request in model.requests] == ["b", "c"]
    assert model.steps == 3


def test_a_script_can_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_bytes(canonical(["hello", exec_cell("x = 1")]))
    model = connect(f"scripted:{path}", window=4000)
    assert model.window == 4000
    assert model.reply(ask("a")).text == "hello"
    assert model.reply(ask("a")).tool_calls[0].arguments == {"source": "x = 1"}
    path.write_text('{"not": "a list"}')
    with pytest.raises(BadInput, match="not a script"):
        connect(f"scripted:{path}")
    with pytest.raises(BadInput, match="cannot read"):
        connect(f"scripted:{path}.gone")
