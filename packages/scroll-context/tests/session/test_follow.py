"""Following a host's list: what is recorded, what is taken back, and what is sent."""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from forms import form
from scroll_context.events import Draft, Event, Kind
from scroll_context.log.redact import Redactor
from scroll_context.messages import ToolCall
from scroll_context.models import Reply
from scroll_context.session.explain import explain
from scroll_context.session.follow import HostList, known_beginning
from scroll_context.session.host import Drop, HostMessage, Insert, Keep, Layout, Replace
from scroll_context.session.media import wire_bytes
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.view.layout import lay_out
from scroll_context.view.tokens import estimate

Opened = Callable[..., Session]
PLAIN = SessionOptions(context="plain")
MESSAGES = (Kind.CONVERSATION, Kind.TOOL_RESULT, Kind.NOTICE)


def user(text: str, **fields: str) -> HostMessage:
    return HostMessage(role="user", text=text, **fields)


def assistant(text: str, *calls: ToolCall, id: str = "") -> HostMessage:
    return HostMessage(role="assistant", text=text, calls=calls, id=id)


def result(call_id: str, text: str) -> HostMessage:
    return HostMessage(role="tool", text=text, call_id=call_id, name="look")


def call(call_id: str) -> ToolCall:
    return ToolCall(call_id, "look", {"at": call_id})


def recorded(session: Session) -> list[Event]:
    """The events of a session that stand for messages."""
    return [event for event in session.events() if event.kind in MESSAGES]


def added(session: Session, messages: Sequence[HostMessage], window: int = 100_000) -> int:
    """How many messages are recorded when a session follows a list."""
    before = len(recorded(session))
    session.follow(messages, window=window)
    return len(recorded(session)) - before


def sent(layout: Layout, messages: Sequence[HostMessage]) -> list[str]:
    """The texts that a layout sends."""
    texts = []
    for item in layout:
        match item:
            case Insert():
                texts.append(item.text)
            case Replace():
                texts.append(item.text)
            case Keep():
                texts.append(messages[item.index].text)
    return texts


class FrameworkText(str):
    """A framework's own kind of text."""


# recording ---------------------------------------------------------------------------------------


def test_the_same_prompt_twice_is_two_messages_and_the_same_list_again_adds_nothing(
    store: Store, opened: Opened
) -> None:
    session = opened()
    history = [user("again")]
    assert added(session, history) == 1
    session.replied(Reply(text="yes"))
    history += [assistant("yes"), user("again")]
    assert added(session, history) == 1
    assert added(session, history) == 0
    session.close()
    with Session.resume(store, "s") as after_a_restart:
        assert added(after_a_restart, history) == 0
        assert added(after_a_restart, [*history, user("again")]) == 1
    texts = [event.content for event in store.log.iterate(session_id="s", kind=Kind.CONVERSATION)]
    assert texts == ["again", "yes", "again", "again"]


def test_a_head_that_the_host_trimmed_moves_to_the_index(opened: Opened) -> None:
    session = opened(options=PLAIN)
    history = []
    for n in range(6):
        history += [user(f"question {n}"), assistant(f"answer {n}")]
    assert added(session, history) == 12
    layout = session.follow(history[8:])
    texts = sent(layout, history[8:])
    assert "question 0" in texts[0] and "expand(" in texts[0], "the index comes first"
    assert texts[1:] == ["question 4", "answer 4", "question 5", "answer 5"]
    assert len(recorded(session)) == 12
    assert added(session, [*history[8:], user("question 0")]) == 1


def test_a_summary_at_the_head_comes_before_the_messages_that_remain(opened: Opened) -> None:
    session = opened(options=PLAIN)
    history = [user("one"), assistant("1"), user("two"), assistant("2"), user("three")]
    session.follow(history)
    compacted = [user("a summary of one"), *history[2:], assistant("3"), user("four")]
    layout = session.follow(compacted)
    texts = sent(layout, compacted)
    assert texts[1:] == ["a summary of one", "two", "2", "three", "3", "four"]
    assert len(recorded(session)) == 8
    assert sent(session.follow(compacted), compacted) == texts, "the order holds"


