"""The parts of every memory benchmark, independent of its file format: histories, and questions
about them.

A history is ingested once, and many questions are asked about it. A question names its evidence by
the source's own ids, which every turn has in `metadata.source_id`, so that retrieval can be scored
without a model. Each benchmark has a module that reads its files. This one holds the values, and
finds the texts and samples in the package.
"""

from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import msgspec

from scroll_context.events import Draft, Kind

_UNDATED = "1970-01-01"  # an event needs a date to be stored; its metadata has none


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One probe.

    `rubric` is what a judge checks, one item a call; `answer` the reference where there is one.
    """

    task_id: str  # unique in the benchmark, such as "beam/10M-4/knowledge_update/0"
    history_id: str
    ability: str
    text: str
    answer: str = ""
    rubric: tuple[str, ...] = ()
    evidence: tuple[
        str, ...
    ] = ()  # source ids of the turns that hold the answer; empty when the answer is absent
    asked_at: str = ""  # ISO date on which the question is asked, where the benchmark has one
    metadata: dict[str, Any] = {}


class DataFault(msgspec.Struct, frozen=True):
    """Something in the data that could not be used: it has a named outcome in the results and stops
    nothing.
    """

    where: str  # file and place
    outcome: str  # "missing-file", "bad-json", "duplicate-id", "no-questions", …
    text: str


class History(Protocol):
    """One conversation history of a benchmark.

    Light: it knows where its turns are and reads them when asked.
    """

    @property
    def history_id(self) -> str:
        """Unique in the benchmark, and fit for a file name."""

    def drafts(self) -> Iterator[Draft]:
        """The turns in order, ready to be appended: session, step_index, msg_index, created_at,
        metadata.date set.
        """

    def questions(self) -> Iterable[Question]:
        """The probes about this history."""


class Benchmark(Protocol):
    """A set of histories read from a folder."""

    @property
    def name(self) -> str:
        """Such as "beam" or "longmemeval"."""

    @property
    def split(self) -> str:
        """The part of the benchmark, as the paper calls it."""

    def histories(self) -> Iterator[History | DataFault]:
        """Every history, in a stable order; what cannot be read comes as a DataFault."""

    def rubric_prompt(self) -> str:
        """The instructions for the agent: how the data is laid out, its conventions, the form of an
        answer.
        """


def turn_draft(
    benchmark: str,
    history_id: str,
    *,
    session: int,
    position: int,
    moment: str,
    role: str,
    text: str,
    source_id: str,
    kind: str = Kind.CONVERSATION,
) -> Draft:
    """One turn of a history, ready to be appended; `moment` is ISO, or empty where the benchmark
    has no date.

    The text is stored as it is. The number of its session is `step_index` and its date is in
    `created_at`: a tag in front of it made `LIKE '%2024%'` match every turn.
    """
    date = moment[:10]
    return Draft(
        kind=kind,
        session_id=f"{history_id}/session-{session}",
        task_id=history_id,
        role=role,
        content=text,
        step_index=session,
        msg_index=position,
        created_at=moment or _UNDATED,
        metadata={"source_id": source_id} | ({"date": date} if date else {}),
        source_key=f"{benchmark}/{history_id}/{position}",
    )


def rubric(name: str) -> str:
    """One of the Markdown files in rubrics/."""
    return resources.files("scroll_evals").joinpath("rubrics", f"{name}.md").read_text().strip()


def sample_folder(name: str) -> Path:
    """The small made-up data set of this name that comes with the package, in the benchmark's own
    layout.
    """
    return Path(str(resources.files("scroll_evals").joinpath("sample", name)))
