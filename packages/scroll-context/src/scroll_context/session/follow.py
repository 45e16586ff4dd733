"""Comparing the list of a host with the record: what is known, what is new, what was taken back.

A host hands over its complete list before each request. `HostList` is the session's record of that
list: a fold of the session's events, so it is the same after a restart. `align` compares the two.

Messages are compared by a normal form of their content: the role, the text (that of a reply with
its white space folded), the tool calls, the digests of media. A host's own id settles which of two
equal messages is meant. So the same prompt twice is two messages, the same list after a restart
adds nothing, and metadata that a host changes does not count.

A host also drops messages:

* at the beginning of its list, or all of it, because it makes room (it trims, or compacts): the
  messages move to the index of the view, with their addresses. So do messages further on, if the
  host had the model write a summary, which it then quotes: Codex keeps the user's own messages;
* further on, because its user rewound, edited or deleted them: they are taken back.

Results that the session recorded itself, for cells and tools it ran, are known by their call alone:
hosts wrap and shorten them.

An assistant's history may have been captured before a host follows the session. Such messages have
been cut into other pieces, and secrets in them were replaced. So a captured reply is known by the
ids of its calls, and any other text by a hash of its words as they were. Words of an import, which
may be anybody's, are never a message of the host.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from scroll_context.contents import Retraction, media_of
from scroll_context.events import Draft, Event, Kind, id_of, text_id
from scroll_context.log.journal import Journal
from scroll_context.log.log import EventLog
from scroll_context.log.rows import without_surrogates
from scroll_context.messages import Media, canonical
from scroll_context.origin import REPLY_ID, UNREDACTED, Origin
from scroll_context.session.host import Drop, HostMessage, Insert, Item, Keep, Replace
from scroll_context.session.media import record_media, wire_bytes, wire_facts
from scroll_context.view.entries import ForeignReplies, is_part_of_reply
from scroll_context.view.headline import without_headline
from scroll_context.view.layout import ViewLayout
from scroll_context.view.passage import Shown
from scroll_context.view.steps import call_ids_of, calls_of, decoded

_T = TypeVar("_T")

SYSTEM = -1
"""The address of a message of the system prompt, which is not recorded."""

NOT_ASIDE = frozenset({Kind.CONVERSATION, Kind.TOOL_CALL, Kind.TOOL_RESULT})
"""Kinds of captured events that are messages of a conversation."""


class Known(NamedTuple):
    """One message of the host's list, as it was recorded."""

    seq: int
    mark: str
    host_id: str
    # Whether the event begins an entry of the view. Results belong to the entry of their call.
    is_entry: bool
    # The calls that an assistant message makes.
    call_ids: tuple[str, ...] = ()


class Alignment(msgspec.Struct, frozen=True):
    """How a host's list differs from its record."""

    # For each message of the list the seq of its event; 0 for one that is new, or SYSTEM.
    seqs: tuple[int, ...]
    # Events that the host dropped at the beginning of its list, and further on.
    compacted: tuple[int, ...] = ()
    retracted: tuple[int, ...] = ()
    # The place of a new message that only quotes the newest reply; None if there is none.
    quote: int | None = None

    @property
    def new(self) -> list[int]:
        """The places in the list of the messages to record."""
        return places_of(0, self.seqs)

    @property
    def is_in_order(self) -> bool:
        """Whether every new message comes after all known ones."""
        if 0 not in self.seqs:
            return True
        first_new = self.seqs.index(0)
        return all(seq <= 0 for seq in self.seqs[first_new:])