def test_steps_that_a_quoted_summary_replaces_move_to_the_index(opened: Opened) -> None:
    """Codex asks for a summary and then quotes it behind the user's own messages."""
    session = opened(options=PLAIN)
    steps = [
        message
        for number in (1, 2)
        for message in (assistant(f"step {number}", call(f"c{number}")), result(f"c{number}", "ok"))
    ]
    session.follow([user("one"), *steps, user("Write a summary."), assistant("the summary")])
    compacted = [user("one"), user("Another model wrote this:\nthe summary"), user("two")]
    layout = session.follow(compacted)
    first, index, *rest = sent(layout, compacted)
    assert (first, rest) == ("one", ["Another model wrote this:\nthe summary", "two"])
    assert "look(c1)" in index and "look(c2)" in index
    assert "Write a summary" not in index
    quote = next(event for event in recorded(session) if "Another model" in event.content)
    assert quote.is_echo
    assert sent(session.follow(compacted), compacted) == [first, index, *rest]


def test_an_answer_in_words_of_the_reply_before_is_not_taken_for_a_summary(
    opened: Opened,
) -> None:
    session = opened(options=PLAIN)
    session.follow([user("one"), assistant("1"), user("two"), assistant("fine")])
    edited = [user("one"), assistant("1"), user("All is fine")]
    assert sent(session.follow(edited), edited) == ["one", "1", "All is fine"]
    assert not recorded(session)[-1].is_echo


def test_a_list_that_starts_again_moves_everything_to_the_index(opened: Opened) -> None:
    session = opened(options=PLAIN)
    session.follow([user("one"), assistant("1"), user("two"), assistant("2"), user("three")])
    layout = session.follow([user("The conversation so far, in short: …")])
    index, summary = sent(layout, [user("The conversation so far, in short: …")])
    assert "one" in index and summary.startswith("The conversation")


@pytest.mark.parametrize("tail", [[], [user("instead")]])
def test_messages_that_a_user_rewound_are_not_sent_and_not_in_the_index(
    opened: Opened, tail: list[HostMessage]
) -> None:
    session = opened(options=PLAIN)
    history = [user("one"), assistant("1"), user("a secret"), assistant("2"), user("three")]
    session.follow(history)
    rewound = [*history[:2], *tail]
    layout = session.follow(rewound)
    assert layout.is_unchanged and not any("secret" in text for text in sent(layout, rewound))
    assert [event.kind for event in session.events()].count(Kind.RETRACTION) == 1
    assert "a secret" in [event.content for event in recorded(session)], "the log keeps everything"


def test_an_edited_prompt_stands_where_the_old_one_stood(opened: Opened) -> None:
    session = opened(options=PLAIN)
    history = [user("one"), assistant("1"), user("two"), assistant("2")]
    session.follow(history)
    edited = [user("one, edited"), *history[1:]]
    assert sent(session.follow(edited), edited) == ["one, edited", "1", "two", "2"]
    assert len(recorded(session)) == 5, "what was not edited is not recorded again"
    assert all(isinstance(item, Keep) for item in session.follow(edited))


