"""What the model saw: a request message by message, what is different from the request before it,
and why.

Everything here is made of two replayed views (session/explain.py), so it is what was sent and not a
guess. A message is cut into pieces, one for each event that it shows; a piece is known by its
event, and so can be found again in the request before. What is in one of the two only has entered
or left, and the eviction plans between them say why.
"""

import bisect
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from scroll_context.contents import EvictionPlan
from scroll_context.events import BOOKKEEPING, Event, Kind
from scroll_context.messages import Message, canonical
from scroll_context.session.explain import Past, Seen, whereabouts
from scroll_context.view.entries import Entry, UserMessage
from scroll_context.view.layout import in_order, lay_out
from scroll_context.view.passage import Form
from scroll_context.view.steps import Step
from scroll_context.view.tokens import MESSAGE_TOKENS, estimate
from scroll_context.view.wording import SEAM
from scroll_context.view.working import WorkingView

FORMS = {Form.FULL: "", Form.CLIPPED: "clipped", Form.FOLDED: "folded"}


class SentPiece(msgspec.Struct, frozen=True):
    """The part of a message that one event stands for."""

    kind: str  # system, index, user, notice, reply, result, harness
    seq: int  # of the event; 0 where there is none
    text: str
    form: str = ""  # clipped or folded
    change: str = "kept"  # entered, folded, clipped, changed
    lines: tuple[tuple[str, bool], ...] = ()  # of the index: each line, and whether it is new

    @property
    def key(self) -> tuple[str, int]:
        """What it is found by in the request before; there is one system prompt, whichever event it
        comes from.
        """
        return self.kind, 0 if self.kind == "system" else self.seq


class Sent(msgspec.Struct, frozen=True):
    """One message of a request."""

    position: int
    message: Message
    pieces: tuple[SentPiece, ...]
    tokens: int
    in_prefix: bool  # the same, like all before it, in the request before
    # The seqs of the cells that its calls ran, 0 where that is not known.
    addresses: tuple[int, ...] = ()
    # The lines of the variable list, and whether each is new.
    tail: tuple[tuple[str, bool], ...] = ()

    @property
    def change(self) -> str:
        changes = (piece.change for piece in self.pieces if piece.change != "kept")
        return next(changes, "kept")


class Left(msgspec.Struct, frozen=True):
    """An entry, or a text, that the request before showed in full and this one does not."""

    seq: int
    last: int
    how: str  # evicted, folded, clipped
    line: str  # the entry in one line
    tokens: int
    plan: int
    now: str  # where it stands

    @property
    def has_own_line(self) -> bool:
        """Whether a line of the index says the same and stands for nothing else."""
        address = str(self.seq) if self.seq == self.last else f"{self.seq}-{self.last}"
        return self.now == f"index: seq {address}: {self.line}"


class Difference(msgspec.Struct, frozen=True):
    """What is not as it was at the request before."""

    before: int | None  # seq of that request
    plans: tuple[tuple[int, EvictionPlan], ...]
    entered: tuple[SentPiece, ...]
    left: tuple[Left, ...]
    index_gone: tuple[str, ...]  # lines that were joined with others
    index_new: int
    digest_gone: tuple[str, ...]
    prefix_tokens: int


class TokenShare(msgspec.Struct, frozen=True):
    """One colour of the token bar."""

    name: str
    label: str
    tokens: int


class SeenPage(msgspec.Struct, frozen=True):
    """Everything about one request."""

    seen: Seen
    messages: tuple[Sent, ...]
    difference: Difference
    parts: tuple[TokenShare, ...]
    previous: int | None
    following: int | None
    number: int  # which request of the session it is
    count: int
    window: int
    high: float
    low: float


