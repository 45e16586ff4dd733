"""What the model saw: a request message by message, what is different from the request before it,
and why.

Everything here is made of two replayed views (session/explain.py), so it is what was sent and not a
guess. A message is cut into pieces, one for each event that it shows; a piece is known by its
event, and so can be found again in the request before. What is in one of the two only has entered
or left, and the eviction plans between them say why.
"""

import bisect
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from scroll_context.contents import EvictionPlan
from scroll_context.events import BOOKKEEPING, Event, Kind
from scroll_context.messages import Message, canonical
from scroll_context.session.explain import Past, Seen, whereabouts
from scroll_context.view.entries import MARK, Entry, Form, Step, UserTurn
from scroll_context.view.tokens import MESSAGE_TOKENS, estimate

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
    addresses: tuple[
        int, ...
    ] = ()  # of the calls: the seqs of their cells, 0 where that is not known
    tail: tuple[tuple[str, bool], ...] = ()  # the lines of the digest, and whether each is new

    @property
    def change(self) -> str:
        return next((one.change for one in self.pieces if one.change != "kept"), "kept")


class Left(msgspec.Struct, frozen=True):
    """An entry, or a text, that the request before showed in full and this one does not."""

    seq: int
    last: int
    how: str  # evicted, folded, clipped
    said: str
    tokens: int
    plan: int
    now: str  # where it stands

    @property
    def has_own_line(self) -> bool:
        """Whether a line of the index says the same and stands for nothing else."""
        address = str(self.seq) if self.seq == self.last else f"{self.seq}-{self.last}"
        return self.now == f"index: seq {address}: {self.said}"


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
    at = bisect.bisect_left(past.requests, request.seq, key=lambda one: one.seq)
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
    """The plan of an eviction. Kept, because many pages ask for the same few."""
    return _plan(event.seq, msgspec.json.encode(event.metadata.get("plan")))


def forget() -> None:
    """Let go of what is kept of the log, because something was erased."""
    _plan.cache_clear()


@lru_cache(maxsize=4096)
def _plan(_: int, plan: bytes) -> EvictionPlan:
    return EvictionPlan.from_metadata({"plan": msgspec.json.decode(plan)})


# messages and their pieces ------------------------------------------------------------------------------


def _pieces(seen: Seen) -> list[tuple[tuple[SentPiece, ...], tuple[int, ...]]]:
    """For each message of a request: the pieces that it is made of, and the addresses of its calls.

    The order is that of view/working.py: system prompt, index, entries; user messages that follow
    each other are one. A message that is not the sum of its pieces is one piece, without an
    address.
    """
    context, rendered = seen.context, seen.rendered
    assert context is not None
    assert rendered is not None
    messages = rendered.messages
    made: list[tuple[list[SentPiece], tuple[int, ...]]] = []
    roles: list[str] = []

    def begin(role: str, piece: SentPiece, addresses: tuple[int, ...] = ()) -> None:
        roles.append(role)
        made.append(([piece], addresses))

    if messages and messages[0].role == "system":
        begin("system", SentPiece("system", seen.setup.seq, messages[0].text))
    preface = context.preface()
    if (preface is None and not context.view.index.is_empty) or preface:
        at = len(made)
        text = messages[at].text if at < len(messages) else ""
        end = text.find(MARK + "end of the index")
        end = text.find("]", end) + 1 if end >= 0 else len(text)
        begin("user", SentPiece("index", 0, text[:end]))
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
        kind = "user" if isinstance(entry, UserTurn) else "notice"
        piece = SentPiece(kind, entry.seq, entry.messages[0].text, FORMS[entry.body.form])
        if roles and roles[-1] == "user":
            made[-1][0].append(piece)
        else:
            begin("user", piece)
    if len(made) < len(messages):
        begin("user", SentPiece("harness", 0, ""))
    found = []
    for i, message in enumerate(messages):
        pieces, addresses = made[i] if i < len(made) and roles[i] == message.role else ([], ())
        if len(pieces) == 1:  # a context may word it in its own way
            pieces = [replace(pieces[0], text=message.text)]
        elif not pieces or "\n\n".join(one.text for one in pieces) != message.text:
            pieces = [SentPiece("harness", 0, message.text)]
        found.append((tuple(pieces), addresses))
    return found


def _bare(message: Message) -> bytes:
    """A message as the next request repeats it."""
    return canonical(replace(message, cache_mark=False, tail=""))


