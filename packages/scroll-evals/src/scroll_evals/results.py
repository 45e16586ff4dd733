"""The folder of a run: everything that is known of it, one file a trial, each written whole or not
at all.

    config.json        what was run, with which versions, and when each process began
    trajectories/      an attempt a file: the paper's task_id, metrics and steps, with outcome and answer
    requests/          what the model saw at each step, a file a trial, for `export-sft`
    judgements/        every raw reply of the judge, and the verdict, a file a trial
    tracebacks/        of internal errors
    ingestion/         what preparing a history cost, where a context pays for that
    faults.json        what could not be used or finished, by its name
    scores.json        the numbers, computed from the files above
    stores/            histories and trials at work, emptied as they finish; of LOCA, logs/ has each server's log

A trial counts when its trajectory is there, and a judge's reply when it is in its file: both are on
disk before anything is built on them, so a killed run goes on without repeating or paying for
anything twice.
"""

import contextlib
import fcntl
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from scroll_context import __version__
from scroll_context.contents import Usage
from scroll_context.errors import BadInput
from scroll_evals.protocols import Attempt, Judged, Metrics, Scores, slug
from scroll_evals.tasks import DataFault

T = TypeVar("T")

CONFIG = "config.json"
STORES = "stores"
LOCK = ".lock"
LIBRARIES = ("msgspec", "tantivy", "cloudpickle", "pydantic-ai-slim", "openai", "anthropic")
"""Their versions are recorded with a run."""


class Start(msgspec.Struct, frozen=True):
    """One process that worked on the run."""

    at: str
    versions: dict[str, str]


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run. All except `starts` must be the same when the run is resumed."""

    benchmark: str
    split: str
    model: str
    context: str = "scroll"
    judge: str = ""
    compat: str = ""  # "official": scored as the benchmark's reference code does
    window: int = 0  # tokens
    limits: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    source: str = ""  # where the data was read from; may move
    starts: tuple[Start, ...] = ()

    def same_run(self, other: "RunConfig") -> list[str]:
        """The fields in which two runs differ."""
        ignored = ("starts", "source")
        return [
            name
            for name in self.__struct_fields__
            if name not in ignored and getattr(self, name) != getattr(other, name)
        ]


class JudgeReply(msgspec.Struct, frozen=True, kw_only=True):
    """One reply of the judge, as it came."""

    key: str
    prompt: str
    reply: str
    model: str = ""
    usage: Usage = Usage()
    cost: float | None = None


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The judge's replies about a trial, and the score; `judged` is None until it is finished."""

    task_id: str
    replies: tuple[JudgeReply, ...] = ()
    judged: Judged | None = None


class Spending(msgspec.Struct, kw_only=True):
    """Tokens and money, added up."""

    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    dollars: float = 0.0

    def add(self, tokens_in: int, tokens_out: int, dollars: float, tokens_cached: int = 0) -> None:
        self.tokens_in += tokens_in
        self.tokens_out += tokens_out
        self.tokens_cached += tokens_cached
        self.dollars += dollars


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """scores.json: the scores of a run and what stands behind them."""

    benchmark: str
    split: str
    model: str
    context: str
    judge: str
    trials: int  # in this run
    scored: int
    # trials without a verdict, for reasons that are not the model's; a resumed run tries them again
    unfinished: int
    scores: Scores
    outcomes: dict[str, int]
    faults: dict[str, int]  # by outcome; faults.json has all of them
    medians: dict[str, float]  # of the metrics, over all trials that ended
    agent: Spending
    judging: Spending
    ingestion: Spending