def page(past: Past, request: Event) -> SeenPage:
    """A request beside the one before it."""
    at = bisect.bisect_left(past.requests, request.seq, key=lambda event: event.seq)
    earlier = past.requests[at - 1] if at else None
    before = past.seen(earlier) if earlier is not None else None
    seen = past.seen(request)
    messages, difference = _compared(past, before, seen)
    high, low = marks(past, request.seq)
    return SeenPage(
        seen=seen,
        messages=messages,
        difference=difference,
        parts=_parts(seen, messages),
        previous=earlier.seq if earlier else None,
        following=past.requests[at + 1].seq if at + 1 < len(past.requests) else None,
        number=at + 1,
        count=len(past.requests),
        window=int(seen.setup.metadata.get("window", 0)),
        high=high,
        low=low,
    )


def marks(past: Past, seq: int) -> tuple[float, float]:
    """The shares of the window above which something leaves, and down to which, as they were set at
    a seq.
    """
    for event in reversed(past.setups):
        settings = event.metadata.get("settings")
        budget = settings.get("budget") if isinstance(settings, dict) and event.seq < seq else None
        if isinstance(budget, dict):
            return float(budget.get("high", 0.8)), float(budget.get("low", 0.4))
    return 0.8, 0.4


def plan_of(event: Event) -> EvictionPlan:
    """The plan of an eviction, cached because many pages ask for the same few."""
    return _plan(event.seq, msgspec.json.encode(event.metadata.get("plan")))


def forget() -> None:
    """Clear the cache after an erasure: it may hold erased text."""
    _plan.cache_clear()


@lru_cache(maxsize=4096)
def _plan(_: int, plan: bytes) -> EvictionPlan:
    return EvictionPlan.from_metadata({"plan": msgspec.json.decode(plan)})


# messages and their pieces ------------------------------------------------------------------------


def _pieces(seen: Seen) -> list[tuple[tuple[SentPiece, ...], tuple[int, ...]]]:
    """For each message of a request: the pieces that it is made of, and the addresses of its calls.

    The order is that of view/working.py: system prompt, index, entries; user messages that follow
    each other are one. A message that is not the sum of its pieces is one piece, without an
    address.
    """
    context, rendered = seen.context, seen.rendered
    assert context is not None
    assert rendered is not None
    if seen.request.metadata.get("layout"):
        return list(_host_pieces(seen, context.view))
    messages = rendered.messages
    expected: list[tuple[list[SentPiece], tuple[int, ...]]] = []
    roles: list[str] = []

    def begin(role: str, piece: SentPiece, addresses: tuple[int, ...] = ()) -> None:
        roles.append(role)
        expected.append(([piece], addresses))

    if messages and messages[0].role == "system":
        begin("system", SentPiece("system", seen.setup.seq, messages[0].text))
    preface = context.preface()
    if (preface is None and not context.view.index.is_empty) or preface:
        at = len(expected)
        text = messages[at].text if at < len(messages) else ""
        index, seam, _ = text.partition(SEAM)
        begin("user", SentPiece("index", 0, index + seam))
    for entry in context.view.entries:
        if isinstance(entry, Step):
            if (roles[-1] if roles else "system") in ("system", "assistant"):
                begin("user", SentPiece("harness", 0, ""))
            first, *others = entry.messages
            begin(
                "assistant",
                SentPiece("reply", entry.seq, first.text, FORMS[entry.reply.form]),
                entry.addresses,
            )
            for result, message in zip(entry.results, others, strict=True):
                form = FORMS[result.body.form] if result else ""
                begin(
                    "tool",
                    SentPiece("result", result.body.seq if result else 0, message.text, form),
                )
            continue
        kind = "user" if isinstance(entry, UserMessage) else "notice"
        piece = SentPiece(kind, entry.seq, entry.messages[0].text, FORMS[entry.body.form])
        if roles and roles[-1] == "user":
            expected[-1][0].append(piece)
        else:
            begin("user", piece)
    if len(expected) < len(messages):
        begin("user", SentPiece("harness", 0, ""))
    result_pieces = []
    for i, message in enumerate(messages):
        pieces: list[SentPiece] = []
        addresses: tuple[int, ...] = ()
        if i < len(expected) and roles[i] == message.role:
            pieces, addresses = expected[i]
        if len(pieces) == 1:
            # A context may word the message in its own way.
            pieces = [replace(pieces[0], text=message.text)]
        elif not pieces or "\n\n".join(piece.text for piece in pieces) != message.text:
            pieces = [SentPiece("harness", 0, message.text)]
        result_pieces.append((tuple(pieces), addresses))
    return result_pieces