def test_an_edited_result_answers_the_same_call(opened: Opened) -> None:
    session = opened(options=PLAIN)
    history = [user("go"), assistant("", call("a")), result("a", "long"), assistant("", call("b"))]
    history += [result("b", "other")]
    session.follow(history)
    cleared = [*history[:2], result("a", "[cleared]"), *history[3:]]
    layout = session.follow(cleared)
    assert sent(layout, cleared)[2] == "[cleared]"
    assert all(isinstance(item, Keep) for item in layout)
    assert len(recorded(session)) == 6
    assert session.follow(cleared).items == layout.items
    assert len(recorded(session)) == 6


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (user("def f():\n  return 1"), user("def f():\n        return 1")),
        (
            HostMessage(role="assistant", calls=(ToolCall("c", "look", {"n": 1}),)),
            HostMessage(role="assistant", calls=(ToolCall("c", "look", {"n": "2" * 9_000}),)),
        ),
    ],
    ids=["white space", "arguments"],
)
def test_an_edit_is_recorded_and_counted_however_small(
    opened: Opened, before: HostMessage, after: HostMessage
) -> None:
    session = opened(options=PLAIN)
    first = session.follow([user("go"), before])
    second = session.follow([user("go"), after])
    assert second.seqs[1] != first.seqs[1]
    assert len(recorded(session)) == 3
    assert second.tokens >= estimate(after.text + str([call.arguments for call in after.calls]))


def test_a_system_message_in_the_list_is_counted_once(opened: Opened) -> None:
    session = opened(options=PLAIN)
    head = HostMessage(role="system", text="S " * 2_000)
    alone = session.follow([head, user("go")])
    named = session.follow([head, user("go")], system=head.text)
    assert alone.tokens >= estimate(head.text)
    assert abs(named.tokens - alone.tokens) < 20


def test_results_in_another_order_are_the_same_results(opened: Opened) -> None:
    session = opened(options=PLAIN)
    history = [user("go"), assistant("", call("a"), call("b")), result("b", "2"), result("a", "1")]
    session.follow(history)
    assert added(session, [*history[:2], history[3], history[2]]) == 0


def test_a_reply_that_the_host_dropped_is_taken_back(opened: Opened) -> None:
    session = opened(options=PLAIN)
    session.follow([user("one")])
    session.replied(Reply(text="half a", finish_reason="stopped"))
    messages = [user("one"), user("two")]
    assert sent(session.follow(messages), messages) == ["one", "two"]


def test_the_hosts_ids_settle_which_of_two_equal_messages_is_meant(opened: Opened) -> None:
    session = opened(options=PLAIN)
    history = [user("continue", id="m1"), assistant("1", id="m2"), user("continue", id="m3")]
    history += [assistant("2", id="m4")]
    session.follow(history)
    session.follow([history[2], history[3], user("new", id="m5")])
    retraction = next(event for event in session.events() if event.kind == Kind.RETRACTION)
    assert "compacted" in retraction.content, "the head was trimmed, not the middle"


def test_results_that_the_session_recorded_are_known_by_their_calls(opened: Opened) -> None:
    session = opened(options=PLAIN)
    history = [user("look"), assistant("", call("c1"))]
    session.follow(history[:1])
    session.replied(Reply(tool_calls=(call("c1"),)))
    session.answer(call("c1"), "blue", "ok")
    assert added(session, [*history, result("c1", "[wrapped] blue")]) == 0


def test_texts_of_frameworks_are_texts(opened: Opened) -> None:
    session = opened(options=PLAIN)
    session.follow([user(FrameworkText("thanks"))])
    assert type(recorded(session)[0].content) is str


