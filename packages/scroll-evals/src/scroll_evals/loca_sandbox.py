"""A task's environment on a sandbox server: its instructions, its tools as ours, its verifier.

The server answers `init` even when generating the environment failed, and leaves out the tools of a
tool server that did not start. So an environment is used only when its own log says that it was
generated, and when every tool server that the task names has tools. Calls go one at a time, as the
server expects. The log is read from disk: server and evaluation share a machine.
"""

import contextlib
import inspect
import re
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.background import in_thread
from scroll_context.errors import ToolFailed
from scroll_context.messages import ToolSpec
from scroll_context.tools.mcp_values import doc_of, identifier, signature_of, text_value
from scroll_context.tools.plain import Plain, plain
from scroll_context.tools.signatures import RESERVED
from scroll_context.tools.tools import Tool, ToolLimits
from scroll_evals.loca_client import Evaluation, Function, LocaClient, Opened

CALL_SECONDS = 130.0  # for a tool, waiting for another call included
CLAIM = "claim_done"  # part of the name of the tool that ends a task
GENERATED = "preprocessing completed!"  # what every environment logs last when it was generated
WORDS = 2_000  # characters of a log that a fault repeats

_RECORD = re.compile(r"^\d{4}-\S+ \S+ - (\w+) - ", re.MULTILINE)
_FAILED = ("[Tool execution error", "[Tool execution failed", "Error executing tool:")


class LocaTask(msgspec.Struct, frozen=True):
    """One entry of the benchmark's lists; `whole` is what the server is given."""

    name: str
    family: str  # the environment's class, without the suffix that all have
    seed: int | None
    servers: tuple[str, ...]  # tool servers that are enabled
    whole: dict[str, Any]


class Sandbox:
    """An environment that was generated. `close` takes it down."""

    def __init__(self, client: LocaClient, opened: Opened, workspace: Path) -> None:
        self._client = client
        self._id = opened.session_id
        self._turn = threading.Lock()
        self.instructions = opened.observation
        self.workspace = workspace
        self.functions = tuple(offered.function for offered in opened.tools)
        self.on_fault: Callable[[ToolFailed], None] = lambda _: (
            None
        )  # told when a call gets no answer

    @classmethod
    def open(cls, client: LocaClient, config: LocaTask, folder: Path, seconds: float) -> "Sandbox":
        """Have an environment generated in a folder, within so many seconds.

        Raises ToolFailed with the server's words when it was not.
        """
        task = folder / "task"  # the environment wipes and fills it
        workspace = task / "agent_workspace"  # where environments look for the agent's work
        opened = client.init(config.name, config.whole, str(task), str(workspace), seconds)
        sandbox = cls(client, opened, workspace)
        try:
            sandbox._check_complete(config, generation_log(folder))
        except ToolFailed:
            sandbox.close()
            raise
        return sandbox

    def close(self) -> None:
        """Have it taken down; a server that cannot is about to be stopped anyway."""
        with contextlib.suppress(ToolFailed):
            self._client.cleanup(self._id)

    def evaluate(self) -> Evaluation:
        """The verifier's word on what was done. The tools cannot be used afterwards."""
        return self._client.evaluate(self._id)

    def tools(self, *, in_cells: bool) -> tuple[Tool[..., Any], ...]:
        """The environment's tools. Cells get the values that texts spell; for native calls a text
        stays as it is.

        The tool that ends the task is not among them: a model calls it natively, as `finish`.
        """
        made: dict[str, Tool[..., Any]] = {}
        for function in self.functions:
            if CLAIM not in function.name:
                name = _tool_name(function.name, made)
                made[name] = self._tool(name, function, self._caller(function.name, in_cells))
        return tuple(made.values())

    @property
    def finish(self) -> ToolSpec:
        """The tool that ends the task, for native calls."""
        found = next(function for function in self.functions if CLAIM in function.name)
        return ToolSpec(_tool_name(found.name), found.description or found.name, found.parameters)

    def _tool(
        self, name: str, function: Function, work: Callable[[dict[str, Any]], Any]
    ) -> Tool[..., Any]:
        signature, aliases = signature_of(function.parameters, None)
        originals = {spelt: original for original, spelt in aliases.items()}

        def called(*args: Any, **kwargs: Any) -> Any:
            return work(given(signature.bind(*args, **kwargs)))

        def given(arguments: inspect.BoundArguments) -> dict[str, Any]:
            named = {
                originals.get(one, one): value
                for one, value in arguments.arguments.items()
                if value is not ...
            }
            found: dict[str, Any] = msgspec.to_builtins(named)
            return found

        def launch(arguments: inspect.BoundArguments) -> Future[Plain]:
            return in_thread(lambda: plain(work(given(arguments))), name)

        return Tool(
            called,
            launch,
            name=name,
            doc=doc_of(function.description, function.parameters),
            signature=signature,
            schema=function.parameters,
            aliases=aliases,
            effects=True,
            limits=ToolLimits(timeout=CALL_SECONDS, max_concurrent=1),
        )

    def _caller(self, name: str, parsed: bool) -> Callable[[dict[str, Any]], Any]:
        def call(arguments: dict[str, Any]) -> Any:
            try:
                with self._turn:
                    said = self._client.execute(self._id, name, arguments, uuid.uuid4().hex)
            except ToolFailed as fault:
                self.on_fault(fault)
                raise
            if not said.success and said.content.startswith(_FAILED):
                raise ToolFailed(said.content)
            return text_value(said.content) if parsed else said.content

        return call

    def _check_complete(self, config: LocaTask, log: Path) -> None:
        """Raise unless the environment is all there."""
        names = [function.name for function in self.functions]
        missing = [one for one in config.servers if not any(name.startswith(one) for name in names)]
        if fault := generation_fault(log):
            raise ToolFailed(f"the environment was not generated. {fault}")
        if not self.instructions.strip():
            raise ToolFailed("the environment came without instructions")
        if not any(CLAIM in name for name in names):
            raise ToolFailed(f"the environment has no {CLAIM}, so the task could not be ended")
        if missing and len(config.servers) > 1:  # the tools of a single server do not have its name
            raise ToolFailed(
                f"these tool servers of the task did not start: {', '.join(missing)}; see the server's log"
            )


def generation_log(folder: Path) -> Path:
    """Where an environment that is generated in this folder writes what it does."""
    return folder / "task" / "logs" / "env.log"


def last_line(log: Path) -> str:
    """The last line of a log, for people who wait; empty while the log is empty."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its log last said: {said[:200]}" if said else ""


def generation_fault(log: Path) -> str:
    """Why an environment cannot have been generated, from its log; nothing when it was."""
    try:
        said = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"It left no log to tell ({log}: {error.strerror})."
    records = list(_RECORD.finditer(said))
    ends = [record.start() for record in records[1:]] + [len(said)]
    trouble = [
        (record[1], said[record.start() : end].strip())
        for record, end in zip(records, ends, strict=True)
        if record[1] in ("ERROR", "CRITICAL", "WARNING")
    ]
    generated = GENERATED in said
    if generated and all(level == "WARNING" for level, _ in trouble):
        return ""
    words = "\n".join(text for _, text in trouble)[:WORDS] or said[-WORDS:].strip()
    return f"Its log says:\n{words}" if words else "Its log is empty."


def _tool_name(name: str, taken: dict[str, Tool[..., Any]] | None = None) -> str:
    return identifier(name, taken={*RESERVED, *(taken or ())})