class HostList:
    """The host's list as the session has recorded it. `text` gives the text of an event."""

    def __init__(self, text: Callable[[Event], str], events: Iterable[Event] = ()) -> None:
        self._text = text
        self._known: list[Known] = []
        # The messages of the newest hand-over and their events: a list that only grew is not
        # read again.
        self._last: list[HostMessage] = []
        self._last_seqs: list[int] = []
        self._last_known = 0
        # The chained hash of the newest message, while nothing was taken back: it names the
        # beginning of a list, by which another session may be found.
        self._chain: str | None = ""
        self._foreign_replies = ForeignReplies()
        # The provider's id of the newest captured reply, and the seq of its first part.
        self._newest_reply_id = ""
        self._newest_reply = 0
        # The newest reply that a host has recorded.
        self._newest_hosted: Event | None = None
        # The words of captured texts that are not of the conversation, such as reminders.
        self._captured_asides: set[str] = set()
        # The marks of messages that are being recorded, and the chained hashes that follow from a
        # hash and a mark. They need not be computed again.
        self._expected: deque[str] = deque()
        self._chained: dict[tuple[str, str], str] = {}
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Follow the next event of the session."""
        if event.kind == Kind.RETRACTION and not event.is_foreign:
            self._retract(Retraction.from_metadata(event.metadata))
            return
        if event.kind == Kind.FORK:
            self._chain = None
        if is_part_of_reply(event) and event.is_foreign:
            self._add_part_of_reply(event)
            return
        self._foreign_replies.pass_by(event)
        if event.origin is Origin.CAPTURED and event.kind not in NOT_ASIDE:
            self._captured_asides.add(self._words_of(event))
        known = self._of_event(event)
        if known is not None:
            self._known.append(known)
            if event.role == "assistant":
                self._newest_hosted = event
            if self._chain is not None:
                expected = self._chained.pop((self._chain, known.mark), "")
                self._chain = expected or chained(self._chain, known.mark)

    def _add_part_of_reply(self, event: Event) -> None:
        """Follow the text of a captured reply, or one of its calls."""
        self._chain = None
        if event.is_erased:
            return
        place = self._place_of_reply(event)
        before = self._known[place].call_ids if place is not None else ()
        own = (event.tool_call_id,) if event.kind == Kind.TOOL_CALL else ()
        call_ids = (*before, *own)
        mark = self._foreign_mark(event, call_ids)
        if place is not None and call_ids:
            self._known[place] = self._known[place]._replace(mark=mark, call_ids=call_ids)
        else:
            self._newest_reply = event.seq
            self._known.append(Known(event.seq, mark, "", is_entry=True, call_ids=call_ids))

    def _place_of_reply(self, event: Event) -> int | None:
        """The place of the captured reply that a text or a call is a further part of.

        The view begins a new step with each text. A host has one message, with texts around its
        calls.
        """
        first = self._foreign_replies.first_of(event)
        reply_id = str(event.metadata.get(REPLY_ID, ""))
        begins_reply = first == event.seq
        if begins_reply and not (reply_id and reply_id == self._newest_reply_id):
            self._newest_reply_id = reply_id
            return None
        for place in reversed(range(len(self._known))):
            if self._known[place].seq == self._newest_reply:
                return place
        return None

    def _foreign_mark(self, event: Event, call_ids: tuple[str, ...] = ()) -> str:
        """The mark of a captured message; one that matches nothing for a message of an import."""
        if event.origin is Origin.IMPORTED:
            return f"imported {event.seq}"
        if call_ids:
            return _calls_mark(call_ids)
        return _words_mark(event.role, self._words_of(event))

    def _words_of(self, event: Event) -> str:
        """The hash of a captured text as it was before secrets in it were replaced."""
        return str(event.metadata.get(UNREDACTED) or text_id(self._text(event)))

    def repeats(self, message: HostMessage) -> bool:
        """Whether a message only repeats captured words: a reminder, a summary."""
        is_aside = self._captured_asides and message.role in ("user", "system")
        return bool(is_aside) and text_id(message.text) in self._captured_asides

    def _retract(self, retraction: Retraction) -> None:
        leaving = set(retraction.seqs)
        known = [message for message in self._known if message.seq not in leaving]
        if retraction.order:
            known = _reordered(known, retraction.order)
        self._known = known
        self._chain = None
        self._last, self._last_seqs = [], []

    def _of_event(self, event: Event) -> Known | None:
        """The message that an event stands for; None for an event that no host's list holds."""
        if "inside_cell" in event.metadata or event.is_erased:
            return None
        host_id = str(event.metadata.get(Origin.HOST, ""))
        is_hosts = Origin.HOST in event.metadata
        is_result = event.kind in (Kind.TOOL_RESULT, Kind.OBSERVATION)
        is_message = event.kind == Kind.CONVERSATION and event.role in ("user", "assistant")
        if not (is_result or is_message or (event.kind == Kind.NOTICE and is_hosts)):
            return None
        if is_message and event.is_foreign:
            return Known(event.seq, self._foreign_mark(event), "", True)
        ids = call_ids_of(event) if event.role == "assistant" else ()
        mark = self._expected.popleft() if is_hosts and self._expected else ""
        mark = mark or self._mark_of_event(event, is_hosts)
        return Known(event.seq, mark, host_id, not is_result, ids)

    def _mark_of_event(self, event: Event, is_hosts: bool) -> str:
        digests = [item.digest or item.url for item in media_of(event)]
        if event.kind in (Kind.TOOL_RESULT, Kind.OBSERVATION):
            text = self._text(event) if is_hosts else None
            return _result_mark(event.tool_call_id, text, event.tool_state, digests)
        role = "notice" if event.kind == Kind.NOTICE else event.role
        calls = calls_of(event) if event.role == "assistant" else ()
        made = [(call.id, decoded(call.arguments)) for call in calls]
        return _mark(role, self._text(event), made, digests)

    def reply_of(self, call_id: str) -> int | None:
        """The seq of the newest assistant message that makes a call."""
        for message in reversed(self._known):
            if call_id in message.call_ids:
                return message.seq
        return None

    def expect(self, session_id: str, marks: Sequence[str]) -> list[str]:
        """Prepare for the events of new messages with these marks.

        Returns the keys under which they are recorded: "" once something was taken back.
        """
        self._expected = deque(marks)
        self._chained = {}
        if self._chain is None:
            return [""] * len(marks)
        keys = []
        before = self._chain
        for mark in marks:
            behind = self._chained[before, mark] = chained(before, mark)
            keys.append(source_key(session_id, behind))
            before = behind
        return keys

    @property
    def remembered(self) -> int:
        """How many messages of the list the newest hand-over had."""
        return len(self._last)

    def remember(self, messages: Sequence[HostMessage], seqs: Sequence[int]) -> None:
        """Keep a list that is now recorded, to compare the next one with."""
        self._last, self._last_seqs = list(messages), list(seqs)
        self._last_known = len(self._known)

    def align(self, messages: Sequence[HostMessage]) -> Alignment:
        """Compare a host's list with the record."""
        same = _same_beginning(self._last, messages)
        if self._last and same == len(self._last):
            # The list only grew. What the session recorded since then stands behind it.
            behind = self._known[self._last_known :]
            places = _places(messages, same)
            matched = _matched(self._keys(messages, places, behind), behind)
            if matched is not None:
                seqs = [*self._last_seqs, *_spread(messages, same, places, matched)]
                return Alignment(tuple(seqs))
        return self._aligned(messages)

    def _aligned(self, messages: Sequence[HostMessage]) -> Alignment:
        places = _places(messages, 0)
        known = self._known
        if not known:
            return Alignment(tuple(_spread(messages, 0, places, [0] * len(places))))
        ids = {messages[place].id for place in places}
        record = [_key(message, ids) for message in known]
        keys = self._keys(messages, places, known)
        pairs = _common(keys, record)
        matched = [0] * len(places)
        for place, at in pairs:
            matched[place] = known[at].seq
        missing = sorted(set(range(len(known))) - {at for _, at in pairs})
        seqs = tuple(_spread(messages, 0, places, matched))
        summary = self._place_of_summary(missing)
        quote = self._place_of_quote(messages, seqs) if summary is not None else None
        if summary is not None and quote is not None:
            # The prompt for the summary stands before it. Neither is part of the work.
            first = summary - 1
        else:
            first = self._first_retracted(pairs, [key.is_result for key in keys])
        return Alignment(
            seqs,
            tuple(known[at].seq for at in missing if at < first),
            tuple(known[at].seq for at in missing if at >= first),
            quote,
        )

    def _place_of_summary(self, missing: Sequence[int]) -> int | None:
        """The place in the record of the newest reply, if the host dropped it with its prompt."""
        newest = len(self._known) - 1
        reply = self._newest_hosted
        if reply is None or newest not in missing or newest - 1 not in missing:
            return None
        return newest if self._known[newest].seq == reply.seq else None

    def _place_of_quote(self, messages: Sequence[HostMessage], seqs: Sequence[int]) -> int | None:
        """The place of a new message of the user's that ends with the complete newest reply."""
        assert self._newest_hosted is not None
        text = self._text(self._newest_hosted).strip()
        if not text:
            return None
        for place in places_of(0, seqs):
            message = messages[place]
            if message.role == "user" and message.text.rstrip().endswith(f"\n{text}"):
                return place
        return None

    def _first_retracted(self, pairs: Sequence[tuple[int, int]], are_results: list[bool]) -> int:
        """From which place of the record on missing messages were taken back; before it the host
        made room.

        A host that makes room drops more than it puts in their place. A user who edits replaces one
        message, or with it the reply to it, if nothing else was said.
        """
        entries = [message.is_entry for message in self._known]
        if not pairs:
            return 0 if sum(entries) <= 2 else len(entries)
        place, at = min(pairs, key=lambda pair: pair[1])
        replaced = are_results[:place].count(False)
        return 0 if sum(entries[:at]) <= replaced else at

    def _keys(
        self, messages: Sequence[HostMessage], places: Sequence[int], known: Sequence[Known]
    ) -> "list[_Key]":
        ids = {message.host_id for message in known if message.host_id}
        marks = {message.mark for message in known}
        return [_message_key(messages[place], ids, marks) for place in places]


