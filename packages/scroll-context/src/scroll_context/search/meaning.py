"""Search by meaning, optional: vectors of the user's turns, made by an embedder that the
application brings.

Words remain the way to search; vectors find what was said in other words, and are worth their cost
only where that matters. They are derived from the log like the index, lie in a folder beside it,
one for each embedder, and can be deleted at any time. A search first embeds what is new, as far as
its patience goes, and says how many turns are missing. It compares the query with every vector that
the grant and the filters permit, so that no score depends on anything else.
"""

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import msgspec

from scroll_context.errors import BadInput, ScrollError
from scroll_context.events import EVERYTHING, Event, Grant
from scroll_context.log.filters import NO_FILTERS, FilterFields, SearchFilters, conditions
from scroll_context.log.log import EventLog
from scroll_context.log.ownership import check_folder, open_file
from scroll_context.log.schema import private_folder, size_of, try_lock
from scroll_context.text.words import body

if TYPE_CHECKING:
    import numpy as np

BATCH = 32  # texts given to the embedder at once
CHARS = 1_500  # of a turn that are embedded; models read little more
PATIENCE = 2.0  # seconds that a search embeds what is new
RANK = 60  # of reciprocal rank fusion: how little the first places differ


class Embedder(Protocol):
    """Makes vectors of texts.

    Texts of like meaning have vectors of like direction; all have the same length.
    """

    @property
    def name(self) -> str:
        """What tells its vectors from those of another model."""

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector a text, in order."""


class Meant(msgspec.Struct, frozen=True):
    """The turns that are nearest to a query in meaning, best first, and how many turns have no
    vector yet.
    """

    seqs: list[int]
    missing: int


class _About(msgspec.Struct, frozen=True):
    """What the vectors on disk are of."""

    embedder: str
    dimensions: int
    count: int
    last_seq: int
    chain: str  # of the event at the last seq: vectors of another log are made anew


class MeaningIndex:
    """The vectors of one store and one embedder. Share one instance between threads."""

    def __init__(self, folder: Path, log: EventLog, embedder: Embedder) -> None:
        self.embedder = embedder
        self._folder = folder / hashlib.sha256(embedder.name.encode()).hexdigest()[:16]
        self._log = log
        self._lock = threading.RLock()
        self._loaded: tuple[_About, np.ndarray, np.ndarray] | None = (
            None  # what the files were of, seqs, vectors
        )

    def search(
        self,
        query: str,
        *,
        k: int = 10,
        grant: Grant = EVERYTHING,
        exclude: Collection[int] = (),
        filters: SearchFilters = NO_FILTERS,
        patience: float = PATIENCE,
        **fields: Unpack[FilterFields],
    ) -> Meant:
        """The turns of the user nearest to a query in meaning; filters as for `SearchIndex.search`."""
        np = _numpy()
        self.catch_up(patience)
        where, values = conditions(grant, filters.narrowed(**fields))
        rows = self._log.query(f"SELECT seq FROM event WHERE {where}", values)
        permitted = np.array([seq for (seq,) in rows if seq not in exclude], dtype=np.int64)
        with self._lock:
            seqs, vectors = self._load()
        mine = np.isin(seqs, permitted)
        scores = vectors[mine] @ self._embed([query])[0] if mine.any() else np.empty(0)
        order = np.lexsort((seqs[mine], -scores))[:k]
        return Meant([int(seq) for seq in seqs[mine][order]], self._missing(grant))

    def catch_up(
        self, timeout: float | None = None, progress: Callable[[int, int], None] | None = None
    ) -> bool:
        """Embed the turns that are new; False when time ran out first, or another process is at it."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock, self._writing() as ours:
            if not ours:
                return not self._missing()
            done, total = 0, self._missing() if progress is not None else 0
            batch: list[Event] = []
            for event in self._turns_after(self._last()):
                batch.append(event)
                if len(batch) == BATCH:
                    if until is not None and time.monotonic() > until:
                        return False
                    self._append(batch)
                    done += len(batch)
                    batch = []
                    if progress is not None:
                        progress(done, total)
            if batch:
                self._append(batch)
        return True

    # files ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self) -> Iterator[bool]:
        """Whether this process may write now; the vectors of another log are removed first."""
        private_folder(self._folder.parent)
        private_folder(self._folder)
        check_folder(self._folder, inside=True)
        handle = open_file(self._folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            ours = try_lock(handle)
            if ours and not self._is_of_this_log():
                for name in ("vectors", "seqs", "about.json"):
                    (self._folder / name).unlink(missing_ok=True)
                self._loaded = None
            yield ours
        finally:
            os.close(handle)

    def _append(self, events: list[Event]) -> None:
        np = _numpy()
        vectors = self._embed([body(event.content)[:CHARS] for event in events])
        about = self._about()
        if about is not None and about.dimensions != vectors.shape[1]:
            raise ScrollError(
                f"the embedder {self.embedder.name!r} gives {vectors.shape[1]} dimensions and gave {about.dimensions}; "
                "give another model another name"
            )
        count = about.count if about is not None else 0  # rows that were written whole
        for name, values in (
            ("vectors", vectors.astype("<f4")),
            ("seqs", np.array([e.seq for e in events], "<i8")),
        ):
            with open(self._folder / name, "ab") as file:
                os.fchmod(file.fileno(), 0o600)
                file.truncate(
                    count * values[0].nbytes
                )  # what a killed process left behind the last whole row
                file.write(values.tobytes())
        last = events[-1]
        about = _About(
            self.embedder.name,
            int(vectors.shape[1]),
            count + len(events),
            last.seq,
            last.chain.hex(),
        )
        draft = self._folder / "about.new"
        draft.write_bytes(msgspec.json.encode(about))
        draft.replace(self._folder / "about.json")

    def _load(self) -> "tuple[np.ndarray, np.ndarray]":
        np = _numpy()
        about = self._about()
        if about is None or not about.count:
            return np.empty(0, np.int64), np.empty((0, 1), np.float32)
        if self._loaded is None or self._loaded[0] != about:
            seqs = np.fromfile(self._folder / "seqs", "<i8", about.count)
            vectors = np.fromfile(self._folder / "vectors", "<f4", about.count * about.dimensions)
            self._loaded = about, seqs, vectors.reshape(about.count, about.dimensions)
        return self._loaded[1], self._loaded[2]

    def _about(self) -> _About | None:
        try:
            return msgspec.json.decode((self._folder / "about.json").read_bytes(), type=_About)
        except (OSError, msgspec.DecodeError):
            return None

    def _is_of_this_log(self) -> bool:
        about = self._about()
        if about is None or about.embedder != self.embedder.name:
            return False
        is_whole = all(
            size_of(self._folder / name) >= about.count * row
            for name, row in (("vectors", 4 * about.dimensions), ("seqs", 8))
        )
        last = self._log.get_many([about.last_seq])
        return is_whole and bool(last) and last[0].chain.hex() == about.chain

    # turns ----------------------------------------------------------------------------------------------

    def _last(self) -> int:
        about = self._about()
        return about.last_seq if about is not None else 0

    def _turns_after(self, seq: int, grant: Grant = EVERYTHING) -> Iterator[Event]:
        found = self._log.iterate(
            after=seq, until=self._log.applied_seq(), role="user", grant=grant
        )
        return (event for event in found if event.is_searchable and event.content)

    def _missing(self, grant: Grant = EVERYTHING) -> int:
        """The turns within a grant that have no vector yet."""
        return sum(1 for _ in self._turns_after(self._last(), grant))

    def _embed(self, texts: list[str]) -> Any:
        np = _numpy()
        vectors = np.asarray(self.embedder.embed(texts), dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
            raise ScrollError(
                f"the embedder {self.embedder.name!r} gave no vector of numbers for each of the texts"
            )
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def fused(*rankings: Sequence[int]) -> list[int]:
    """One order of several: reciprocal rank fusion, ties by seq."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for place, seq in enumerate(ranking, 1):
            scores[seq] = scores.get(seq, 0.0) + 1 / (RANK + place)
    return sorted(scores, key=lambda seq: (-scores[seq], seq))


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise BadInput(
            "search by meaning needs numpy: pip install 'scroll-context[meaning]'"
        ) from None
    return numpy