def _host_pieces(
    seen: Seen, view: WorkingView
) -> Iterator[tuple[tuple[SentPiece, ...], tuple[int, ...]]]:
    """The pieces of a host's request, whose messages are never joined: one for each message."""
    layout = lay_out(view)
    system = seen.rendered.messages[0] if seen.rendered and seen.rendered.messages else None
    if system is not None and system.role == "system":
        yield (SentPiece("system", seen.setup.seq, system.text),), ()
    for entry in in_order(view, layout):
        if entry is None:
            yield (SentPiece("index", 0, layout.index),), ()
        elif isinstance(entry, Step):
            first, *others = entry.messages
            reply = SentPiece("reply", entry.seq, first.text, FORMS[entry.reply.form])
            yield (reply,), entry.addresses
            for result, message in zip(entry.results, others, strict=True):
                seq = result.body.seq if result else 0
                form = FORMS[result.body.form] if result else ""
                yield (SentPiece("result", seq, message.text, form),), ()
        else:
            kind = "user" if isinstance(entry, UserMessage) else "notice"
            yield (SentPiece(kind, entry.seq, entry.body.shown, FORMS[entry.body.form]),), ()


def _bare(message: Message) -> bytes:
    """A message as the next request repeats it."""
    return canonical(replace(message, cache_mark=False, tail=""))


def _compared(past: Past, before: Seen | None, seen: Seen) -> tuple[tuple[Sent, ...], Difference]:
    if seen.context is None or seen.rendered is None:
        return (), Difference(before.request.seq if before else None, (), (), (), (), 0, (), 0)
    old_pieces: dict[tuple[str, int], tuple[SentPiece, bytes]] = {}
    old: tuple[Message, ...] = ()
    if before is not None and before.context is not None and before.rendered is not None:
        old = before.rendered.messages
        for message, (pieces, _) in zip(old, _pieces(before), strict=True):
            for piece in pieces:
                old_pieces[piece.key] = (piece, _part_of(message, piece))
    old_index: set[str] = set()
    if ("index", 0) in old_pieces:
        old_index = set(old_pieces["index", 0][0].text.split("\n"))
    old_digest = old[-1].tail.split("\n") if old and old[-1].tail else []
    sent: list[Sent] = []
    repeated = _same_beginning(old, seen.rendered.messages)
    for i, (message, (pieces, addresses)) in enumerate(
        zip(seen.rendered.messages, _pieces(seen), strict=True)
    ):
        changed = tuple(
            _with_change(piece, message, old_pieces, before is None, old_index) for piece in pieces
        )
        tail_lines = message.tail.split("\n") if message.tail else []
        text = canonical(message).decode() if message.tool_calls else message.text
        sent.append(
            Sent(
                position=i,
                message=message,
                pieces=changed,
                tokens=estimate(text) + MESSAGE_TOKENS,
                in_prefix=i < repeated,
                addresses=addresses,
                tail=tuple((line, line not in old_digest) for line in tail_lines),
            )
        )
    plans = _plans_between(past, before.request.seq if before else 0, seen.request.seq)
    left: tuple[Left, ...] = ()
    if before is not None and before.context is not None:
        left = tuple(_left(before, seen, plans))
    sent_pieces = [piece for message in sent for piece in message.pieces]
    index = next((piece for piece in sent_pieces if piece.kind == "index"), None)
    index_gone: list[str] = []
    index_new = 0
    if index is not None:
        index_gone = sorted(old_index - set(index.text.split("\n")), key=_address)
        index_new = sum(new for _, new in index.lines)
    new_digest = {line for line, _ in sent[-1].tail} if sent else set()
    difference = Difference(
        before=before.request.seq if before else None,
        plans=plans,
        entered=tuple(piece for piece in sent_pieces if piece.change == "entered"),
        left=left,
        index_gone=tuple(index_gone),
        index_new=index_new if before is not None else 0,
        digest_gone=tuple(line for line in old_digest if line not in new_digest),
        prefix_tokens=sum(message.tokens for message in sent if message.in_prefix),
    )
    return tuple(sent), difference


