"""Scroll under smolagents: the code of a CodeAgent runs in the jailed kernel of a session.

    executor = ScrollExecutor("work.scroll", session="trip")
    agent = CodeAgent(tools, model, executor=executor)

The local executor of smolagents filters an abstract syntax tree inside the agent's own process, and
its documentation says that it is not a sandbox. Here a cell has no network, no files, no processes
and no environment of the host. Tools run on the host, and each call is recorded with its complete
result; results stay in variables, and only printed text reaches the model. A later process that
opens the same session has the variables again.

The executor does not bound the messages of the agent: smolagents rebuilds them from its own memory,
without ids, for every request.
"""

import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Unpack

from smolagents.local_python_executor import CodeOutput, InterpreterError, PythonExecutor

from scroll_context import Session, Store, tool
from scroll_context.background import in_thread
from scroll_context.errors import BadInput
from scroll_context.hosts import HostAdapter
from scroll_context.session.options import SessionParts
from scroll_context.tools.plain import Plain, plain
from scroll_context.tools.tools import Tool, ToolLimits

FINAL_ANSWER = "final_answer"
"""The tool of smolagents that ends a run."""
GIVEN_VARIABLE = "given_variable"
"""The tool by which a cell gets a variable of the agent."""

AnyCallable = Callable[..., Any]


class ScrollExecutor(HostAdapter, PythonExecutor):
    """Runs the code of an agent in the kernel of a session. See `HostAdapter` for the arguments.

    Cells can import every installed package, unless `options` name a jail that shows fewer. The
    agent's `additional_authorized_imports` only decide what its prompt says.
    """

    bounds: ClassVar[bool] = False

    def __init__(
        self,
        place: Session | Store | str | Path,
        session: str = "",
        **parts: Unpack[SessionParts],
    ) -> None:
        HostAdapter.__init__(self, place, session, **parts)
        if not self._has_cells:
            self.close()
            raise BadInput("an executor needs a kernel; leave out options that start none")
        self._callables: dict[str, AnyCallable] = {}
        self._variables: dict[str, Any] = {}
        # The answers of the running cell. The first one counts.
        self._answers: list[Any] = []
        self.session.add_tools([tool(self._given_variable, name=GIVEN_VARIABLE)])

    def send_tools(self, tools: Mapping[str, Any]) -> None:
        """Let cells call these tools and agents of smolagents, as functions."""
        self._callables.update(tools)
        names = self.session.environment.toolbox.tools
        self.session.add_tools(
            [self._tool(name, tools[name]) for name in tools if name not in names]
        )

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Bind these values in the kernel. Each is recorded like the result of a tool."""
        if not variables:
            return
        if wrong := [name for name in variables if not name.isidentifier()]:
            raise BadInput(f"{wrong[0]!r} cannot be the name of a variable in Python")
        self._variables = dict(variables)
        lines = [f"{name} = {GIVEN_VARIABLE}({name!r})" for name in variables]
        self._run("\n".join(lines))

    def __call__(self, code_action: str) -> CodeOutput:
        """Run the agent's code as a cell.

        Raises InterpreterError, with the text that the model needs, if the cell fails.
        """
        self._answers.clear()
        try:
            logs = self._run(code_action)
        except InterpreterError as error:
            # The answer was complete before the code after it failed.
            if not self._answers:
                raise
            logs = str(error)
        if self._answers:
            return CodeOutput(output=self._answers[0], logs=logs, is_final_answer=True)
        return CodeOutput(output=None, logs=logs, is_final_answer=False)

    def cleanup(self) -> None:
        """Close what this executor opened. smolagents calls it at the end of the agent."""
        self.close()

    def _run(self, source: str) -> str:
        """Run a cell; the text that the model is shown of it."""
        observation = self.session.run(source, name="python_interpreter")
        if observation.tool_state != "ok":
            raise InterpreterError(observation.content)
        # smolagents puts its own words directly after this.
        return f"{observation.content}\n"

    def _given_variable(self, name: str) -> Any:
        """A variable of the agent."""
        return self._variables[name]

    def _tool(self, name: str, callable_: Any) -> Tool[..., Any]:
        """A tool of smolagents as one of the session.

        Its arguments are passed on as the model wrote them: smolagents does not check them either.
        """
        inputs: Mapping[str, Mapping[str, Any]] = callable_.inputs
        parameters = [
            inspect.Parameter(
                argument,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=None if about.get("nullable") else inspect.Parameter.empty,
                annotation=Any,
            )
            for argument, about in inputs.items()
        ]
        # Python wants parameters without a default first.
        parameters.sort(key=lambda parameter: parameter.default is None)

        def launch(arguments: inspect.BoundArguments) -> Future[Plain]:
            call = partial(self._call, name, arguments.arguments)
            return in_thread(lambda: plain(call()), f"tool-{name}")

        return Tool(
            partial(self._call, name),
            launch,
            name=name,
            doc=str(callable_.description),
            signature=inspect.Signature(parameters),
            schema={"type": "object", "properties": {}},
            limits=ToolLimits(timeout=self.session.cell_timeout),
        )

    def _call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool of smolagents on the host."""
        if self._answers:
            # smolagents ends the code here. The kernel lets it run on, and it can do nothing more.
            raise RuntimeError(f"{FINAL_ANSWER} was called, so no further tool is run")
        value = self._callables[name](**arguments)
        if name != FINAL_ANSWER:
            return value
        self._answers.append(value)
        return None