def record_list(
    journal: Journal, host: HostList, messages: Sequence[HostMessage], index_tokens: int
) -> list[int]:
    """Record how a host's list differs from its record.

    Returns the seq of each message, SYSTEM for messages of the system prompt. `index_tokens`
    bounds the index, if the host's own compaction moves messages there.
    """
    if (redact := journal.redact) is not None:
        # The record holds the redacted text, so that is what a message is compared by.
        messages = [replace(message, text=redact.text(message.text)) for message in messages]
    alignment = host.align(messages)
    if alignment.compacted:
        _retract(
            journal,
            Retraction(seqs=alignment.compacted, to_index=True, index_tokens=index_tokens),
        )
    if alignment.retracted:
        _retract(journal, Retraction(seqs=alignment.retracted))
    seqs = list(alignment.seqs)
    new = alignment.new
    drafts = _drafts_of_new(journal, host, messages, alignment)
    drafts += _drafts_of_wire_forms(journal, host, messages, alignment)
    # In one commit. The events of the new messages are the first of it.
    for place, event in zip(new, journal.append_many(drafts), strict=False):
        seqs[place] = event.seq
    if not alignment.is_in_order:
        _retract(journal, Retraction(order=tuple(seq for seq in seqs if seq > 0)))
    host.remember(messages, seqs)
    return seqs


