"""The working view: the part of a session that the model is sent, built from events alone.

`add` is the one way in, live and in replay, so a view rebuilt from the log renders the same bytes.
Events come in the order of their seqs. What each kind must carry:

* `conversation`, role user: the text. `metadata.continues` = true joins the running turn instead of
  beginning one.
* `conversation`, role assistant: the text; `headline`; `metadata.tool_calls` = [{id, name,
  arguments}] (arguments as JSON text or a value), `metadata.thinking` = [opaque blocks],
  `metadata.usage` = {input_tokens} (cached ones included), `metadata.cut` = true when the reply
  broke off. A complete reply proves that its request was read.
* `tool_call`, `cell`: `tool_call_id` names the call of the newest reply that it carries out.
* `tool_result`, `observation`: `content` is what the model sees; `reply_to` names the `tool_call`
  or `cell` (or else `tool_call_id` the call), `tool_state` is "ok" or what went wrong,
  `metadata.bound` the variables a cell bound.
* `tool_call`, `tool_result` with `metadata.inside_cell` = seq of the cell: not shown, but part of
  that step.
* `notice`: the text. `request`: `metadata.upto` (last seq rendered) and `metadata.tokens` (raw
  estimate of all that was sent), appended before the model is asked. `eviction`: `metadata.plan`,
  an `EvictionPlan`, appended before it is applied. `retraction`: `metadata.retraction`, a
  `Retraction`. `session`: `metadata.earlier`, an `EarlierWork`,
  before the first request.

Every other kind leaves the view as it is. `content` is shown as given, and where it is only the
preview of a text that a payload holds (`needs_excerpt`), that text is shown instead: whoever adds
the event has read it. The budget alone decides what the view then does with a text, long or short.
A payload that is not text, or was not read, is shown by what `content` says of it, with a note.
Adding costs the same whatever the length of the session.

A request records the version of the rules that made it (RENDERER_VERSION), and is rebuilt only by
the same rules: a change to what is rendered gets the next number.

`render` puts the messages in an order that lets a provider's prompt cache stay warm. The system
prompt is constant. One user message with the index and the seam changes only at an eviction. The
live turns only grow. The variable list is the `tail` of the newest message, sent after it in
this request only: the next request holds the same message without it, so everything before stays
byte for byte the same. The cache marks stand where that prefix ends: after the index, and after the
newest message. The messages are valid whatever the history was: the first after the system prompt
is the user's, calls and results come in pairs under ids that are unique in the request, user and
assistant alternate, no text is blank. Nothing rendered is ever stored as conversation.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from scroll_context.contents import (
    EarlierWork,
    EntryTopic,
    EvictionPlan,
    Retraction,
    Standing,
    usage_of,
)
from scroll_context.errors import BadInput
from scroll_context.events import BOOKKEEPING, Event, Excerpt, Kind, Payload
from scroll_context.messages import Message, canonical
from scroll_context.view.entries import Entry, ForeignReplies, Notice, UserMessage, is_part_of_reply
from scroll_context.view.headline import TASK_CHARS, cut
from scroll_context.view.index import EvictionIndex, IndexLine, line_for
from scroll_context.view.passage import Form, passage
from scroll_context.view.state import Fact, gathered
from scroll_context.view.steps import Step, spare_id, step, step_of_call, succeeded
from scroll_context.view.tokens import MESSAGE_TOKENS, Gauge, estimate
from scroll_context.view.wording import BEGIN, CELLS, CONTINUE, NOTICE, SEAM, Words

RENDERER_VERSION = 4
"""The rules that requests are made by.