@pytest.mark.parametrize("length", [100, 40_000])
def test_a_message_is_recorded_once_however_long_it_is(
    store: Store, opened: Opened, length: int
) -> None:
    """Above 32 KiB the log keeps the text as a payload, and a preview in its row."""
    session = opened(options=PLAIN)
    log, answer = "line of a log " * (length // 14), "row of an answer " * (length // 17)
    history = [user(f"{log} What is wrong?"), assistant(f"{answer} Nothing.")]
    assert added(session, history) == 2
    session.replied(Reply(text=f"{answer} Still nothing."))
    history += [assistant(f"{answer} Still nothing."), user("thanks")]
    assert added(session, history) == 1
    session.close()
    with Session.resume(store, "s", options=PLAIN) as again:
        assert added(again, history) == 0
        assert added(again, [user(f"{log} And now?"), *history[1:]]) == 1, "only its end differs"


def test_a_reply_is_known_without_its_headline(opened: Opened) -> None:
    session = opened(options=PLAIN)
    session.follow([user("go")])
    session.replied(Reply(text="It is done.\n⟦ work | done | none | done ⟧"))
    assert added(session, [user("go"), assistant("It is done."), user("thanks")]) == 1


def test_a_message_is_recorded_once_when_secrets_and_odd_characters_were_replaced(
    opened: Opened,
) -> None:
    session = opened(options=PLAIN)
    session.journal.redact = Redactor()
    history = [user("the token is ghp_" + "a1B2c3D4e5" * 4), user("half a pair: \ud800")]
    assert added(session, history) == 2
    assert added(session, history) == 0
    assert "ghp_" not in str([event.content for event in session.events()])


def test_an_import_with_calls_of_another_shape_can_be_compared_with_a_hosts_list(
    store: Store,
) -> None:
    host = HostList(store.log.text)
    for calls in ([7], 7, [{"id": 1}]):
        draft = Draft(
            role="assistant",
            source_key=f"import:{calls}",
            content="hello",
            metadata={"tool_calls": calls},
        )
        host.add(store.log.get(store.append(draft)))
    assert host.align([user("hello")]).new == [0]


def test_a_notice_is_never_the_task(opened: Opened) -> None:
    session = opened(options=PLAIN)
    reminder = HostMessage(role="user", text="<reminder>be brief</reminder>", notice=True)
    messages = [HostMessage(role="system", text="You work."), user("the task"), reminder]
    layout = session.follow(messages, system="You work.")
    assert layout.is_unchanged and layout.seqs[0] == 0
    assert session.context.view.turn == layout.seqs[1]
    assert [event.kind for event in recorded(session)] == [Kind.CONVERSATION, Kind.NOTICE]


def test_a_result_that_only_repeats_history_is_never_a_search_hit(
    store: Store, opened: Opened
) -> None:
    session = opened(options=PLAIN)
    repeated = replace(result("c1", "the heron stands in the reeds"), echo=True)
    session.follow([user("recall the heron"), assistant("", call("c1")), repeated])
    assert recorded(session)[-1].is_echo
    contents = [hit.event.content for hit in store.index.search("heron reeds")]
    assert contents == ["recall the heron"]


# sending -----------------------------------------------------------------------------------------


def long_list(steps: int) -> list[HostMessage]:
    messages = [HostMessage(role="system", text="You work."), user("the one task")]
    for n in range(steps):
        messages += [assistant(f"step {n}", call(f"c{n}")), result(f"c{n}", f"line {n} " * 100)]
    return messages


def test_each_request_is_the_previous_one_and_what_is_new_between_evictions(
    opened: Opened,
) -> None:
    session = opened(options=PLAIN)
    messages = long_list(80)
    previous: list[str] = []
    changes = evictions = 0
    for end in range(2, len(messages), 2):
        layout = session.follow(messages[:end], window=4_000)
        assert layout.tokens <= 4_000
        texts = sent(layout, messages)
        if texts[: len(previous)] != previous:
            changes += 1
        evictions += layout.evicted
        assert layout.evicted or texts[: len(previous)] == previous
        previous = texts
        session.replied(Reply(text=f"step {end // 2 - 1}", tool_calls=(call(f"c{end // 2 - 1}"),)))
    assert 1 < changes == evictions < 20
    assert texts[:2] == ["You work.", "the one task"], "what precedes the evicted steps stays"
    assert "steps of work on the request" in texts[2] and "expand(" in texts[2]


def test_calls_and_results_stay_paired(opened: Opened) -> None:
    session = opened(options=PLAIN)
    messages = long_list(60)
    layout = session.follow(messages, window=4_000)
    kept = {item.index for item in layout if isinstance(item, Keep | Replace)}
    calls = {call.id for index in kept for call in messages[index].calls}
    assert calls == {messages[index].call_id for index in kept if messages[index].call_id}
    assert any(isinstance(item, Drop) for item in layout)


def test_reasoning_from_before_the_newest_eviction_is_left_out(opened: Opened) -> None:
    session = opened(options=PLAIN)
    messages = long_list(20)
    for end in range(2, len(messages), 2):
        layout = session.follow(messages[:end], window=4_000)
        evicted_at = session.context.view.rewritten_at
        for item in layout:
            if isinstance(item, Keep) and messages[item.index].role == "assistant":
                assert item.thinking == (layout.seqs[item.index] > evicted_at)
    assert session.context.view.rewritten_at


def test_an_expired_cache_is_used_to_evict_early(opened: Opened) -> None:
    session = opened(options=PLAIN)
    messages = long_list(11)
    warm = session.follow(messages, window=4_000)
    assert not warm.evicted
    session.replied(Reply(text="done"))
    cold = session.follow([*messages, assistant("done"), user("next")], window=4_000, is_cold=True)
    assert cold.evicted and cold.tokens < warm.tokens


def test_a_notice_of_the_session_is_inserted_where_it_was_said(opened: Opened) -> None:
    session = opened(options=PLAIN)
    messages = [user("one")]
    session.follow(messages)
    session.notice("the disk is nearly full")
    messages += [assistant("1"), user("two")]
    texts = sent(session.follow(messages), messages)
    assert "nearly full" in texts[1] and texts[2:] == ["1", "two"]


def test_every_request_of_a_host_is_explained_and_verified(store: Store, opened: Opened) -> None:
    session = opened(options=PLAIN)
    messages = long_list(30)
    for end in (10, 40, 62):
        session.follow(messages[:end], window=4_000)
    session.follow([*messages[:20], user("instead")], window=4_000)
    requests = [event.seq for event in session.events() if event.kind == Kind.REQUEST]
    assert len(requests) == 4
    for seq in requests:
        explanation = explain(store, seq)
        assert explanation.verified, explanation.doubt
        assert explanation.messages[0].text == "" or explanation.messages


# any sequence of edits ---------------------------------------------------------------------------

TEXTS = st.sampled_from(["a", "word " * 30, "long " * 200, "in a payload\n" * 3_000])


class Lists(RuleBasedStateMachine):
    """Edits of a host's list, checked against a record kept in the simplest way."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.store = Store(Path(self._folder.name) / "store", create=True)
        self.session = Session.open(self.store, session_id="s", options=PLAIN)
        self.messages: list[HostMessage] = []
        self.names = 0
        self.inserted = 0
        self.layout: Layout | None = None

    def teardown(self) -> None:
        self.session.close()
        self.store.close()
        self._folder.cleanup()

    def _text(self, text: str) -> str:
        self.names += 1
        return f"{text} {self.names}"

    def _follow(self) -> None:
        self.layout = self.session.follow(self.messages, window=3_000)

    @rule(text=TEXTS)
    def ask(self, text: str) -> None:
        self.messages.append(user(self._text(text)))
        self.inserted += 1
        self._follow()

    @rule(text=TEXTS, count=st.integers(0, 3))
    def step(self, text: str, count: int) -> None:
        calls = tuple(call(self._text("c")) for _ in range(count))
        self.messages.append(assistant(self._text(text), *calls))
        self.messages += [result(made.id, self._text(text)) for made in calls]
        self.inserted += 1 + count
        self._follow()

    @rule()
    def repeat(self) -> None:
        self._follow()

    @rule()
    def change_metadata(self) -> None:
        self.messages = [replace(message, wire=object()) for message in self.messages]
        self._follow()

    def _beginnings(self) -> list[int]:
        """Where an entry begins: a list is never cut between a call and its result."""
        return [at for at, message in enumerate(self.messages) if message.role != "tool"]

    @precondition(lambda self: self._beginnings())
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        self.messages = self.messages[: data.draw(st.sampled_from(self._beginnings()))]
        self._follow()

    @precondition(lambda self: self._beginnings())
    @rule(data=st.data(), text=TEXTS)
    def edit(self, data: st.DataObject, text: str) -> None:
        at = data.draw(st.integers(0, len(self.messages) - 1))
        self.messages[at] = replace(self.messages[at], text=self._text(text))
        self.inserted += 1
        self._follow()

    @precondition(lambda self: len(self._beginnings()) > 2)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(self._beginnings()[1:]))
        self.messages = [user(self._text("summary")), *self.messages[at:]]
        self.inserted += 1
        self._follow()

    @precondition(lambda self: len(self._beginnings()) > 2)
    @rule(data=st.data())
    def summarise(self, data: st.DataObject) -> None:
        """The model writes a summary, which the host quotes in place of the steps before it."""
        summary = self._text("summary")
        at = data.draw(st.sampled_from(self._beginnings()))
        self.messages += [user(self._text("Summarise")), assistant(summary)]
        self.inserted += 3
        self._follow()
        self.messages = [*self.messages[:at], user(f"It says:\n{summary}")]
        self._follow()

    @precondition(lambda self: len(self._beginnings()) > 2)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        self.messages = self.messages[data.draw(st.sampled_from(self._beginnings()[1:])) :]
        self._follow()

    @rule()
    def restart(self) -> None:
        self.session.close()
        session_id = self.session.scope.session_id
        self.session = Session.resume(self.store, session_id, options=PLAIN)
        self._follow()

    @precondition(lambda self: self.layout is not None)
    @rule()
    def fork(self) -> None:
        last = self.store.log.tail(1, session_id=self.session.scope.session_id)[0].seq
        forked = self.session.fork(last, session_id=f"f{self.names}-{last}")
        self.session.close()
        self.session = forked
        self._follow()

    @invariant()
    def nothing_is_recorded_twice_and_every_text_comes_back(self) -> None:
        if self.layout is None:
            return
        assert len(recorded(self.session)) == self.inserted
        for message, seq in zip(self.messages, self.layout.seqs, strict=True):
            assert self.store.log.text(self.store.log.get(seq)) == message.text

    @invariant()
    def the_layout_sends_the_surviving_messages_and_no_others(self) -> None:
        if self.layout is None:
            return
        indexes = [item.index for item in self.layout if not isinstance(item, Insert)]
        assert indexes == list(range(len(self.messages)))
        view = self.session.context.view
        for item in self.layout:
            if isinstance(item, Insert):
                continue
            is_shown = view.get(self.layout.seqs[item.index]) is not None
            assert is_shown != isinstance(item, Drop)
        alive = set(self.layout.seqs)
        assert all(entry.seq in alive for entry in view.entries), "nothing else is shown"

    @invariant()
    def the_live_view_is_the_replayed_one(self) -> None:
        if self.layout is None:
            return
        assert explain(self.store, self.layout.request).verified
        assert lay_out(self.session.context.view).hash == self.layout.hash


TestLists = Lists.TestCase
TestLists.settings = settings(
    max_examples=form(20, 300),
    stateful_step_count=form(15, 30),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


# exact bytes, names and event loops ----------------------------------------------------------------


def on_the_wire(message: HostMessage, **extra: object) -> HostMessage:
    """A message with the bytes that a client might have sent for it."""
    body = {"role": message.role, "content": message.text, **extra}
    return replace(message, raw=json.dumps(body, ensure_ascii=False).encode())


def test_the_exact_bytes_of_every_message_come_back_by_its_seq(
    store: Store, opened: Opened
) -> None:
    session = opened(options=PLAIN)
    messages = [
        on_the_wire(user("short"), cache_control={"type": "ephemeral"}),
        on_the_wire(user("ein längerer Text mit Umlauten: äöü " * 2_000)),
        replace(user("x" * 100), raw=b'{"content":"' + b"x" * 100 + b'","again":"' + b"x" * 100),
        replace(user("not in it " * 10), raw=b'{"content": "\xff\xfe' + b"y" * 40_000),
    ]
    layout = session.follow(messages)
    for message, seq in zip(messages, layout.seqs, strict=True):
        assert wire_bytes(store.log, store.log.get(seq)) == message.raw
    shapes = [store.log.get(seq).metadata.get("wire", "") for seq in layout.seqs]
    assert len(shapes[1]) < 200, "the text is not stored twice"


def test_the_bytes_of_a_reply_come_back_as_the_host_sends_it(store: Store, opened: Opened) -> None:
    session = opened(options=PLAIN)
    messages = [on_the_wire(user("hello"))]
    session.follow(messages)
    reply = session.replied(Reply(text="good morning " * 20))
    messages.append(on_the_wire(assistant("good morning " * 20), stop="end"))
    for _ in range(2):
        layout = session.follow(messages)
    assert layout.seqs[1] == reply.seq
    assert wire_bytes(store.log, reply) == messages[1].raw
    assert [event.kind for event in session.events()].count(Kind.WIRE) == 1


def test_a_list_without_a_name_is_found_by_its_beginning(store: Store) -> None:
    lists = {
        "one": [user("hello"), assistant("hi"), user("about whales")],
        "two": [user("hello"), assistant("hi"), user("about ships")],
    }
    for name, messages in lists.items():
        with Session.open(store, session_id=name, options=PLAIN) as session:
            session.follow(messages[:1])
            session.replied(Reply(text="hi"))
            session.follow(messages)
    names = list(lists)
    longer = [*lists["two"], assistant("yes"), user("more")]
    assert known_beginning(store.log, names, longer) == ("two", 3)
    assert known_beginning(store.log, names, [user("hello"), user("else")]) == ("one", 1)
    assert known_beginning(store.log, names, [user("something else")]) is None


def test_a_fork_that_a_new_name_begins_keeps_the_folds(store: Store, opened: Opened) -> None:
    session = opened(options=PLAIN)
    messages = long_list(30)
    for end in range(2, len(messages) + 1, 2):
        before = sent(session.follow(messages[:end], window=4_000), messages)
    last = store.log.tail(1, session_id="s")[0].seq
    with session.fork(last, session_id="branch") as branch:
        continued = [*messages, user("another way")]
        layout = branch.follow(continued, window=4_000)
        assert sent(layout, continued)[: len(before)] == before
        assert not layout.evicted


def test_sessions_open_and_follow_without_blocking_an_event_loop(store: Store) -> None:
    async def main() -> float:
        longest = 0.0
        is_done = asyncio.Event()

        async def watch() -> None:
            nonlocal longest
            while not is_done.is_set():
                before = time.monotonic()
                await asyncio.sleep(0.001)
                longest = max(longest, time.monotonic() - before)

        watcher = asyncio.create_task(watch())
        for number in range(5):
            async with await Session.aopen(store, f"s{number}") as session:
                layout = await session.afollow([user("hello")], window=8_000)
                assert layout.is_unchanged
                assert (await session.areplied(Reply(text="hi"))).seq > layout.request
        is_done.set()
        await watcher
        return longest

    started = time.monotonic()
    longest = asyncio.run(main())
    assert longest < (time.monotonic() - started) / 2, "a kernel started in the loop's own thread"


def test_stubs_name_a_tool_that_the_session_has(opened: Opened) -> None:
    session = opened(options=PLAIN)
    names = {spec.name for spec in session.environment.toolbox.specs()}
    assert {"search", "grep", "expand", "outline"} <= names
    messages = long_list(40)
    texts = sent(session.follow(messages, window=4_000), messages)
    assert any("expand(" in text for text in texts)
    assert not any("ms.expand" in text or "ms_expand" in text for text in texts)