def _drafts_of_new(
    journal: Journal, host: HostList, messages: Sequence[HostMessage], alignment: Alignment
) -> list[Draft]:
    """The events of the new messages of a host's list."""
    places = alignment.new
    if not places:
        return []
    journal.require_room()
    new = [messages[place] for place in places]
    new_calls = {call.id for message in new for call in message.calls}
    keys = host.expect(journal.session_id, [mark_of(message) for message in new])
    drafts = []
    for place, key in zip(places, keys, strict=True):
        message = messages[place]
        fields = fields_of(message)
        fields["metadata"] |= wire_facts(journal, message)
        if place == alignment.quote or host.repeats(message):
            fields["metadata"]["echo"] = True
        if message.media:
            fields["metadata"]["media"] = record_media(journal, message.media, message.role)
        draft = journal.draft(source_key=key, **fields)
        if message.role == "tool" and message.call_id not in new_calls:
            # It answers a call of an earlier reply, which need not be the newest one.
            draft = replace(draft, reply_to=host.reply_of(message.call_id))
        drafts.append(draft)
    return drafts


def _drafts_of_wire_forms(
    journal: Journal, host: HostList, messages: Sequence[HostMessage], alignment: Alignment
) -> list[Draft]:
    """The events for the bytes of messages that were recorded without them, such as replies."""
    drafts = []
    for place in range(host.remembered, len(messages)):
        message, seq = messages[place], alignment.seqs[place]
        if not message.raw or seq <= 0:
            continue
        event = journal.log.get(seq)
        # The bytes of a message whose secrets were replaced still have them.
        if UNREDACTED not in event.metadata and wire_bytes(journal.log, event) is None:
            facts = wire_facts(journal, message)
            drafts.append(journal.draft(Kind.WIRE, reply_to=seq, metadata=facts))
    return drafts