The number grows when a program with the older rules would render other bytes from the same log, be
it an old log or a new one. It is never given out again.
"""


class _PendingRequest(NamedTuple):
    """A request that awaits its reply: what it held, and the turn it was for.

    The user may speak before the reply comes.
    """

    upto: int
    tokens: int
    turn: int
    task: str


class WorkingView:
    """The entries still shown, the index of those that left, and the gauge of the token count."""

    def __init__(self, words: Words = CELLS) -> None:
        self.words = words
        self.index = EvictionIndex(words=words)
        self.gauge = Gauge()
        # Of any event added.
        self.last_seq = 0
        # Everything up to here was read by a call that succeeded.
        self.seen = 0
        # Seq of the user message that began the running turn.
        self.turn = 0
        # Seq of the newest event that changed what had been sent before: an eviction, or a host
        # that edited its list. Reasoning that a model wrote before it is bound to other words.
        self.rewritten_at = 0
        # Whether a request was made, or the earlier work that it starts from is known.
        self.begun = False
        # Raw estimate of the entries alone.
        self.entry_tokens = 0
        self._entries: dict[int, Entry] = {}
        # The seq of a message, reply, call or result, and the seq of its entry.
        self._owner: dict[int, int] = {}
        self._newest_step = 0
        self._foreign_replies = ForeignReplies()
        self._task = ""
        self._pending_request: _PendingRequest | None = None
        # The newest state of the work, and what it was made from.
        self._gathered: tuple[tuple[object, ...], tuple[Fact, ...]] | None = None

    @classmethod
    def replay(cls, events: Iterable[Event], upto: int | None = None) -> "WorkingView":
        """The view as it was after the event `upto`, or after all of them."""
        view = cls()
        for event in events:
            if upto is not None and event.seq > upto:
                break
            view.add(event)
        return view

    @property
    def entries(self) -> Iterator[Entry]:
        """The visible entries, oldest first."""
        return iter(self._entries.values())

    def newest_entries(self) -> Iterator[Entry]:
        """The entries that are shown, newest first."""
        return reversed(self._entries.values())

    @property
    def tokens(self) -> int:
        """Raw estimate of index and entries, without everything else that is sent."""
        return self.entry_tokens + self.index.tokens

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, seq: int) -> Entry | None:
        """The shown entry that a seq belongs to."""
        return self._entries.get(self._owner.get(seq, 0))

    def add(self, event: Event, excerpt: Excerpt | None = None) -> None:
        """Add the next event of the session, with the text of its payload if the event needs it."""
        if event.seq <= self.last_seq:
            raise BadInput(
                f"event {event.seq} came after event {self.last_seq}: a view takes events in the "
                "order of their seqs. Nothing was changed; rebuild the view with "
                "WorkingView.replay(log.iterate(session_id=...))."
            )
        if event.is_erased and event.kind in BOOKKEEPING:
            # A plan or a setting cannot be read any more. A request still shows that the
            # model has read everything before it.
            if event.kind == Kind.REQUEST:
                self._expect_reply(self.last_seq, 0)
            self.last_seq = event.seq
            return
        if event.payload is not None and _is_complete(event.content, event.payload):
            event = replace(event, payload=None)
        is_foreign_part = is_part_of_reply(event) and event.is_foreign
        if not is_foreign_part:
            self._foreign_replies.pass_by(event)
        match event.kind:
            case Kind.TOOL_CALL if is_foreign_part:
                self._add_foreign_call(event)
            case Kind.CONVERSATION if event.role == "user":
                self._add_user_message(event, excerpt)
            case Kind.CONVERSATION if event.role == "assistant":
                self._add_reply(event, excerpt)
            case Kind.TOOL_CALL | Kind.CELL | Kind.TOOL_RESULT | Kind.OBSERVATION:
                self._add_to_step(event, excerpt)
            case Kind.NOTICE:
                self._register(Notice(passage(event, excerpt, NOTICE, self.words), self.turn))
            case Kind.REQUEST:
                upto = _int(event.metadata.get("upto"))
                self._expect_reply(upto, _int(event.metadata.get("tokens")))
            case Kind.SESSION if "earlier" in event.metadata:
                self._begin(EarlierWork.from_metadata(event.metadata))
            case Kind.EVICTION:
                self.apply(EvictionPlan.from_metadata(event.metadata))
                self.rewritten_at = event.seq
            case Kind.RETRACTION:
                if self.retract(Retraction.from_metadata(event.metadata)):
                    self.rewritten_at = event.seq
        self.last_seq = event.seq

    def _expect_reply(self, upto: int, tokens: int) -> None:
        self._pending_request = _PendingRequest(upto, tokens, self.turn, self._task)
        self.begun = True

    def apply(self, plan: EvictionPlan) -> None:
        """Carry out a plan.

        Seqs that are not shown are passed over, so applying it again at once changes nothing.
        """
        facts = self.facts() if plan.evicted else None
        # It would keep the texts that leave in memory.
        self._gathered = None
        self.drop_thinking()
        for seq in plan.folded:
            self.fold(seq)
        for seq, chars in plan.clipped:
            self.clip(seq, chars)
        if plan.standing is not None:
            self.set_standing(plan.standing, plan.unlisted)
        topics = {topic.seq: topic for topic in plan.topics}
        lines = [
            self.evict(seq, topics.get(seq)) for seq, _ in plan.evicted if seq in self._entries
        ]
        self.add_to_index(lines, plan.index_tokens, facts)
        self.gauge = replace(self.gauge.unanchored(), ratio=plan.ratio)

    def retract(self, retraction: Retraction) -> bool:
        """Follow a host that took messages back, moved them out of its list, or reordered it.

        Texts that are folded or clipped stay so. Returns whether messages that remain now have
        others before them; a host that only takes back the end of its list leaves them as they
        were. Reasoning is not dropped here, as `apply` does: a host's reasoning is left out by its
        layout, from `rewritten_at` on.
        """
        facts = self.facts() if retraction.to_index else None
        self._gathered = None
        leaving = []
        for seq in retraction.seqs:
            owner = self._owner.get(seq, 0)
            entry = self._entries.get(owner)
            if entry is None:
                continue
            if owner == seq and retraction.to_index:
                leaving.append(self.evict(seq))
            elif owner == seq:
                self._remove(seq)
            elif isinstance(entry, Step):
                self._put(entry.unanswered(seq))
                self._owner.pop(seq)
        if retraction.to_index:
            self.add_to_index(leaving, retraction.index_tokens, facts)
        else:
            self.index = self.index.without(set(retraction.seqs))
        if retraction.order:
            self._reorder(retraction.order)
        self._renew_turns()
        self.gauge = self.gauge.unanchored()
        first = min(retraction.seqs, default=0)
        return bool(retraction.order) or any(entry.last > first for entry in self.entries)

    def _reorder(self, order: Iterable[int]) -> None:
        """Put the entries in this order.

        An entry that it does not name stays behind the one before it.
        """
        ordered = [seq for seq in order if seq in self._entries]
        in_order = set(ordered)
        followers: dict[int, list[int]] = {}
        leader = 0
        for seq in self._entries:
            if seq in in_order:
                leader = seq
            else:
                followers.setdefault(leader, []).append(seq)
        seqs = list(followers.get(0, ()))
        for seq in ordered:
            seqs += [seq, *followers.get(seq, ())]
        self._entries = {seq: self._entries[seq] for seq in seqs}

    def _renew_turns(self) -> None:
        """Find the running turn, the newest step, and the turn of each step again."""
        turn, task = 0, ""
        self._newest_step = 0
        for entry in list(self._entries.values()):
            if isinstance(entry, UserMessage):
                begins_turn = entry.turn == entry.seq or entry.turn not in self._entries
                if begins_turn or not turn:
                    turn, task = entry.seq, cut(entry.body.text, TASK_CHARS)
            elif isinstance(entry, Step):
                self._newest_step = entry.seq
            if turn and entry.turn != turn:
                if isinstance(entry, Step):
                    self._entries[entry.seq] = replace(entry, turn=turn, task=task)
                else:
                    self._entries[entry.seq] = replace(entry, turn=turn)
        if turn:
            self.turn, self._task = turn, task

    def copy(self) -> "WorkingView":
        """A view that can be changed without changing this one."""
        view = type(self)(self.words)
        vars(view).update(
            vars(self),
            _entries=self._entries.copy(),
            _owner=self._owner.copy(),
            _foreign_replies=replace(self._foreign_replies),
        )
        return view

    def fold(self, seq: int) -> bool:
        """Replace the result at `seq` by its stub; whether that changed anything."""
        entry = self.get(seq)
        return isinstance(entry, Step) and self._put(entry.folded(seq))

    def clip(self, seq: int, chars: int) -> bool:
        """Show only about `chars` characters of the text at `seq`; whether it changed anything."""
        entry = self.get(seq)
        if entry is None:
            return False
        if not isinstance(entry, Step):
            return self._put(replace(entry, body=entry.body.clipped(chars)))
        if entry.seq == seq:
            return self._put(replace(entry, reply=entry.reply.clipped(chars)))
        return self._put(
            entry.with_result(seq, lambda result: replace(result, body=result.body.clipped(chars)))
        )

    def evict(self, seq: int, topic: EntryTopic | None = None) -> IndexLine:
        """Remove the entry at `seq`; the caller gives the line to `add_to_index`."""
        entry = self._remove(seq)
        message = self._entries.get(entry.turn)
        if isinstance(message, UserMessage) and not isinstance(entry, UserMessage):
            undone = isinstance(entry, Step) and not entry.succeeded
            self._put(message.losing(entry, undone))
        return line_for(entry, topic)

    def _remove(self, seq: int) -> Entry:
        entry = self._entries.pop(seq)
        self.entry_tokens -= entry.tokens
        for own_seq in entry.seqs if isinstance(entry, Step) else (seq,):
            del self._owner[own_seq]
        return entry

    def facts(self) -> tuple[Fact, ...]:
        """The state of the work after everything that is shown now.

        Kept, because an eviction is planned first and then applied.
        """
        basis = (self.index.state, self.turn, list(self.entries))
        if self._gathered is None or self._gathered[0] != basis:
            self._gathered = (basis, gathered(self.index.state, self.entries, self.turn))
        return self._gathered[1]

    def add_to_index(
        self, lines: list[IndexLine], limit: int, facts: tuple[Fact, ...] | None = None
    ) -> None:
        """Add evicted lines and the state of the work to the index, within `limit` tokens."""
        self.index = self.index.extended(lines, limit, facts)

    def set_standing(self, standing: tuple[Standing, ...], unlisted: int) -> None:
        """Show these standing instructions from now on."""
        self.index = replace(self.index, standing=standing, unlisted=unlisted)

    def drop_thinking(self) -> None:
        """Drop the thinking of all but the newest reply.

        Thinking is signed for the exact text before it, which has changed.
        """
        for entry in list(self._entries.values()):
            if isinstance(entry, Step) and entry.reply.thinking and entry.seq != self._newest_step:
                self._put(entry.without_thinking)

    def _begin(self, earlier: EarlierWork | None) -> None:
        """Start from earlier sessions.

        If their record cannot be read, the view starts without it: search finds all of it.
        """
        if earlier is not None:
            self.index = replace(self.index, topics=earlier.topics)
            self.set_standing(earlier.standing, earlier.unlisted)
        self.begun = True

    def _add_user_message(self, event: Event, excerpt: Excerpt | None) -> None:
        if not (event.metadata.get("continues") and self.turn in self._entries):
            self.turn = event.seq
            self._task = cut(event.content, TASK_CHARS)
        self._register(
            UserMessage(
                passage(event, excerpt, words=self.words),
                self.turn,
                is_from_user=event.is_from_user,
            )
        )

    def _add_reply(self, event: Event, excerpt: Excerpt | None) -> None:
        request = self._pending_request
        if request is None:
            request = _PendingRequest(self.last_seq, 0, self.turn, self._task)
        if not event.metadata.get("cut"):
            self.seen = max(self.seen, request.upto)
            if "usage" in event.metadata:
                reported = usage_of(event).input_tokens
                self.gauge = self.gauge.observed(request.tokens, reported)
            self._pending_request = None
        if event.is_foreign:
            self._foreign_replies.first_of(event)
        self._newest_step = event.seq
        self._register(step(event, request.turn, request.task, excerpt, self.words))

    def _add_foreign_call(self, event: Event) -> None:
        """Add a call of a captured history to its reply, which it may begin."""
        first = self._foreign_replies.first_of(event)
        entry = self._entries.get(first)
        if first == event.seq:
            self._newest_step = event.seq
            self._register(step_of_call(event, self.turn, self._task, self.words))
        elif isinstance(entry, Step):
            self._register(entry.with_call(event))

    def _add_to_step(self, event: Event, excerpt: Excerpt | None) -> None:
        """Attach a call, a cell or a result to its step.

        One without a step is in the log and is not shown.
        """
        cell = _int(event.metadata.get("inside_cell"))
        target = cell or event.reply_to or self._newest_step
        entry = self.get(target)
        if entry is None and not cell and target > self._newest_step:
            # It answers a call whose event was not added.
            entry = self._entries.get(self._newest_step)
        if not isinstance(entry, Step):
            return
        if cell:
            self._add_inside_cell(entry, event)
        elif event.kind in (Kind.TOOL_CALL, Kind.CELL):
            self._register(entry.addressed(event))
        else:
            call = entry.call_at(event.reply_to, event.tool_call_id)
            if call is not None:
                self._register(entry.answered(call, event, excerpt))

    def _add_inside_cell(self, entry: Step, event: Event) -> None:
        """Note a call that a cell made, or its result: it is not shown, but part of the step."""
        if event.kind == Kind.TOOL_CALL:
            entry = entry.with_effect(event)
        elif event.kind == Kind.TOOL_RESULT:
            if not succeeded(event.tool_state):
                entry = replace(entry, failed_inside=entry.failed_inside + 1)
            entry = entry.effect_ended(event.reply_to, event.tool_state)
        self._entries[entry.seq] = replace(entry, last=event.seq)

    def _put(self, entry: Entry) -> bool:
        """Put a new entry or another form of one in its place; whether its size changed."""
        old = self._entries.get(entry.seq)
        growth = entry.tokens - (old.tokens if old else 0)
        self._entries[entry.seq] = entry
        self.entry_tokens += growth
        return growth != 0

    def _register(self, entry: Entry) -> None:
        """Put an entry that has new seqs in its place."""
        self._put(entry)
        for own_seq in entry.seqs if isinstance(entry, Step) else (entry.seq,):
            self._owner[own_seq] = entry.seq


def needs_excerpt(event: Event) -> bool:
    """Whether a view shows the text of an event's payload, and not only the preview in its row.

    The row of an observation has exactly what a cell was allowed to show, so its payload is not
    needed.
    """
    payload = event.payload
    if payload is None or not payload.is_text or _is_complete(event.content, payload):
        return False
    if event.kind == Kind.CONVERSATION:
        return event.role in ("user", "assistant")
    if event.kind == Kind.TOOL_RESULT:
        return "inside_cell" not in event.metadata
    return event.kind == Kind.NOTICE


def _is_complete(content: str, payload: Payload) -> bool:
    """Whether the content is all of the payload, and not only its beginning."""
    return payload.is_text and payload.size == len(content.encode("utf-8", "surrogatepass"))


def _int(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


# messages ---------------------------------------------------------------------------------------


class Rendered(msgspec.Struct, frozen=True):
    """A request ready for a provider, and what the log keeps of it."""

    messages: tuple[Message, ...]
    # SHA-256 of the messages.
    hash: str
    # Raw estimate of the messages, without tool schemas.
    tokens: int
    # The last event that the model may have read from it.
    upto: int
    # Seqs shown in full, which search need not return.
    visible: frozenset[int]
    # The version of the rules that made the messages.
    renderer: int

    def metadata(self) -> dict[str, Any]:
        """The metadata of the `request` event; the caller adds the tokens of tool schemas."""
        return {
            "hash": self.hash,
            "tokens": self.tokens,
            "upto": self.upto,
            "renderer": self.renderer,
        }


def render(
    view: WorkingView, system: str = "", variable_list: str = "", *, preface: str | None = None
) -> Rendered:
    """The messages for the next call. Costs what the view is long, whatever the session was.

    A `preface` stands in the place of index and seam; a caller that gives one keeps room for it in
    the budget.
    """
    messages = [Message(role="system", text=system)] if system.strip() else []
    if preface is None:
        tokens = view.tokens
        preface = f"{view.index.render()}\n\n{SEAM}" if not view.index.is_empty else ""
    else:
        tokens = view.entry_tokens + estimate(preface)
    if preface:
        messages.append(Message(role="user", text=preface, cache_mark=True))
    call_ids: set[str] = set()
    visible: set[int] = set()
    for entry in view.entries:
        _append(messages, _messages(entry, call_ids))
        if isinstance(entry, Step):
            visible.update(entry.seqs_in_full)
        elif entry.body.form is Form.FULL:
            visible.add(entry.seq)
    if not messages or messages[-1].role in ("assistant", "system"):
        messages.append(Message(role="user", text=CONTINUE))
    messages[-1] = replace(messages[-1], cache_mark=True, tail=variable_list.strip())
    tokens += frame_tokens(system, variable_list)
    digest = hashlib.sha256(canonical(messages)).hexdigest()
    return Rendered(
        tuple(messages), digest, tokens, view.last_seq, frozenset(visible), RENDERER_VERSION
    )


def frame_tokens(system: str, variable_list: str) -> int:
    """Estimated tokens of the texts around a view, which a budget must leave room for."""
    texts = [text for text in (system, variable_list) if text.strip()]
    return sum(estimate(text) + MESSAGE_TOKENS for text in texts)


def _messages(entry: Entry, used_ids: set[str]) -> tuple[Message, ...]:
    """The messages of an entry, its calls under ids that are not used yet.

    Some providers give every call the same id.
    """
    messages = entry.messages
    reply = messages[0]
    ids = [call.id for call in reply.tool_calls]
    if len(set(ids)) < len(ids) or not used_ids.isdisjoint(ids):
        ids = [_unused_id(id, spare_id(entry.seq, place), used_ids) for place, id in enumerate(ids)]
        calls = [replace(call, id=id) for call, id in zip(reply.tool_calls, ids, strict=True)]
        results = [
            replace(result, tool_call_id=id) for result, id in zip(messages[1:], ids, strict=True)
        ]
        messages = (replace(reply, tool_calls=tuple(calls)), *results)
    used_ids.update(ids)
    return messages


def _unused_id(id: str, spare: str, used_ids: set[str]) -> str:
    unused = spare if id in used_ids else id
    while unused in used_ids:
        unused += "_"
    used_ids.add(unused)
    return unused


def _append(messages: list[Message], more: tuple[Message, ...]) -> None:
    """Add the messages of an entry.

    User messages that follow each other are joined, assistant messages parted.
    """
    previous = messages[-1].role if messages else "system"
    role = more[0].role
    if role == "user" and previous == "user":
        last = messages[-1]
        text = "\n\n".join(filter(None, (last.text, more[0].text)))
        messages[-1] = replace(last, text=text, media=last.media + more[0].media)
        return
    if role == "assistant" and previous in ("system", "assistant"):
        messages.append(Message(role="user", text=BEGIN if previous == "system" else CONTINUE))
    messages += more