def _same_beginning(old: tuple[Message, ...], new: tuple[Message, ...]) -> int:
    """How many messages of a request are, from its beginning on, those of the request before."""
    for i, (old_message, new_message) in enumerate(zip(old, new, strict=False)):
        if _bare(old_message) != _bare(new_message):
            return i
    return min(len(old), len(new))


def _address(line: str) -> tuple[int, str]:
    """The first seq of an index line, by which lines are sorted."""
    number = re.match(r"[0-9]+", line.removeprefix("- seq "))
    return int(number[0]) if number else 0, line


def _part_of(message: Message, piece: SentPiece) -> bytes:
    """What of a message must be the same for a piece to be the same: of a reply also its calls and
    thinking.
    """
    return _bare(message) if piece.kind == "reply" else piece.text.encode("utf-8", "surrogatepass")


def _with_change(
    piece: SentPiece,
    message: Message,
    old_pieces: dict[tuple[str, int], tuple[SentPiece, bytes]],
    first: bool,
    index: set[str],
) -> SentPiece:
    lines: tuple[tuple[str, bool], ...] = ()
    if piece.kind == "index":
        lines = tuple(
            (line, not first and bool(line) and line not in index)
            for line in piece.text.split("\n")
        )
    old = old_pieces.get(piece.key)
    if old is None:
        change = "kept" if first and piece.kind == "system" else "entered"
    elif old[1] == _part_of(message, piece):
        change = "kept"
    else:
        change = piece.form if piece.form and piece.form != old[0].form else "changed"
    return replace(piece, change=change, lines=lines)


def _plans_between(past: Past, after: int, before: int) -> tuple[tuple[int, EvictionPlan], ...]:
    at = bisect.bisect_right(past.evictions, after, key=lambda event: event.seq)
    plans = []
    for event in past.evictions[at:]:
        if event.seq > before:
            break
        plans.append((event.seq, plan_of(event)))
    return tuple(plans)


def _left(before: Seen, seen: Seen, plans: Iterable[tuple[int, EvictionPlan]]) -> Iterator[Left]:
    """What left the view between two requests, oldest first."""
    assert before.context is not None
    assert seen.context is not None
    old, new = before.context.view, seen.context.view
    for plan_seq, plan in plans:
        shortened = [(seq, "folded") for seq in plan.folded]
        shortened += [(seq, "clipped") for seq, _ in plan.clipped]
        for seq, how in shortened:
            entry = old.get(seq)
            if entry is not None and new.get(seq) is not None:
                line = line_of(entry)
                yield Left(seq, seq, how, line, 0, plan_seq, whereabouts(new, seq))
        for lo, hi in plan.evicted:
            entry = old.get(lo)
            if entry is not None:
                line = line_of(entry)
                yield Left(lo, hi, "evicted", line, entry.tokens, plan_seq, whereabouts(new, lo))


def line_of(entry: Entry) -> str:
    """An entry in one line."""
    if isinstance(entry, Step):
        return entry.ended_headline().full()
    return " ".join(entry.body.shown.split())[:200]


def _parts(seen: Seen, messages: tuple[Sent, ...]) -> tuple[TokenShare, ...]:
    """The tokens of a request by what they are for, in the order in which they are sent."""
    if seen.rendered is None:
        return ()
    sums = dict.fromkeys(
        ("system", "tools", "index", "user", "reply", "result", "notice", "digest"), 0
    )
    for message in messages:
        for piece in message.pieces:
            name = "notice" if piece.kind == "harness" else piece.kind
            sums[name] += message.tokens if len(message.pieces) == 1 else estimate(piece.text)
        if message.tail:
            sums["digest"] += estimate(message.message.tail) + MESSAGE_TOKENS
    sums["tools"] = max(0, int(seen.request.metadata.get("tokens", 0)) - seen.rendered.tokens)
    labels = {
        "system": "system prompt",
        "tools": "tool schemas",
        "index": "index",
        "user": "user",
        "reply": "replies",
    }
    labels |= {"result": "results", "notice": "notices", "digest": "variables"}
    return tuple(TokenShare(name, labels[name], tokens) for name, tokens in sums.items() if tokens)