def _retract(journal: Journal, retraction: Retraction) -> None:
    metadata = retraction.metadata()
    journal.append(journal.draft(Kind.RETRACTION, content=retraction.summary(), metadata=metadata))


def items_of(layout: ViewLayout, seqs: Sequence[int]) -> tuple[Item, ...]:
    """The items of a host's list whose messages have these seqs.

    Index and notices, which the host does not have, are inserted behind the entry before them.
    """
    # Most messages of a long list have left it. A message of the system prompt never does.
    items: list[Item] = [Drop(place) for place in range(len(seqs))]
    for place in places_of(SYSTEM, seqs):
        items[place] = Keep(place)
    places = dict(zip(seqs, range(len(seqs)), strict=True))
    first_place = len(seqs)
    # The last place of each entry.
    ends: dict[int, int] = {}
    # Insertions by the entry before them; 0 is the beginning.
    behind: dict[int, list[Insert]] = {}
    entry = 0
    for count, part in enumerate(layout.shown):
        if layout.index and count == layout.before_index:
            behind.setdefault(entry, []).append(Insert(layout.index, is_index=True))
        shown_at = places.get(part.seq)
        if shown_at is not None:
            entry = part.entry
            first_place = min(first_place, shown_at)
            ends[entry] = max(ends.get(entry, 0), shown_at)
            items[shown_at] = _item(shown_at, part)
        elif part.notice:
            behind.setdefault(entry, []).append(Insert(part.notice))
    if layout.index and layout.before_index == len(layout.shown):
        behind.setdefault(entry, []).append(Insert(layout.index, is_index=True))
    inserts = {ends[entry] + 1: texts for entry, texts in behind.items() if entry}
    inserts[first_place] = behind.get(0, [])
    for place in sorted(inserts, reverse=True):
        items[place:place] = inserts[place]
    return tuple(items)


def _item(place: int, part: Shown) -> Item:
    if part.text is None:
        return Keep(place, part.thinking)
    return Replace(place, part.text, part.calls)


def places_of(seq: int, seqs: Sequence[int]) -> list[int]:
    """The places of a list that have this number in place of an address: few, or all at its end."""
    places = []
    place = -1
    for _ in range(seqs.count(seq)):
        place = seqs.index(seq, place + 1)
        places.append(place)
    return places


def fields_of(message: HostMessage) -> dict[str, Any]:
    """The event of a host's message, without its media."""
    metadata: dict[str, Any] = {Origin.HOST.value: message.id}
    if message.echo:
        metadata["echo"] = True
    fields: dict[str, Any] = {
        "kind": Kind.CONVERSATION,
        "role": message.role,
        "content": str(message.text),
        "metadata": metadata,
    }
    if message.notice:
        fields["kind"] = Kind.NOTICE
        fields["role"] = "user"
    elif message.role == "tool":
        fields["kind"] = Kind.TOOL_RESULT
        fields["name"] = message.name
        fields["tool_call_id"] = message.call_id
        fields["tool_state"] = message.state
    else:
        if message.calls:
            metadata["tool_calls"] = msgspec.to_builtins(list(message.calls))
        if message.thinking:
            metadata["thinking"] = msgspec.to_builtins(list(message.thinking))
    return fields


def chained(before: str, mark: str) -> str:
    """The identity of a message in its list: a hash of it and of everything before it."""
    return id_of(before, mark)


def source_key(session_id: str, chained_hash: str) -> str:
    """The key under which a message of a host's list is recorded."""
    return f"host:{id_of(session_id, chained_hash)}"


