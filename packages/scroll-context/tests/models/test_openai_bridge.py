"""The bridge to OpenAI-compatible servers, against a real HTTP server: what arrives there and what
comes back.
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="the models extra is not installed")

from openai_server import (
    call_delta,
    cut,
    endless,
    error_in_stream,
    meet,
    no_choices,
    streamed,
    text_deltas,
    whole,
)
from provider_server import ProviderServer, fault
from scroll_context.errors import (
    ContextOverflow,
    ModelCancelled,
    ModelError,
    ModelRefused,
    ModelUnavailable,
)
from scroll_context.messages import Message, Thinking, ToolCall, ToolSpec, canonical
from scroll_context.models import Model, Request, Settings, connect, with_retries

KEY = "sk-test-1234567890abcdef"
EXEC = ToolSpec(
    "exec",
    "Run a cell.",
    {
        "type": "object",
        "properties": {"source": {"type": "string"}, "headline": {"type": "string"}},
        "required": ["source"],
    },
)
HELLO = Request(
    (Message(role="system", text="Be brief."), Message(role="user", text="Hello?")), (EXEC,)
)


def model_at(server: ProviderServer, **options: Any) -> Model:
    return connect(
        "openai:tiny", base_url=server.url + "/v1", api_key=KEY, **{"retries": 0, **options}
    )


@pytest.fixture(params=[True, False], ids=["streamed", "whole"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("MODEL_LENGTH", "length"),
        ("content_filter", "content_filter"),
        ("guardrail_intervened", "guardrail_intervened"),
    ],
)
def test_a_reply_says_why_it_ended_in_whatever_words_the_server_has(
    stream: bool, said: str, known: str
) -> None:
    play = (
        streamed(*text_deltas("Half a sent"), finish=said)
        if stream
        else whole({"content": "Half"}, finish=said)
    )
    with ProviderServer(play) as server:
        assert model_at(server, stream=stream).reply(HELLO).finish_reason == known


def test_connect_asks_again_when_a_provider_failed_for_now() -> None:
    waits: list[int] = []
    busy = fault(503, {"error": {"message": "loading"}}, {"retry-after": "0"})
    with ProviderServer(busy, busy, streamed(*text_deltas("up"))) as server:
        model = model_at(server, retries=2, on_retry=lambda failed, *_: waits.append(failed))
        assert (model.name, model.reply(HELLO).text, waits) == ("openai:tiny", "up", [1, 2])
    with (
        ProviderServer(busy, busy, busy) as server,
        pytest.raises(ModelUnavailable, match="loading"),
    ):
        model_at(server, retries=1).reply(HELLO)
    assert len(server.bodies) == 2


def test_retries_are_not_multiplied_by_asking_for_them_twice() -> None:
    busy = fault(503, {"error": {"message": "loading"}}, {"retry-after": "0"})
    with ProviderServer(*[busy] * 9) as server, pytest.raises(ModelUnavailable):
        with_retries(model_at(server, retries=3), attempts=2, first_wait=0.0).reply(HELLO)
    assert len(server.bodies) == 2


def test_an_answer_is_streamed_and_measured() -> None:
    with ProviderServer(streamed(*text_deltas("Good ", "mor", "ning."))) as server:
        pieces: list[str] = []
        threads: list[threading.Thread] = []

        def on_text(piece: str) -> None:
            pieces.append(piece)
            threads.append(threading.current_thread())

        reply = model_at(server).reply(HELLO, on_text=on_text)
    assert reply.text == "Good morning." == "".join(pieces)
    assert len(pieces) > 1
    assert set(threads) == {threading.current_thread()}
    assert (reply.finish_reason, reply.model, reply.cost) == ("stop", "tiny-1", None)
    assert reply.usage.is_known
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cache_read_tokens) == (
        120,
        7,
        96,
    )


def test_the_request_on_the_wire() -> None:
    settings = Settings(max_tokens=300, temperature=0.5, extra={"seed": 7})
    with ProviderServer(streamed(*text_deltas("ok"))) as server:
        request = Request(HELLO.messages, HELLO.tools, Settings(temperature=0.0))
        model_at(server, settings=settings).reply(request)
    (body,) = server.bodies
    assert server.paths == ["/v1/chat/completions"]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello?"},
    ]
    function = {"name": "exec", "description": "Run a cell.", "parameters": EXEC.parameters}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert (body["model"], body["max_tokens"], body["temperature"], body["seed"]) == (
        "tiny",
        300,
        0.0,
        7,
    )
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}


def test_a_whole_reply_without_streaming() -> None:
    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "exec", "arguments": '{"source": "1+1"}'},
    }
    play = whole(
        {"content": "<think>\nadd them</think>\n\nLet me see.", "tool_calls": [call]}, "tool_calls"
    )
    with ProviderServer(play) as server:
        pieces: list[str] = []
        reply = model_at(server, stream=False).reply(HELLO, on_text=pieces.append)
    assert "stream" not in server.bodies[0] or server.bodies[0]["stream"] is False
    assert (reply.text, pieces) == ("Let me see.", ["Let me see."])
    assert [thought.text for thought in reply.thinking] == ["\nadd them"]
    assert reply.tool_calls == (ToolCall("a", "exec", {"source": "1+1"}),)
    assert (reply.finish_reason, reply.usage.cache_read_tokens) == ("tool_call", 96)


def test_parallel_calls_whose_arguments_come_in_pieces() -> None:
    deltas = [
        call_delta(0, "a", "exec", '{"source": "x ='),
        call_delta(0, "", "", ' 1"}'),
        call_delta(1, "b", "exec", ""),
        call_delta(1, "", "", '{"source": "y = 2"}'),
    ]
    with ProviderServer(streamed(*deltas, finish="tool_calls")) as server:
        reply = model_at(server).reply(HELLO)
    assert reply.tool_calls == (
        ToolCall("a", "exec", {"source": "x = 1"}),
        ToolCall("b", "exec", {"source": "y = 2"}),
    )
    assert (reply.text, reply.finish_reason) == ("", "tool_call")


def test_characters_that_were_cut_in_half_are_whole_again() -> None:
    cut = [
        *text_deltas("a \ud83d", "\ude00 b", " \ud83d c"),
        call_delta(0, "a", "exec", '{"source": "\ud83d'),
    ]
    pieces: list[str] = []
    with ProviderServer(
        streamed(*cut, call_delta(0, "", "", '\ude00"}'), finish="tool_calls")
    ) as server:
        reply = model_at(server).reply(HELLO, on_text=pieces.append)
    assert reply.text == "".join(pieces) == "a 😀 b \ufffd c"
    assert reply.tool_calls == (ToolCall("a", "exec", {"source": "😀"}),)
    canonical(reply)


def test_calls_that_share_an_id_are_told_apart() -> None:
    calls = [
        {
            "id": "same",
            "type": "function",
            "function": {"name": "exec", "arguments": json.dumps({"source": source})},
        }
        for source in ("x", "y", "z")
    ]
    with ProviderServer(whole({"tool_calls": calls}, "tool_calls")) as server:
        reply = model_at(server, stream=False).reply(HELLO)
    assert [call.arguments for call in reply.tool_calls] == [
        {"source": "x"},
        {"source": "y"},
        {"source": "z"},
    ]
    assert len({call.id for call in reply.tool_calls}) == 3


DEEP = '{"a":' * 200_000 + "1" + "}" * 200_000  # more than any version of Python follows


@pytest.mark.parametrize(
    "raw", ['{"source": "print(', "print(1)", '["a"]', '"text"', '{"n": NaN}', DEEP]
)
def test_malformed_arguments_are_kept_and_can_be_answered(raw: str) -> None:
    with ProviderServer(
        streamed(call_delta(0, "a", "exec", raw), finish="tool_calls"),
        streamed(*text_deltas("I see.")),
    ) as server:
        model = model_at(server)
        reply = model.reply(HELLO)
        (call,) = reply.tool_calls
        assert call.arguments == raw
        answer = Message(
            role="tool", text="the arguments are not a JSON object", tool_call_id="a", name="exec"
        )
        model.reply(Request((*HELLO.messages, reply.message(), answer), HELLO.tools))
    sent = server.bodies[1]["messages"]
    assert raw in json.loads(sent[2]["tool_calls"][0]["function"]["arguments"]).values()
    assert sent[3] == {"role": "tool", "tool_call_id": "a", "content": answer.text}


def test_missing_arguments_are_an_empty_object() -> None:
    with ProviderServer(streamed(call_delta(0, "a", "exec", ""), finish="tool_calls")) as server:
        (call,) = model_at(server).reply(HELLO).tool_calls
    assert call == ToolCall("a", "exec", {})


def test_a_conversation_arrives_without_orphans_and_without_empty_texts() -> None:
    history = (
        Message(role="system", text="Be brief."),
        Message(role="tool", text="lost its call", tool_call_id="gone", name="exec"),
        Message(role="user", text="Do it.", cache_mark=True),
        Message(role="user", text="  \n"),
        Message(
            role="assistant",
            tool_calls=(ToolCall("a", "exec", {"source": "x"}), ToolCall("b", "exec", {})),
        ),
        Message(role="tool", text="", tool_call_id="a", name="exec", cache_mark=True),
        Message(role="tool", text="again", tool_call_id="a", name="exec"),
        Message(role="assistant"),
        Message(role="user", text="And?"),
    )
    with ProviderServer(streamed(*text_deltas("ok"))) as server:
        model_at(server).reply(Request(history))
    sent = server.bodies[0]["messages"]
    assert [message["role"] for message in sent] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    assert [call["id"] for call in sent[2]["tool_calls"]] == ["a", "b"]
    assert [message["tool_call_id"] for message in sent[3:5]] == ["a", "b"]
    assert all(
        isinstance(message["content"], str) and message["content"].strip()
        for message in sent
        if message != sent[2]
    )
    assert "tools" not in server.bodies[0]


def test_later_system_messages_become_one_at_the_head() -> None:
    history = (
        Message(role="system", text="One."),
        Message(role="system", text="Two."),
        Message(role="user", text="?"),
    )
    with ProviderServer(streamed(*text_deltas("ok"))) as server:
        model_at(server).reply(Request(history))
    assert server.bodies[0]["messages"][0] == {"role": "system", "content": "One.\n\nTwo."}


def test_reasoning_in_a_field_comes_back_in_that_field() -> None:
    deltas = [*text_deltas("add ", "them", field="reasoning_content"), *text_deltas("Two.")]
    with ProviderServer(streamed(*deltas)) as server:
        model = model_at(server)
        pieces: list[str] = []
        reply = model.reply(HELLO, on_text=pieces.append)
        assert ("".join(pieces), reply.text) == ("Two.", "Two.")
        assert [thought.text for thought in reply.thinking] == ["add them"]
        foreign = Thinking(text="secret", signature="s", provider="anthropic")
        other = Message(role="assistant", text="Three.", thinking=(foreign,))
        model.reply(
            Request((*HELLO.messages, reply.message(), HELLO.messages[1], other, HELLO.messages[1]))
        )
    sent = server.bodies[1]["messages"]
    assert sent[2] == {"role": "assistant", "content": "Two.", "reasoning_content": "add them"}
    assert sent[4] == {"role": "assistant", "content": "Three."}


def test_think_tags_cut_anywhere_are_not_shown() -> None:
    text = "<think>is it 4 < 5?</think>\n\nYes, <think> is a tag."
    with ProviderServer(streamed(*text_deltas(*text))) as server:
        model = model_at(server)
        pieces: list[str] = []
        reply = model.reply(HELLO, on_text=pieces.append)
        assert reply.text == "".join(pieces) == "Yes, <think> is a tag."
        assert [thought.text for thought in reply.thinking] == ["is it 4 < 5?"]
        model.reply(Request((*HELLO.messages, reply.message(), HELLO.messages[1])))
    assert server.bodies[1]["messages"][2] == {"role": "assistant", "content": text}


def test_missing_usage_is_unknown(stream: bool) -> None:
    play = (
        streamed(*text_deltas("ok"), usage=None) if stream else whole({"content": "ok"}, usage=None)
    )
    with ProviderServer(play) as server:
        reply = model_at(server, stream=stream).reply(HELLO)
    assert reply.text == "ok"
    assert not reply.usage.is_known


def test_a_rate_limit_says_how_long_to_wait(stream: bool) -> None:
    body = {"error": {"message": "slow down", "type": "rate_limit", "code": "rate_limit_exceeded"}}
    with ProviderServer(fault(429, body, {"retry-after": "7"})) as server:
        with pytest.raises(ModelUnavailable, match="slow down") as caught:
            model_at(server, stream=stream).reply(HELLO)
        assert caught.value.retry_after == 7.0
    assert len(server.bodies) == 1, "the client library retried on its own"


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (500, {"error": {"message": "boom"}}, ModelUnavailable, "boom"),
        (502, "<html>bad gateway</html>", ModelUnavailable, "bad gateway"),
        (503, {"error": {"message": "loading"}}, ModelUnavailable, "loading"),
        (529, {"error": {"message": "overloaded"}}, ModelUnavailable, "overloaded"),
        (400, {"error": {"message": "bad schema"}}, ModelRefused, "bad schema"),
        (401, {"error": {"message": f"Incorrect API key: {KEY}"}}, ModelRefused, "API key"),
        (
            401,
            {"error": {"message": "bad key sk-proj-ab12***********9xyz"}},
            ModelRefused,
            "API key",
        ),
        (403, {"error": {"message": "not for you"}}, ModelRefused, "not for you"),
        (404, {"error": {"message": "no such model"}}, ModelRefused, "base URL"),
        (422, {"detail": "unprocessable"}, ModelRefused, "unprocessable"),
        (
            429,
            {"error": {"message": "no money", "code": "insufficient_quota"}},
            ModelRefused,
            "credit",
        ),
    ],
)
def test_faults_have_a_kind_and_a_remedy(
    status: int, body: object, kind: type[ModelError], says: str
) -> None:
    with ProviderServer(fault(status, body)) as server, pytest.raises(kind, match=says) as caught:
        model_at(server).reply(HELLO)
    assert type(caught.value) is kind
    assert str(status) in str(caught.value)
    assert "sk-" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert len(server.bodies) == 1


def test_a_key_of_any_form_stays_out_of_the_text() -> None:
    key = "correct horse battery"
    body = {"error": {"message": f"unknown user {key}"}}
    with (
        ProviderServer(fault(401, body)) as server,
        pytest.raises(ModelRefused, match="unknown user") as caught,
    ):
        connect("openai:tiny", base_url=server.url, api_key=key, retries=0).reply(HELLO)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("message", "code", "tokens", "limit"),
    [
        (
            (
                "This model's maximum context length is 8192 tokens. However, your "
                "messages resulted in 10233 tokens."
            ),
            "context_length_exceeded",
            10233,
            8192,
        ),
        (
            (
                "maximum context length is 4096 tokens, you requested 5000 tokens (4000 "
                "in the messages, 1000 in the rest)"
            ),
            None,
            4000,
            4096,
        ),
        (
            (
                "'max_tokens' is too large: 1000. This model's maximum context length is "
                "4096 and it has 3500 input tokens"
            ),
            None,
            3500,
            4096,
        ),
        (
            "The input (5,000 tokens) is longer than the model's context length (4,096 tokens).",
            None,
            5000,
            4096,
        ),
        (
            "the request exceeds the available context size (4096 tokens), try increasing it",
            None,
            None,
            4096,
        ),
        (
            "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
            None,
            5000,
            4096,
        ),
        (
            "Your input exceeds the context window of this model.",
            "context_length_exceeded",
            None,
            None,
        ),
    ],
)
def test_overflow_is_recognised_with_the_counts(
    message: str, code: str | None, tokens: int | None, limit: int | None
) -> None:
    body = {"error": {"message": message, "type": "invalid_request_error", "code": code}}
    with ProviderServer(fault(400, body)) as server, pytest.raises(ContextOverflow) as caught:
        model_at(server).reply(HELLO)
    assert (caught.value.tokens, caught.value.limit) == (tokens, limit)


def test_overflow_with_the_counts_beside_the_text() -> None:
    said = {
        "message": "the request exceeds the available context size",
        "n_prompt_tokens": 5000,
        "n_ctx": 4096,
    }
    with (
        ProviderServer(fault(500, {"error": said})) as server,
        pytest.raises(ContextOverflow) as caught,
    ):
        model_at(server).reply(HELLO)
    assert (caught.value.tokens, caught.value.limit) == (5000, 4096)


def test_a_rate_limit_on_tokens_is_not_an_overflow() -> None:
    body = {"error": {"message": "Limit 30000 tokens a minute, reduce the length of the messages"}}
    with ProviderServer(fault(429, body)) as server, pytest.raises(ModelUnavailable):
        model_at(server).reply(HELLO)


@pytest.mark.parametrize("chunked", [True, False])
def test_a_cut_stream_is_a_fault_and_not_a_short_answer(chunked: bool) -> None:
    with ProviderServer(cut("The answer is", " 4", chunked=chunked)) as server:
        pieces: list[str] = []
        with pytest.raises(ModelUnavailable):
            model_at(server).reply(HELLO, on_text=pieces.append)
    assert "".join(pieces) == "The answer is 4"


def test_an_error_inside_the_stream() -> None:
    with (
        ProviderServer(error_in_stream) as server,
        pytest.raises(ModelUnavailable, match="engine restarted"),
    ):
        model_at(server).reply(HELLO)


def test_an_answer_without_choices_is_a_fault(stream: bool) -> None:
    with ProviderServer(no_choices) as server, pytest.raises(ModelUnavailable):
        model_at(server, stream=stream).reply(HELLO)


def test_a_success_that_is_not_json_is_a_fault(stream: bool) -> None:
    with (
        ProviderServer(fault(200, "<html>log in</html>")) as server,
        pytest.raises(ModelUnavailable),
    ):
        model_at(server, stream=stream).reply(HELLO)


def test_nobody_listens() -> None:
    with ProviderServer(no_choices) as server:
        url = server.url
    with pytest.raises(ModelUnavailable, match="openai:tiny"):
        connect("openai:tiny", base_url=url, api_key=KEY, retries=0).reply(HELLO)


def test_cancel_stops_the_reply_and_closes_the_connection() -> None:
    cancel = threading.Event()
    with ProviderServer(endless("I am ", "thinking")) as server:

        def on_text(piece: str) -> None:
            if "thinking" in piece:
                cancel.set()

        with pytest.raises(ModelCancelled) as caught:
            model_at(server).reply(HELLO, on_text=on_text, cancel=cancel)
        assert caught.value.partial == "I am thinking"
        assert server.client_left.wait(60)


def test_a_timeout_stops_the_reply() -> None:
    with ProviderServer(*[endless("I am") for _ in range(3)]) as server:
        for seconds in (0.3, 3.0, 30.0):  # until there was time to ask at all
            with pytest.raises(ModelUnavailable, match=f"within {seconds:g} s"):
                model_at(server).reply(HELLO, timeout=seconds)
            if server.bodies:
                break
        assert server.client_left.wait(60)


def test_ctrl_c_stops_the_reply() -> None:
    with ProviderServer(endless("I am", interrupt=True)) as server:
        with pytest.raises(KeyboardInterrupt):
            model_at(server).reply(HELLO)
        assert server.client_left.wait(60)


def test_an_error_in_the_callback_is_the_callers_own() -> None:
    def on_text(piece: str) -> None:
        raise ZeroDivisionError(piece)

    with ProviderServer(endless("I am")) as server:
        with pytest.raises(ZeroDivisionError):
            model_at(server).reply(HELLO, on_text=on_text)
        assert server.client_left.wait(60)


def test_replies_of_several_threads_run_at_once() -> None:
    with ProviderServer(meet(threading.Barrier(4))) as server:
        model, other = model_at(server), model_at(server)
        with ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(lambda each: each.reply(HELLO), [model, other, model, other]))
    assert [reply.text for reply in replies] == ["met"] * 4


def test_retries_end_at_the_first_good_reply() -> None:
    limited = fault(429, {"error": {"message": "slow down"}}, {"retry-after-ms": "20"})
    waits: list[float] = []
    with ProviderServer(
        limited, fault(500, {}), cut("Th", chunked=True), streamed(*text_deltas("Thanks"))
    ) as server:
        model = with_retries(
            model_at(server), first_wait=0.001, on_retry=lambda _n, wait, _why: waits.append(wait)
        )
        reply = model.reply(HELLO)
    assert reply.text == "Thanks"
    assert len(server.bodies) == 4
    assert waits[0] == 0.02
    assert len(waits) == 3


def test_a_refusal_is_not_retried() -> None:
    with (
        ProviderServer(fault(400, {"error": {"message": "bad"}})) as server,
        pytest.raises(ModelRefused),
    ):
        with_retries(model_at(server), first_wait=0.001).reply(HELLO)
    assert len(server.bodies) == 1