def _compared(past: Past, before: Seen | None, seen: Seen) -> tuple[tuple[Sent, ...], Difference]:
    if seen.context is None or seen.rendered is None:
        return (), Difference(before.request.seq if before else None, (), (), (), (), 0, (), 0)
    known: dict[tuple[str, int], tuple[SentPiece, bytes]] = {}
    old: tuple[Message, ...] = ()
    if before is not None and before.context is not None and before.rendered is not None:
        old = before.rendered.messages
        for message, (pieces, _) in zip(old, _pieces(before), strict=True):
            known.update((one.key, (one, _part_of(message, one))) for one in pieces)
    old_index = set(known[("index", 0)][0].text.split("\n")) if ("index", 0) in known else set()
    old_digest = old[-1].tail.split("\n") if old and old[-1].tail else []
    sent: list[Sent] = []
    repeated = _same_beginning(old, seen.rendered.messages)
    for i, (message, (pieces, addresses)) in enumerate(
        zip(seen.rendered.messages, _pieces(seen), strict=True)
    ):
        changed = tuple(
            _with_change(one, message, known, before is None, old_index) for one in pieces
        )
        tail = (
            tuple((line, line not in old_digest) for line in message.tail.split("\n"))
            if message.tail
            else ()
        )
        tokens = (
            estimate(canonical(message).decode()) if message.tool_calls else estimate(message.text)
        )
        sent.append(
            Sent(i, message, changed, tokens + MESSAGE_TOKENS, i < repeated, addresses, tail)
        )
    plans = _plans_between(past, before.request.seq if before else 0, seen.request.seq)
    left = (
        tuple(_left(before, seen, plans))
        if before is not None and before.context is not None
        else ()
    )
    index = next((one for message in sent for one in message.pieces if one.kind == "index"), None)
    new_digest = {line for line, _ in sent[-1].tail} if sent else set()
    difference = Difference(
        before=before.request.seq if before else None,
        plans=plans,
        entered=tuple(one for message in sent for one in message.pieces if one.change == "entered"),
        left=left,
        index_gone=tuple(sorted(old_index - set(index.text.split("\n")), key=_address))
        if index
        else (),
        index_new=sum(new for _, new in index.lines) if index and before is not None else 0,
        digest_gone=tuple(line for line in old_digest if line not in new_digest),
        prefix_tokens=sum(one.tokens for one in sent if one.in_prefix),
    )
    return tuple(sent), difference


def _same_beginning(old: tuple[Message, ...], new: tuple[Message, ...]) -> int:
    """How many messages of a request are, from its beginning on, those of the request before."""
    pairs = enumerate(zip(old, new, strict=False))
    return next(
        (i for i, (one, other) in pairs if _bare(one) != _bare(other)), min(len(old), len(new))
    )


def _address(line: str) -> tuple[int, str]:
    number = (
        line.removeprefix("- seq ")
        .partition("-")[0]
        .partition(",")[0]
        .partition(":")[0]
        .partition(" ")[0]
    )
    return (int(number) if number.isdecimal() else 0, line)


def _part_of(message: Message, piece: SentPiece) -> bytes:
    """What of a message must be the same for a piece to be the same: of a reply also its calls and
    thinking.
    """
    return _bare(message) if piece.kind == "reply" else piece.text.encode("utf-8", "surrogatepass")


def _with_change(
    piece: SentPiece,
    message: Message,
    known: dict[tuple[str, int], tuple[SentPiece, bytes]],
    first: bool,
    index: set[str],
) -> SentPiece:
    lines: tuple[tuple[str, bool], ...] = ()
    if piece.kind == "index":
        lines = tuple(
            (line, not first and bool(line) and line not in index)
            for line in piece.text.split("\n")
        )
    old = known.get(piece.key)
    if old is None:
        change = "kept" if first and piece.kind == "system" else "entered"
    elif old[1] == _part_of(message, piece):
        change = "kept"
    else:
        change = piece.form if piece.form and piece.form != old[0].form else "changed"
    return replace(piece, change=change, lines=lines)


def _plans_between(past: Past, after: int, before: int) -> tuple[tuple[int, EvictionPlan], ...]:
    at = bisect.bisect_right(past.evictions, after, key=lambda one: one.seq)
    found = []
    for event in past.evictions[at:]:
        if event.seq > before:
            break
        found.append((event.seq, plan_of(event)))
    return tuple(found)