# one event in many requests -----------------------------------------------------------------------


class Stretch(msgspec.Struct, frozen=True):
    """A run of requests in which an event stood in one form."""

    first: int
    last: int
    count: int
    how: str
    plan: int | None  # that brought it into this form
    reason: str


def stretches(past: Past, event: Event) -> list[Stretch]:
    """In which requests of its own a session could see an event, and how, from the first request
    after it on.
    """
    if event.kind in BOOKKEEPING or "inside_cell" in event.metadata:
        return []
    requests = [event for event in past.requests if event.session_id == past.session_id]
    numbers = [event.seq for event in requests]
    begin = bisect.bisect_right(numbers, event.seq)
    if begin == len(numbers):
        return []
    # The requests at which the event may appear in another form, with the plan and its reason.
    changes: dict[int, tuple[int | None, str]] = {begin: (None, "")}
    for seq, plan in plans_about(past, event.seq):
        at = bisect.bisect_right(numbers, seq)
        if at < len(numbers):
            changes[at] = (seq, plan.reason)
    runs: list[Stretch] = []
    places = sorted(changes)
    for at, end in zip(places, [*places[1:], len(numbers)], strict=True):
        _, context = past.context(requests[at])
        if context is None:
            return []
        how = whereabouts(context.view, event.seq)
        how = "as a line of the index" if how.startswith("index: ") else how
        if runs and runs[-1].how == how:
            runs[-1] = replace(runs[-1], last=numbers[end - 1], count=runs[-1].count + end - at)
        else:
            runs.append(Stretch(numbers[at], numbers[end - 1], end - at, how, *changes[at]))
    return runs


def plans_about(past: Past, seq: int) -> list[tuple[int, EvictionPlan]]:
    """The eviction plans that name an event, oldest first."""
    plans = []
    first = bisect.bisect_right(past.evictions, seq, key=lambda event: event.seq)
    for event in past.evictions[first:]:
        plan = plan_of(event)
        is_clipped = any(clipped_seq == seq for clipped_seq, _ in plan.clipped)
        is_evicted = any(lo <= seq <= hi for lo, hi in plan.evicted)
        if seq in plan.folded or is_clipped or is_evicted:
            plans.append((event.seq, plan))
    return plans


def why(past: Past, request: Event, event: Event) -> dict[str, Any]:
    """Whether a request showed an event and, if not, why not: a sentence, and the plans that had a
    part in it.
    """
    _, context = past.context(request)
    answer: dict[str, Any] = {"event": event.seq, "plans": [], "cell": None, "now": ""}
    if context is None:
        return answer | {"sentence": "The context of this request is not known here."}
    if event.seq > request.seq:
        return answer | {"sentence": "It was recorded after this request."}
    where = whereabouts(context.view, event.seq)
    if event.kind in BOOKKEEPING:
        return answer | {"sentence": "It is bookkeeping, which is never shown as a message."}
    plans = [(seq, plan) for seq, plan in plans_about(past, event.seq) if seq < request.seq]
    answer |= {
        "plans": plans,
        "now": where.removeprefix("index: ") if where.startswith("index: ") else "",
    }
    if cell := event.metadata.get("inside_cell"):
        sentence = (
            "It was called inside a cell. The model sees what the cell prints, not what its calls "
            "return."
        )
        return answer | {"sentence": sentence, "cell": cell}
    if where.startswith("index: "):
        return answer | {"sentence": "It was not shown. A line of the index stood for it."}
    if where.startswith("shown"):
        return answer | {"sentence": f"It was {where}."}
    if event.session_id != request.session_id:
        return answer | {
            "sentence": "It belongs to another session, and no line of the index named it."
        }
    if event.kind == Kind.ARTIFACT:
        return answer | {
            "sentence": "Bytes are never shown; the result that they belong to names their seq."
        }
    return answer | {"sentence": "It was not part of the view."}
