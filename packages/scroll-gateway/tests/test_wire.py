"""Request bodies of the three protocols: read into HostMessages, and built again from a layout."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider_rules import broken_rule, normal_form
from scroll_context.messages import Media, Thinking, ToolCall
from scroll_context.session.host import Drop, HostMessage, Insert, Item, Keep, Layout, Replace
from scroll_gateway.wire.chat import Chat
from scroll_gateway.wire.layouts import apply
from scroll_gateway.wire.messages import Messages
from scroll_gateway.wire.protocol import Protocol, is_reminder
from scroll_gateway.wire.requests import ListReader, WireRequest
from scroll_gateway.wire.responses import Responses
from scroll_gateway.wire.slices import UnreadableBody, common_prefix
from wire_bodies import MARK, PIXEL, bodies

PROTOCOLS: dict[str, Protocol] = {
    "messages": Messages(),
    "chat": Chat(),
    "responses": Responses(),
}
# An index and a notice have a heading, so they are never blank, which providers would refuse.
inserted_texts = st.text(min_size=1, max_size=9).filter(str.strip)
every_protocol = pytest.mark.parametrize("name", sorted(PROTOCOLS))


def read(name: str, body: Any) -> WireRequest:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ListReader(PROTOCOLS[name]).read(content)


def bare(message: HostMessage) -> HostMessage:
    """A message without its wire form."""
    return msgspec.structs.replace(message, raw=b"", wire=None)


@st.composite
def layouts(draw: st.DrawFn, messages: list[HostMessage]) -> Layout:
    """Any layout, sensible or not; the last message stays."""
    items: list[Item] = []
    for number, message in enumerate(messages):
        if draw(st.integers(0, 6)) == 0:
            items.append(Insert(draw(inserted_texts), is_index=draw(st.booleans())))
        is_last = number + 1 == len(messages)
        choice = 0 if is_last or message.role == "system" else draw(st.integers(0, 4))
        if choice <= 1:
            items.append(Keep(number, thinking=choice == 0))
        elif choice == 2:
            calls = tuple(ToolCall(call.id, call.name, {"n": "…"}) for call in message.calls)
            items.append(Replace(number, draw(st.sampled_from(["folded", ""])), calls))
        else:
            items.append(Drop(number))
    return Layout(items=tuple(items), tail=draw(st.sampled_from(["", "Variables: none"])))


@every_protocol
@given(data=st.data())
def test_an_unchanged_layout_sends_the_clients_bytes(name: str, data: st.DataObject) -> None:
    body = data.draw(bodies(name))
    request = read(name, body)
    everything = tuple(Keep(number) for number in range(len(request.messages)))
    assert apply(request, Layout(items=everything)) == body


@every_protocol
@given(data=st.data())
def test_the_slices_of_a_message_are_its_exact_bytes(name: str, data: st.DataObject) -> None:
    body = data.draw(bodies(name))
    request = read(name, body)
    for position, message in enumerate(request.wire):
        slices = [part.message.raw for part in message.parts]
        assert b"".join(slices) == message.span.of(body)
        assert all(part.message.wire == position for part in message.parts)


@every_protocol
@settings(max_examples=150)
@given(data=st.data())
def test_any_layout_gives_a_request_that_providers_accept(name: str, data: st.DataObject) -> None:
    request = read(name, data.draw(bodies(name)))
    layout = data.draw(layouts(request.messages))
    sent = json.loads(apply(request, layout))
    assert broken_rule(name, sent) == ""
    if layout.tail:
        assert layout.tail in json.dumps(sent)


@every_protocol
@given(data=st.data())
def test_messages_that_stay_keep_their_bytes(name: str, data: st.DataObject) -> None:
    """Dropping the first step leaves the other messages, byte for byte."""
    request = read(name, data.draw(bodies(name)))
    first_reply = next(
        number for number, message in enumerate(request.messages) if message.role == "assistant"
    )
    items = [
        Drop(number) if number == first_reply else Keep(number)
        for number in range(len(request.messages))
    ]
    sent = apply(request, Layout(items=tuple(items)))
    step = request.messages[first_reply].wire
    call_ids = {call.id for call in request.messages[first_reply].calls}
    for message in request.wire[step + 1 :]:
        if not any(part.message.call_id in call_ids for part in message.parts):
            assert message.span.of(request.body) in sent


@every_protocol
@given(data=st.data())
def test_a_longer_list_is_read_as_if_it_were_new(name: str, data: st.DataObject) -> None:
    """The reader of a conversation gives what a fresh reader gives, whatever came before."""
    reader = ListReader(PROTOCOLS[name])
    field = PROTOCOLS[name].list_field
    style = {"separators": (",", ":")} if data.draw(st.booleans()) else {"indent": 1}
    body = json.loads(data.draw(bodies(name)))
    items = body[field]
    for _ in range(3):
        body[field] = items[: data.draw(st.integers(0, len(items)))]
        content = json.dumps(body, **style).encode()
        request = reader.read(content)
        fresh = read(name, content)
        assert request.wire == fresh.wire
        assert request.fields == fresh.fields
        assert request.messages == fresh.messages


def test_known_messages_are_the_same_objects_in_the_next_request() -> None:
    reader = ListReader(Chat())
    messages = [{"role": "user", "content": f"message {number}"} for number in range(9)]
    first = reader.read(json.dumps({"messages": messages[:8]}).encode())
    second = reader.read(json.dumps({"messages": messages}).encode())
    assert second.reused == 7
    for before, after in zip(first.messages[:7], second.messages[:7], strict=True):
        assert before is after


@given(st.binary(max_size=40), st.binary(max_size=20), st.binary(max_size=20))
def test_common_prefix_is_the_longest(start: bytes, first: bytes, second: bytes) -> None:
    size = common_prefix(start + first, start + second)
    assert (start + first)[:size] == (start + second)[:size]
    assert (start + first)[size : size + 1] != (start + second)[size : size + 1] or size == min(
        len(start + first), len(start + second)
    )


def test_common_prefix_looks_beyond_one_chunk() -> None:
    assert common_prefix(b"a" * 200_000 + b"b", b"a" * 200_000 + b"cd") == 200_000


def test_messages_splits_a_user_message_into_results_reminders_and_words() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
    }
    result = {"type": "tool_result", "tool_use_id": "t1", "is_error": True}
    result["content"] = [{"type": "text", "text": "no such file"}, image]
    reminder = {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"}
    words = {"type": "text", "text": "And now?"}
    request = read(
        "messages",
        {
            "messages": [
                {"role": "assistant", "content": [thought, call]},
                {"role": "user", "content": [result, reminder, words, image]},
                {"role": "system", "content": "The date changed."},
            ]
        },
    )
    pixel = Media(media_type="image/png", data=b"\x89PNG a pixel")
    assert [bare(message) for message in request.messages] == [
        HostMessage(
            role="assistant",
            calls=(ToolCall("t1", "read", {"path": "a"}),),
            thinking=(Thinking(text="hm", signature="s", provider="anthropic"),),
        ),
        HostMessage(
            role="tool",
            text="no such file",
            call_id="t1",
            name="read",
            state="error",
            media=(pixel,),
        ),
        HostMessage(role="user", text=reminder["text"], notice=True),
        HostMessage(role="user", text="And now?", media=(pixel,)),
        HostMessage(role="system", text="The date changed.", notice=True),
    ]


def test_a_moved_cache_mark_leaves_the_message_equal() -> None:
    marked = [{"type": "text", "text": "Hello", "cache_control": MARK}]
    with_mark = read("messages", {"messages": [{"role": "user", "content": marked}]})
    without = read("messages", {"messages": [{"role": "user", "content": "Hello"}]})
    assert [bare(m) for m in with_mark.messages] == [bare(m) for m in without.messages]


def test_the_index_gets_a_copy_of_the_newest_cache_mark_while_there_is_room() -> None:
    def body(marks: int) -> dict[str, Any]:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
        for number in range(marks):
            block = {"type": "text", "text": str(number), "cache_control": MARK}
            messages.append({"role": "user", "content": [block]})
        return {"messages": messages, "tools": [{"name": "a", "cache_control": {"type": "old"}}]}

    for marks, copies in ((0, 1), (2, 1), (3, 0)):
        request = read("messages", body(marks))
        items = [Drop(0), Insert("The index", is_index=True)]
        items += [Keep(number) for number in range(1, marks + 1)]
        sent = json.loads(apply(request, Layout(items=tuple(items))))
        index = sent["messages"][0]["content"][0]
        expected = MARK if marks else {"type": "old"}
        assert index["text"] == "The index"
        assert ("cache_control" in index) == bool(copies)
        assert index.get("cache_control", expected) == expected


def test_chat_keeps_the_system_prompt_and_calls_later_system_messages_notices() -> None:
    messages = [
        {"role": "system", "content": "Be exact."},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "system", "content": "The date changed."},
    ]
    request = read("chat", {"messages": messages})
    assert [(m.role, m.notice) for m in request.messages] == [
        ("system", False),
        ("system", False),
        ("user", False),
        ("system", True),
    ]


def test_responses_joins_the_items_of_a_reply_and_drops_ids_with_the_reasoning() -> None:
    items = [
        {"type": "message", "role": "user", "content": "Hello"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret"},
        {
            "type": "message",
            "id": "m_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look."}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c1",
            "name": "read",
            "arguments": '{"n":1}',
        },
        {"type": "function_call_output", "call_id": "c1", "output": "long text"},
    ]
    request = read("responses", {"input": items})
    assert [message.role for message in request.messages] == ["user", "assistant", "tool"]
    reply = request.messages[1]
    assert (reply.text, reply.calls) == ("I look.", (ToolCall("c1", "read", {"n": 1}),))
    layout = Layout(items=(Keep(0), Keep(1, thinking=False), Replace(2, "[folded]")))
    sent = json.loads(apply(request, layout))["input"]
    assert [item.get("id") for item in sent] == [None] * 4
    assert sent[-1] == {**items[-1], "output": "[folded]"}


def test_reasoning_of_a_reply_that_was_cut_off_is_not_sent() -> None:
    """Codex that was killed during a reply keeps its reasoning alone, which providers refuse."""
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret"}
    asked = {"type": "message", "role": "user", "content": "Hello"}
    again = {"type": "message", "role": "user", "content": "Read on."}
    listed = {"input": [asked, reasoning, again]}
    assert "without its required following item" in broken_rule("responses", listed)
    request = read("responses", listed)
    assert [message.role for message in request.messages] == ["user", "assistant", "user"]
    unchanged = Layout(items=(Keep(0), Keep(1), Keep(2)))
    sent = json.loads(apply(request, unchanged))
    assert sent["input"] == [asked, again] and broken_rule("responses", sent) == ""
    answered = {"type": "message", "role": "assistant", "content": "Hello."}
    complete = read("responses", {"input": [asked, reasoning, answered, again]})
    assert apply(complete, unchanged) == complete.original


def test_a_space_beside_thinking_leaves_with_it() -> None:
    """opencode writes an empty text as a space, if the reply has thinking."""
    space = {"type": "text", "text": " "}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    text = {"type": "text", "text": "I look."}
    replies = [[space, thought, text], [thought, space]]
    listed = [{"role": "user", "content": "Begin."}]
    for reply in replies:
        listed += [{"role": "assistant", "content": reply}, {"role": "user", "content": "More."}]
    request = read("messages", {"messages": listed})
    items = tuple(Keep(place, thinking=place == 0) for place in range(len(listed)))
    sent = json.loads(apply(request, Layout(items=items)))
    assert broken_rule("messages", sent) == ""
    assert sent["messages"] == [listed[0], {**listed[1], "content": [text]}, listed[2], listed[4]]


def test_tools_that_stand_in_the_list_are_always_sent() -> None:
    """Codex gives newer models their tools as an item of the list."""
    tools = {"type": "additional_tools", "role": "developer", "tools": [{"name": "exec"}]}
    call = {"type": "function_call", "namespace": "mcp__scroll", "name": "expand"}
    items = [
        tools,
        {"type": "message", "role": "user", "content": "Begin."},
        {**call, "call_id": "c1", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
        tools,
    ]
    request = ListReader(Responses()).read(json.dumps({"input": items, "model": "m"}).encode())
    assert request.has_tools
    assert [message.role for message in request.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "system",
    ]
    assert not any(message.notice for message in request.messages)
    assert request.messages[3].name == "mcp__scroll__expand"
    assert not ListReader(Responses()).read(json.dumps({"input": [items[1]]}).encode()).has_tools


def test_a_conversation_that_the_provider_keeps_is_not_read() -> None:
    for name, body in (
        ("responses", {"input": "Go on.", "previous_response_id": "resp_1"}),
        ("messages", {"messages": [], "thread": {"id": "t"}}),
    ):
        with pytest.raises(UnreadableBody):
            read(name, body)


def test_the_input_of_a_response_may_be_a_string() -> None:
    request = read("responses", {"input": "Hello", "model": "m"})
    assert [bare(m) for m in request.messages] == [HostMessage(role="user", text="Hello")]
    assert apply(request, Layout(items=(Keep(0),))) == request.original
    sent = json.loads(apply(request, Layout(items=(Insert("An index"), Keep(0)))))
    assert sent["input"][1] == {"role": "user", "content": "Hello"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"messages": 3}',
        b'{"messages": [{"role": "wizard", "content": "x"}]}',
        b'{"messages": [], "messages": []}',
        b'{"messages": [{"role": "user"}]}',
        b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}',
    ],
)
def test_a_body_of_another_shape_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableBody):
        read("messages", body)


def test_text_after_a_cache_mark_does_not_change_the_bytes_before_it() -> None:
    block = {"type": "text", "text": "Hello", "cache_control": MARK}
    request = read("messages", {"messages": [{"role": "user", "content": [block]}]})
    sent = apply(request, Layout(items=(Keep(0),), tail="Variables: none"))
    assert sent.startswith(request.body[: request.wire[0].span.end - len("]}")])
    assert normal_form("messages", json.loads(sent))[1].endswith(b'"Variables: none"}]}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<system-reminder>a</system-reminder>\n", True),
        (" <turn_aborted>a</turn_aborted> <system-reminder>b</system-reminder>", True),
        ("<system-reminder>a</system-reminder> and my own words", False),
        ("<system-reminder>a", False),
        ("", False),
        # One pattern for all blocks took twice as long for each further block.
        ("<system-reminder>a</system-reminder>\n" * 5_000 + "my own words", False),
        ("<system-reminder>a</system-reminder>\n" * 5_000, True),
    ],
    ids=["one", "two", "words", "open", "empty", "many with words", "many"],
)
def test_a_reminder_is_a_text_of_nothing_but_added_blocks(text: str, expected: bool) -> None:
    assert is_reminder(text) is expected


HALF = rb"\ud83d"


@pytest.mark.parametrize("text", [HALF, HALF + b" and more", rb"\\" + HALF, rb"\ude00" + HALF])
def test_half_an_emoji_is_read_and_sent_as_it_came(text: bytes) -> None:
    """JavaScript cuts texts between the halves of a surrogate pair."""
    emoji = rb"\ud83d\ude00"
    messages = (
        b'{"role":"user","content":"' + text + b'"},{"role":"user","content":"' + emoji + b'"}'
    )
    body = b'{"messages":[' + messages + b',{"role":"user","content":"Go on."}]}'
    request = read("messages", body)
    assert "\ufffd" in request.messages[0].text
    assert request.messages[1].text == "\U0001f600"
    assert apply(request, Layout(items=(Keep(0), Keep(1), Keep(2)))) == body
    sent = apply(request, Layout(items=(Keep(0), Keep(1), Replace(2, "shorter"))))
    assert sent == body.replace(b"Go on.", b"shorter")


def test_an_escaped_backslash_before_a_u_is_no_surrogate() -> None:
    body = b'{"messages":[{"role":"user","content":"' + rb"\\ud83d " + HALF + b'"}]}'
    assert read("messages", body).messages[0].text == "\\ud83d \ufffd"