def known_beginning(
    log: EventLog, sessions: Iterable[str], messages: Sequence[HostMessage]
) -> tuple[str, int] | None:
    """The session whose list begins like this one for longest, and how many messages both have.

    For hosts that give their conversations no name. None if no list begins with the first message.
    """
    rest = _chained_hashes(messages)
    # Hashed as far as a session is followed: most sessions begin differently.
    hashes: list[tuple[int, str]] = []
    longest: tuple[str, int] | None = None
    for session_id in sessions:
        matched = 0
        for count, chained_hash in _kept_in(hashes, rest):
            if log.find_source(source_key(session_id, chained_hash)) is None:
                break
            matched = count
        if matched > (longest[1] if longest else 0):
            longest = (session_id, matched)
    return longest


def _chained_hashes(messages: Sequence[HostMessage]) -> Iterator[tuple[int, str]]:
    """How many messages each beginning of a list has, and the hash that it is recorded under.

    Replies are recorded when they arrive, before the host has them, so none ends with a reply.
    """
    before = ""
    for count, place in enumerate(_places(messages, 0), 1):
        before = chained(before, mark_of(messages[place]))
        if messages[place].role != "assistant":
            yield count, before


def _kept_in(kept: list[_T], rest: Iterator[_T]) -> Iterator[_T]:
    """The values that are kept already, then the rest, which is kept as it is read."""
    yield from kept
    for value in rest:
        kept.append(value)
        yield value


def mark_of(message: HostMessage) -> str:
    """The fingerprint of a message: equal for all forms that a host and the log may have of it."""
    digests = [media_digest(item) for item in message.media]
    if message.role == "tool":
        return _result_mark(message.call_id, message.text, message.state, digests)
    if message.notice:
        return _mark("notice", message.text, (), digests)
    calls = [(call.id, _arguments(call.arguments)) for call in message.calls]
    return _mark(message.role, message.text, calls, digests)


def _arguments(arguments: dict[str, Any] | str) -> Any:
    """The arguments of a call, which hosts and logs have as a value or as its JSON."""
    return decoded(arguments) if isinstance(arguments, str) else arguments


def media_digest(media: Media) -> str:
    """The value of an image or a file in a fingerprint."""
    if media.data:
        return hashlib.sha256(media.data).hexdigest()
    return media.digest or media.url


def _result_mark(call_id: str, text: str | None, state: str, digests: Sequence[str]) -> str:
    """Without a text, the mark of whatever answers the call."""
    if text is None:
        return _hashed("tool", call_id)
    outcome = "ok" if state == "ok" else "error"
    return _hashed("tool", call_id, without_surrogates(text).strip(), outcome, *digests)


def _calls_mark(call_ids: Iterable[str]) -> str:
    """The mark of a captured reply that makes these calls."""
    return _hashed("calls", *sorted(call_ids))


def _words_mark(role: str, words: str) -> str:
    """The mark of a captured message without calls, by the hash of its words."""
    return _hashed("words", role, words)


def _captured_mark(message: HostMessage) -> str:
    """The mark that a message would have in a captured history."""
    if message.role == "tool":
        return _result_mark(message.call_id, None, "", ())
    if message.calls:
        return _calls_mark(call.id for call in message.calls)
    return _words_mark(message.role, text_id(message.text))


def _mark(role: str, text: str, calls: Sequence[tuple[str, Any]], digests: Sequence[str]) -> str:
    text = without_surrogates(text)
    if role != "assistant":
        return _hashed(role, text.strip(), *digests)
    # Users are not shown the headline, so a host may keep the reply without it, and a host may join
    # the pieces of a reply in its own way.
    return _hashed(role, " ".join(without_headline(text).split()), calls, *digests)


def _hashed(*parts: object) -> str:
    return hashlib.sha256(canonical(parts)).hexdigest()[:32]


class _Key(NamedTuple):
    """The properties that two equal messages share."""

    mark: str
    host_id: str
    is_result: bool


def _key(message: Known, ids: set[str]) -> _Key:
    host_id = message.host_id if message.host_id in ids else ""
    return _Key(message.mark, host_id, not message.is_entry)


def _message_key(message: HostMessage, ids: set[str], marks: set[str]) -> _Key:
    mark = mark_of(message)
    if mark not in marks:
        captured = _captured_mark(message)
        mark = captured if captured in marks else mark
    return _Key(mark, message.id if message.id in ids else "", message.role == "tool")


