"""How full the window was at each request of a session: tokens, what the cache gave, cost, evictions and the index.

Numbers are kept for the sessions that were looked at last and grow with the log. A chart has at most `COLUMNS`
columns; where a session has more requests, a column stands for a run of them and leads to a chart of that run.
"""

import bisect
from collections.abc import Sequence

import msgspec

from scroll_context.events import Kind
from scroll_context.session.explain import Past
from scroll_context.web.seen import marks

COLUMNS = 300


class Asked(msgspec.Struct):
    """One request in numbers."""

    seq: int
    tokens: int  # as estimated before it was sent
    evicted: bool  # a plan came just before
    reported: int = 0  # as the provider counted; 0 when it did not
    cached: int = 0
    dollars: float = 0.0
    reply: int = 0


class Column(msgspec.Struct, frozen=True):
    """Some requests in a row; the numbers are those of the largest, the cost is what all had cost by then."""

    first: int
    last: int
    count: int
    tokens: int
    cached: int
    dollars: float
    evictions: int
    index: int
    window: int


class Pressure:
    """The requests of one session in numbers. Not for two threads."""

    def __init__(self) -> None:
        self.requests: list[Asked] = []
        self._upto = 0
        self._evicted = False
        self._waiting: Asked | None = None

    def catch_up(self, past: Past) -> None:
        """Take in what was recorded since."""
        rows = past.store.log.query(
            f"""SELECT seq, kind, role, json_extract(metadata, '$.tokens'),
            json_extract(metadata, '$.usage.input_tokens'), json_extract(metadata, '$.usage.cache_read_tokens'),
            json_extract(metadata, '$.cost') FROM event WHERE session_id = ? AND seq > ? AND seq <= ?
            AND kind IN ('{Kind.REQUEST}', '{Kind.CONVERSATION}', '{Kind.EVICTION}') ORDER BY seq""",
            [past.session_id, self._upto, past.upto],
        )
        for seq, kind, role, tokens, reported, cached, cost in rows:
            if kind == Kind.EVICTION:
                self._evicted = True
            elif kind == Kind.REQUEST:
                self._waiting = Asked(seq, int(tokens or 0), self._evicted)
                self.requests.append(self._waiting)
                self._evicted = False
            elif role == "assistant" and self._waiting is not None:
                self._waiting.reported, self._waiting.cached = int(reported or 0), int(cached or 0)
                self._waiting.dollars, self._waiting.reply = float(cost or 0), seq
                self._waiting = None
        self._upto = past.upto

    def between(self, lo: int, hi: int) -> list[Asked]:
        first = bisect.bisect_left(self.requests, lo, key=lambda one: one.seq)
        last = bisect.bisect_right(self.requests, hi, key=lambda one: one.seq) if hi else len(self.requests)
        return self.requests[first:last]


class Chart(msgspec.Struct, frozen=True):
    """What a chart of some requests shows."""

    columns: tuple[Column, ...]
    high: float
    low: float
    requests: Sequence[Asked]


def chart(past: Past, pressure: Pressure, lo: int = 0, hi: int = 0) -> Chart:
    """The columns for the requests between two seqs; 0 for an open end."""
    asked = pressure.between(lo, hi)
    newest = past.request_at(asked[-1].seq) if asked else None
    sizes = past.index_sizes(newest) if newest is not None else []
    windows = [(one.seq, int(one.metadata.get("window", 0))) for one in past.setups if "tools" in one.metadata]
    each = -(-len(asked) // COLUMNS) or 1
    spent = sum(one.dollars for one in pressure.between(0, asked[0].seq - 1)) if asked else 0.0
    columns = []
    for at in range(0, len(asked), each):
        part = asked[at : at + each]
        largest = max(part, key=lambda one: one.reported or one.tokens)
        spent += sum(one.dollars for one in part)
        columns.append(
            Column(
                first=part[0].seq,
                last=part[-1].seq,
                count=len(part),
                tokens=largest.reported or largest.tokens,
                cached=largest.cached,
                dollars=spent,
                evictions=sum(one.evicted for one in part),
                index=_at(sizes, part[-1].seq),
                window=_at(windows, part[-1].seq),
            )
        )
    high, low = marks(past, asked[-1].seq + 1 if asked else 0)
    return Chart(tuple(columns), high, low, asked)


def _at(steps: list[tuple[int, int]], seq: int) -> int:
    """The value that held before the event at `seq`."""
    at = bisect.bisect_left(steps, seq, key=lambda one: one[0])
    return steps[at - 1][1] if at else 0