class RunFolder:
    """A run on disk. Several threads may write different trials at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def work(self) -> Path:
        return self.path / STORES

    # the run --------------------------------------------------------------------------------------

    def config(self) -> RunConfig:
        found = self._read(CONFIG, RunConfig)
        if found is None:
            raise BadInput(
                f"{self.path} is not a run: it has no {CONFIG}. `scroll eval beam … --out DIR` makes one."
            )
        return found

    def begin(self, config: RunConfig) -> RunConfig:
        """Enter what is to be run; a folder that holds another run is refused."""
        known = self._read(CONFIG, RunConfig)
        if known is not None:
            different = known.same_run(config)
            if different:
                said = ", ".join(f"{name}: {getattr(known, name)!r} there" for name in different)
                raise BadInput(
                    f"{self.path} holds another run ({said}). Nothing was changed; name another folder."
                )
            config = msgspec.structs.replace(config, starts=(*known.starts, *config.starts))
        elif self.path.exists() and any(one.name != LOCK for one in self.path.iterdir()):
            raise BadInput(
                f"{self.path} is not empty and not a run. Nothing was changed; name another folder."
            )
        self._write(CONFIG, config)
        return config

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process; released by the system however the process ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(
                    f"another process is working on {self.path}; wait for it, or name another folder"
                ) from None
            yield
        finally:
            os.close(handle)

    def save_summary(self, summary: Summary, faults: list[DataFault]) -> None:
        self._write("faults.json", faults)
        self._write("scores.json", summary)

    def summary(self) -> Summary | None:
        return self._read("scores.json", Summary)

    def faults(self) -> list[DataFault]:
        return self._read("faults.json", list[DataFault]) or []

    # its trials -----------------------------------------------------------------------------------

    def attempt(self, task_id: str) -> Attempt | None:
        return self._read(f"trajectories/{slug(task_id)}.json", Attempt)

    def attempts(self) -> Iterator[Attempt]:
        for file in sorted((self.path / "trajectories").glob("*.json")):
            found = self._read(f"trajectories/{file.name}", Attempt)
            if found is not None:
                yield found

    def save_attempt(self, attempt: Attempt, requests: list[dict[str, Any]]) -> None:
        """From here on the trial is finished."""
        if requests:
            self._write(f"requests/{slug(attempt.task_id)}.json", requests)
        self._write(f"trajectories/{slug(attempt.task_id)}.json", attempt)

    def requests(self, task_id: str) -> list[dict[str, Any]]:
        return self._read(f"requests/{slug(task_id)}.json", list[dict[str, Any]]) or []

    def judgement(self, task_id: str) -> Judgement:
        return self._read(f"judgements/{slug(task_id)}.json", Judgement) or Judgement(
            task_id=task_id
        )

    def save_judgement(self, judgement: Judgement) -> None:
        self._write(f"judgements/{slug(judgement.task_id)}.json", judgement)

    def save_traceback(self, task_id: str, text: str) -> None:
        self._replace(f"tracebacks/{slug(task_id)}.txt", text.encode("utf-8", "backslashreplace"))

    def save_ingestion(self, group: str, metrics: Metrics) -> None:
        self._write(f"ingestion/{slug(group)}.json", metrics)

    def ingestion(self) -> list[Metrics]:
        files = sorted((self.path / "ingestion").glob("*.json"))
        return [found for file in files if (found := self._read(f"ingestion/{file.name}", Metrics))]

    # files ----------------------------------------------------------------------------------------

    def _read(self, name: str, form: type[T]) -> T | None:
        try:
            data = (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return msgspec.json.decode(data, type=form)
        except msgspec.MsgspecError as error:
            raise BadInput(
                f"{self.path / name} is not what this version writes ({error}); remove it to redo it"
            ) from error

    def _write(self, name: str, value: Any) -> None:
        self._replace(name, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")

    def _replace(self, name: str, data: bytes) -> None:
        """Write a file so that a reader, or a process after a crash, finds the old one or the new
        one whole.
        """
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.partial")
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def runs_below(paths: list[Path]) -> list[RunFolder]:
    """Every run in these folders, in a stable order."""
    found = [
        file.parent
        for path in paths
        for file in sorted(path.rglob(CONFIG))
        if STORES not in file.relative_to(path).parts
    ]
    if not found:
        raise BadInput(f"there is no run in {', '.join(map(str, paths))}; a run has a {CONFIG}")
    return [RunFolder(path) for path in dict.fromkeys(found)]


def versions() -> dict[str, str]:
    """Scroll, Python, the system and the libraries that a result may depend on."""
    found = {
        "scroll": __version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
    }
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found