def _in_fixed_order(keys: Sequence[_Key]) -> list[int]:
    """Places in order, results of one reply sorted: they come in any order."""
    places = list(range(len(keys)))
    start = 0
    while start < len(keys):
        end = start + 1
        if keys[start].is_result:
            while end < len(keys) and keys[end].is_result:
                end += 1
            places[start:end] = sorted(places[start:end], key=lambda place: keys[place])
        start = end
    return places


def _places(messages: Sequence[HostMessage], start: int) -> list[int]:
    """The places of messages that are recorded: all but those of the system prompt."""
    return [
        place
        for place in range(start, len(messages))
        if messages[place].role != "system" or messages[place].notice
    ]


def _spread(
    messages: Sequence[HostMessage], start: int, places: Sequence[int], seqs: Sequence[int]
) -> list[int]:
    """The seqs at their places in the list, SYSTEM at those of system messages."""
    by_place = dict(zip(places, seqs, strict=True))
    return [by_place.get(place, SYSTEM) for place in range(start, len(messages))]


def _same_beginning(last: list[HostMessage], messages: Sequence[HostMessage]) -> int:
    """How many messages at the beginning of two lists are the same, wire forms aside."""
    if list(messages[: len(last)]) == last:
        # Most lists only grew, by messages behind the same objects.
        return len(last)
    count = 0
    for old, new in zip(last, messages, strict=False):
        if old is not new and _content(old) != _content(new):
            break
        count += 1
    return count


def _content(message: HostMessage) -> tuple[object, ...]:
    return (
        message.text,
        message.role,
        message.call_id,
        message.calls,
        message.id,
        message.state,
        message.notice,
        message.media,
    )


def _matched(keys: list[_Key], behind: Sequence[Known]) -> list[int] | None:
    """Match the rest of a list with what was recorded behind its beginning; None if they differ."""
    if len(behind) > len(keys):
        return None
    record = [_key(message, {key.host_id for key in keys}) for message in behind]
    matched = [0] * len(keys)
    head = keys[: len(behind)]
    for place, at in zip(_in_fixed_order(head), _in_fixed_order(record), strict=True):
        if head[place] != record[at]:
            return None
        matched[place] = behind[at].seq
    return matched


def _common(keys: list[_Key], record: list[_Key]) -> list[tuple[int, int]]:
    """Pairs of places that hold the same message."""
    key_places, record_places = _in_fixed_order(keys), _in_fixed_order(record)
    pairs = _common_in_order(
        [keys[place] for place in key_places], [record[place] for place in record_places]
    )
    return [(key_places[place], record_places[at]) for place, at in pairs]


def _common_in_order(keys: list[_Key], record: list[_Key]) -> list[tuple[int, int]]:
    start = 0
    while start < min(len(keys), len(record)) and keys[start] == record[start]:
        start += 1
    if start == len(record):
        return [(place, place) for place in range(start)]
    trimmed = _trimmed(keys, record)
    if trimmed > start:
        # The list begins with the end of the record: the host has trimmed the head of its list.
        return [(place, len(record) - trimmed + place) for place in range(trimmed)]
    pairs = [(place, place) for place in range(start)]
    matcher = SequenceMatcher(None, keys[start:], record[start:], autojunk=False)
    for block in matcher.get_matching_blocks():
        pairs += [
            (start + block.a + offset, start + block.b + offset) for offset in range(block.size)
        ]
    return pairs


def _trimmed(keys: list[_Key], record: list[_Key]) -> int:
    """How many messages at the end of the record are the beginning of the list."""
    for size in range(min(len(keys), len(record)), 0, -1):
        if keys[0] == record[-size] and keys[:size] == record[-size:]:
            return size
    return 0


def _reordered(known: list[Known], order: Sequence[int]) -> list[Known]:
    """The messages in this order; one that it does not name stays in front."""
    by_seq = {message.seq: message for message in known}
    named = [by_seq.pop(seq) for seq in order if seq in by_seq]
    return [*by_seq.values(), *named]