def _left(before: Seen, seen: Seen, plans: Iterable[tuple[int, EvictionPlan]]) -> Iterator[Left]:
    """What left the view between two requests, oldest first."""
    assert before.context is not None
    assert seen.context is not None
    old, new = before.context.view, seen.context.view
    for seq, plan in plans:
        for how, seqs in (("folded", plan.folded), ("clipped", [one for one, _ in plan.clipped])):
            for one in seqs:
                if (entry := old.get(one)) is not None and new.get(one) is not None:
                    yield Left(one, one, how, said(entry), 0, seq, whereabouts(new, one))
        for lo, hi in plan.evicted:
            if (entry := old.get(lo)) is not None:
                yield Left(lo, hi, "evicted", said(entry), entry.tokens, seq, whereabouts(new, lo))


def said(entry: Entry) -> str:
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
        for one in message.pieces:
            name = "notice" if one.kind == "harness" else one.kind
            sums[name] += message.tokens if len(message.pieces) == 1 else estimate(one.text)
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


# one event in many requests -----------------------------------------------------------------------------


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
    requests = [one for one in past.requests if one.session_id == past.session_id]
    numbers = [one.seq for one in requests]
    begin = bisect.bisect_right(numbers, event.seq)
    if begin == len(numbers):
        return []
    changes: dict[int, tuple[int | None, str]] = {
        begin: (None, "")
    }  # the request at which a form may begin, and why
    for seq, plan in plans_about(past, event.seq):
        at = bisect.bisect_right(numbers, seq)
        if at < len(numbers):
            changes[at] = (seq, plan.reason)
    found: list[Stretch] = []
    places = sorted(changes)
    for at, end in zip(places, [*places[1:], len(numbers)], strict=True):
        _, context = past.context(requests[at])
        if context is None:
            return []
        how = whereabouts(context.view, event.seq)
        how = "as a line of the index" if how.startswith("index: ") else how
        if found and found[-1].how == how:
            found[-1] = replace(found[-1], last=numbers[end - 1], count=found[-1].count + end - at)
        else:
            found.append(Stretch(numbers[at], numbers[end - 1], end - at, how, *changes[at]))
    return found


def plans_about(past: Past, seq: int) -> list[tuple[int, EvictionPlan]]:
    """The eviction plans that name an event, oldest first."""
    found = []
    for event in past.evictions[
        bisect.bisect_right(past.evictions, seq, key=lambda one: one.seq) :
    ]:
        plan = plan_of(event)
        if (
            seq in plan.folded
            or any(one == seq for one, _ in plan.clipped)
            or any(lo <= seq <= hi for lo, hi in plan.evicted)
        ):
            found.append((event.seq, plan))
    return found


def why(past: Past, request: Event, event: Event) -> dict[str, Any]:
    """Whether a request showed an event and, if not, why not: a sentence, and the plans that had a
    part in it.
    """
    _, context = past.context(request)
    answer: dict[str, Any] = {"event": event.seq, "plans": [], "cell": None, "now": ""}
    if context is None:
        return answer | {"said": "The context of this request is not known here."}
    if event.seq > request.seq:
        return answer | {"said": "It was recorded after this request."}
    where = whereabouts(context.view, event.seq)
    if event.kind in BOOKKEEPING:
        return answer | {"said": "It is bookkeeping, which is never shown as a message."}
    plans = [(seq, plan) for seq, plan in plans_about(past, event.seq) if seq < request.seq]
    answer |= {
        "plans": plans,
        "now": where.removeprefix("index: ") if where.startswith("index: ") else "",
    }
    if cell := event.metadata.get("inside_cell"):
        said_so = "It was called inside a cell. The model sees what the cell prints, not what its calls return."
        return answer | {"said": said_so, "cell": cell}
    if where.startswith("index: "):
        return answer | {"said": "It was not shown. A line of the index stood for it."}
    if where.startswith("shown"):
        return answer | {"said": f"It was {where}."}
    if event.session_id != request.session_id:
        return answer | {
            "said": "It belongs to another session, and no line of the index named it."
        }
    if event.kind == Kind.ARTIFACT:
        return answer | {
            "said": "Bytes are never shown; the result that they belong to names their seq."
        }
    return answer | {"said": "It was not part of the view."}
