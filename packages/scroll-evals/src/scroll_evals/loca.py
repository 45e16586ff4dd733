"""LOCA-bench as a suite: tasks in an environment that is generated in a given size, scored by the
benchmark's rules.

The agent gets the benchmark's own instructions, unmodified, and metadata of the environment: its
APIs, its workspace. A trial starts a server, which generates the environment. The agent then works
until it claims to be done, the server verifies the state, and the trial stops the server. An
environment lives as long as its server, so an interrupted trial starts again from the beginning. A
task scores only if the agent claimed it; otherwise the verifier's result is recorded without a
score.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from scroll_context.background import in_thread
from scroll_context.errors import BadInput, ContextOverflow, ModelRefused, ToolFailed
from scroll_context.events import Kind
from scroll_context.session.options import SessionOptions
from scroll_context.session.past import lineage
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_evals.contexts import CONTEXTS
from scroll_evals.loca_environment import ServerEnvironment, existing, prepared
from scroll_evals.loca_sandbox import LocaTask, Sandbox, generation_log, last_line
from scroll_evals.loca_server import SCRIPT, LocaServer
from scroll_evals.protocols import (
    Attempt,
    Metrics,
    Setup,
    Stop,
    TrialOutcome,
    VerifierScoring,
    slug,
)
from scroll_evals.replay import limits_left, metrics_and_steps, requests_seen
from scroll_evals.tasks import DataFault, rubric
from scroll_evals.trial_agent import TrialAgent

T = TypeVar("T")

SIZES = ("8k", "16k", "32k", "64k", "96k", "128k", "256k")
CELL_SECONDS = 1_800.0  # a call takes seconds, and cells loop over them
GENERATION_SECONDS = (
    1_800.0  # the largest environments are gigabytes and take many minutes to generate
)
TELL_SECONDS = 30.0  # between two progress lines during the generation
REMINDERS = 2  # for a model that ends with plain text
SESSION = "loca"

_IN_CELLS = (
    "The APIs are the functions listed above. One returns what the tool said: a Python value where that is JSON, else "
    "text. They run outside your kernel, one call at a time; your kernel itself cannot open the workspace's files. The "
    "variable `workspace` holds the workspace's path."
)
_UNCLAIMED = "The task is not over: it ends when you call `{claim}`. Go on with it, or call that if all is done."


class LocaSuite:
    """The tasks of some sizes, ready to be run."""

    name = "loca"

    def __init__(
        self,
        *,
        checkout: Path,
        sizes: Sequence[str],
        limit: int | None = None,
        only: Sequence[str] = (),
        python: Path | None = None,
        progress: Callable[[str], None] = lambda _: None,
        generation_seconds: float = GENERATION_SECONDS,
        tell_seconds: float = TELL_SECONDS,
    ) -> None:
        """`only` names families of tasks, and `limit` takes the first tasks of each size; with
        `python`, no environment is made for the server. While an environment is being generated,
        which may take `generation_seconds`, `progress` gets a line about it every `tell_seconds`.
        """
        unknown = [size for size in sizes if size not in SIZES]
        if unknown or not sizes:
            raise BadInput(
                f"LOCA has no size {', '.join(unknown) or '(none)'}; choose from {', '.join(SIZES)}"
            )
        if not (checkout / SCRIPT).is_file():
            raise BadInput(
                f"{checkout} has no {SCRIPT}: it is not a checkout of LOCA-bench with its sandbox server. "
                "Get one with: git clone --branch loca-sandbox https://github.com/hkust-nlp/LOCA-bench"
            )
        self.sizes = tuple(dict.fromkeys(sizes))
        self.split = ",".join(self.sizes)
        self.scoring = VerifierScoring()
        self._checkout = checkout.absolute()
        self._limit = limit
        self._only = tuple(only)
        self._python = python
        self._generation = Generation(generation_seconds, tell_seconds, progress)

    def trials(self) -> Iterator["LocaTrial | DataFault"]:
        """Every task of the families wanted, one of each family first.

        The server's environment is made before that.
        """
        environment = (
            existing(self._python)
            if self._python
            else prepared(self._checkout, self._generation.tell)
        )
        for size in self.sizes:
            listed = list(enumerate(configs(self._checkout, size)))
            yield from (fault for _, fault in listed if isinstance(fault, DataFault))
            wanted = by_turns(
                [(at, one) for at, one in listed if isinstance(one, LocaTask)], self._only, size
            )
            for at, config in wanted[: self._limit]:
                yield LocaTrial(size, at, config, self._checkout, environment, self._generation)

    def preparation(self, group: str, work: Path) -> Metrics:  # noqa: ARG002
        return Metrics()

    def release(self, group: str, work: Path) -> None:
        """Nothing is prepared for a group."""


class Generation(msgspec.Struct, frozen=True):
    """How environments are generated: how long that may take, and how often `tell` gets a line
    about its progress.
    """

    seconds: float
    tell_seconds: float
    tell: Callable[[str], None]


class LocaTrial:
    """One task, in an environment of its own."""

    def __init__(
        self,
        size: str,
        at: int,
        config: LocaTask,
        checkout: Path,
        environment: ServerEnvironment,
        generation: Generation,
    ) -> None:
        seed = (
            ""
            if config.seed is None or f"seed{config.seed}" in config.name
            else f"-seed{config.seed}"
        )
        self.task_id = f"loca/{size}/{at:02d}-{config.name}{seed}"
        self.ability = size
        self.group = self.task_id
        self._config = config
        self._checkout = checkout
        self._environment = environment
        self._generation = generation

    def run(self, setup: Setup, work: Path, stop: Stop) -> Attempt:
        self.discard(work)  # what an interrupted run left cannot be continued
        folder, log = self._folder(work), work / "logs" / f"{slug(self.task_id)}.log"
        folder.mkdir(parents=True)
        log.parent.mkdir(exist_ok=True)
        try:
            server = LocaServer.start(
                self._checkout, self._environment, folder, log, check=stop.check
            )
        except ToolFailed as fault:
            return self._attempt(TrialOutcome.ENVIRONMENT, f"server-failed: {fault}")
        with server:
            try:
                sandbox = self._generated(server, folder, stop)
            except ToolFailed as fault:
                if fault.state == "timeout":
                    said = f"generation-timeout: {fault}{last_line(generation_log(folder))}"
                else:
                    said = f"{_cause(server, 'environment-failed')}: {fault}"
                return self._attempt(TrialOutcome.ENVIRONMENT, said)
            with contextlib.closing(sandbox):
                return self._worked_on(setup, server, sandbox, folder, stop)

    def requests(self, work: Path) -> list[dict[str, Any]]:
        with Store(self._folder(work) / "store") as store:
            return requests_seen(store, list(lineage(store, SESSION)))

    def discard(self, work: Path) -> None:
        shutil.rmtree(self._folder(work), ignore_errors=True)

    def _generated(self, server: LocaServer, folder: Path, stop: Stop) -> Sandbox:
        """Have the environment generated, and tell now and then that this goes on."""
        generation, begun, tells = self._generation, time.monotonic(), 1

        def waiting() -> None:
            nonlocal tells
            seconds = time.monotonic() - begun
            if seconds >= tells * generation.tell_seconds:
                tells += 1
                minutes = (
                    f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"
                )
                said = last_line(generation_log(folder))
                generation.tell(f"{self.task_id} is being generated for {minutes}{said}")

        return _awaited(
            lambda: Sandbox.open(server.client, self._config, folder, generation.seconds),
            stop,
            waiting,
        )

    def _worked_on(
        self, setup: Setup, server: LocaServer, sandbox: Sandbox, folder: Path, stop: Stop
    ) -> Attempt:
        """Let the agent work, and have what it did verified."""
        seconds = setup.limits.seconds
        options = SessionOptions(
            reach="task",
            context=setup.context,
            cell_timeout=CELL_SECONDS if seconds is None else min(CELL_SECONDS, max(1.0, seconds)),
        )
        in_cells = CONTEXTS[setup.context].actions.exec
        tools = sandbox.tools(in_cells=in_cells)
        with (
            Store(folder / "store", create=True) as store,
            Session.open(
                store, session_id=SESSION, task_id=self.task_id, options=options, tools=tools
            ) as session,
        ):
            if in_cells:
                session.environment.toolbox.bind("workspace", str(sandbox.workspace))
                session.environment.tools_changed()
            try:
                outcome, detail = _worked(
                    session, setup, server, sandbox, self._metadata(sandbox, in_cells), stop
                )
            except ContextOverflow as error:
                outcome, detail = TrialOutcome.OVERFLOW, str(error)
            except ModelRefused as error:
                outcome, detail = TrialOutcome.REFUSED, str(error)
            metrics, steps = metrics_and_steps(list(session.events()), store.log.text)
        fields: dict[str, Any] = {
            "metrics": metrics,
            "steps": steps,
            "prompt": sandbox.instructions,
        }
        if outcome in (TrialOutcome.ENVIRONMENT, TrialOutcome.REFUSED):
            return self._attempt(outcome, detail, **fields)
        try:
            verdict = _awaited(sandbox.evaluate, stop)
        except ToolFailed as fault:
            return self._attempt(
                TrialOutcome.ENVIRONMENT,
                f"{_cause(server, 'evaluation-failed')}: {fault}",
                **fields,
            )
        score = verdict.reward if outcome == TrialOutcome.ANSWERED else 0.0
        return self._attempt(
            outcome, detail, score=score, verifier=msgspec.to_builtins(verdict), **fields
        )

    def _metadata(self, sandbox: Sandbox, in_cells: bool) -> str:
        """The text that the agent gets beside the task: the APIs and paths of the environment."""
        told = rubric("loca").format(
            servers=", ".join(f"`{one}`" for one in self._config.servers),
            workspace=sandbox.workspace,
            claim=sandbox.finish.name,
        )
        return f"{told}\n\n{_IN_CELLS}" if in_cells else told

    def _attempt(
        self, outcome: TrialOutcome, detail: str, *, verifier: Any = None, **fields: Any
    ) -> Attempt:
        task = {"family": self._config.family, "config": self._config.whole}
        if verifier is not None:
            task["verifier"] = verifier
        return Attempt(
            task_id=self.task_id,
            ability=self.ability,
            outcome=outcome,
            detail=detail,
            task=task,
            **fields,
        )

    def _folder(self, work: Path) -> Path:
        return work / slug(self.task_id)


def configs(checkout: Path, size: str) -> Iterator[LocaTask | DataFault]:
    """The benchmark's tasks of a size, in its order."""
    file = checkout / "inference" / "react" / f"final_{size}_set_config_multi_seed.json"
    try:
        entries = msgspec.json.decode(file.read_bytes(), type=_Configurations).configurations
    except OSError as error:
        yield DataFault(
            str(file), "missing-file", f"the tasks of size {size} cannot be read: {error.strerror}"
        )
        return
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        yield DataFault(str(file), "bad-json", f"the tasks of size {size} cannot be read: {error}")
        return
    for at, whole in enumerate(entries):
        try:
            entry = msgspec.convert(whole, _Entry)
        except msgspec.ValidationError as error:
            yield DataFault(f"{file}: configurations[{at}]", "bad-config", str(error))
            continue
        family = entry.env_class.rpartition(".")[2].removesuffix("Env").removesuffix("S2L")
        seed = entry.env_params.get("seed")
        servers = tuple(
            name for name, server in entry.mcp_servers.items() if server.get("enabled", True)
        )
        yield LocaTask(entry.name, family, seed if isinstance(seed, int) else None, servers, whole)


def by_turns(
    tasks: Sequence[tuple[int, LocaTask]], only: Sequence[str], size: str
) -> list[tuple[int, LocaTask]]:
    """The tasks of the families wanted, in turns: one of each family, then the next of each."""
    families: dict[str, list[tuple[int, LocaTask]]] = {}
    for task in tasks:
        families.setdefault(task[1].family, []).append(task)
    names = {family.lower(): family for family in families}
    for name in only if families else ():
        if name.lower() not in names:
            known = ", ".join(sorted(families))
            raise BadInput(
                f"there is no family {name!r} among the tasks of size {size}; there are {known}"
            )
    wanted = {names[name.lower()] for name in only if name.lower() in names} or set(families)
    turns = zip_longest(*(found for family, found in families.items() if family in wanted))
    return [task for turn in turns for task in turn if task is not None]


class _Configurations(msgspec.Struct):
    configurations: list[dict[str, Any]]


class _Entry(msgspec.Struct):
    name: str
    env_class: str
    env_params: dict[str, Any] = {}
    mcp_servers: dict[str, dict[str, Any]] = {}


def _worked(
    session: Session,
    setup: Setup,
    server: LocaServer,
    sandbox: Sandbox,
    instructions: str,
    stop: Stop,
) -> tuple[TrialOutcome, str]:
    """Let the agent work until it claims to be done, or cannot go on."""
    claim = sandbox.finish
    agent = TrialAgent(
        session,
        setup.model,
        limits=setup.limits,
        settings=setup.settings,
        cell_tools=("repl_exec", "recall_history_python")
        if session.context.actions.ms
        else ("repl_exec",),
        instructions=instructions,
        finish_tool=claim,
    )
    sandbox.on_fault = lambda fault: (
        agent.stop() if fault.kind == "ConnectionError" and server.has_died() else None
    )
    message: str | None = sandbox.instructions
    for _ in range(1 + REMINDERS):
        with stop.reaching(agent):
            run = agent.run(message)
        stop.check()
        if _called(session, claim.name):
            return TrialOutcome.ANSWERED, ""
        if server.has_died():
            return (
                TrialOutcome.ENVIRONMENT,
                f"server-died: the sandbox server ended while it was in use.{server.log_tail()}",
            )
        if run.state == "silent":
            return TrialOutcome.NO_ANSWER, "only empty replies"
        if run.state != "answered":
            return TrialOutcome.LIMIT, run.state
        session.notice(_UNCLAIMED.format(claim=claim.name))
        agent.limits = limits_left(
            setup.limits, metrics_and_steps(list(session.events()), session.store.log.text)[0]
        )
        message = None
    return TrialOutcome.NO_ANSWER, f"it never called {claim.name}, however often it was reminded"


def _called(session: Session, name: str) -> bool:
    """Whether the newest reply calls this tool."""
    replies = [e for e in session.events() if e.kind == Kind.CONVERSATION and e.role == "assistant"]
    return bool(replies) and any(
        call["name"] == name for call in replies[-1].metadata.get("tool_calls", ())
    )


def _awaited(work: Callable[[], T], stop: Stop, waiting: Callable[[], None] = lambda: None) -> T:
    """The result of `work`; `waiting` is called now and then until it returns.

    Raises Stopped, and leaves the work alone, when the run is to stop.
    """
    future = in_thread(work, "loca")
    while not wait([future], timeout=0.2).done:
        stop.check()
        waiting()
    found: T = future.result()
    return found


def _cause(server: LocaServer, otherwise: str) -> str:
    return "server-died" if server.has_died() else otherwise
