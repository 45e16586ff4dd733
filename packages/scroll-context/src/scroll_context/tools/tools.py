"""Tools: typed Python functions that a cell, or a model by a native call, may use.

`@tool` reads a function's annotations once and makes everything else from them: the stub in the
prompt, the JSON schema for native calls, and the check of arguments, which arrive as JSON-like
values and are converted to the types that the function expects (dates from text, integers from
text, dataclasses and structs from dicts). A function that cannot work is refused when it is
decorated, not when a model calls it. A tool holds no state: limits, consent and the log are the
toolbox's (toolbox.py).
"""

import functools
import inspect
import keyword
import typing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import PurePath
from typing import Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from scroll_context.background import in_loop, in_thread
from scroll_context.errors import BadInput
from scroll_context.messages import ToolSpec
from scroll_context.text.printable import printable
from scroll_context.tools.plain import Plain, plain
from scroll_context.tools.signatures import (
    RESERVED,
    one_line,
    shapes,
    signature_text,
    stub_text,
    type_text,
)

P = ParamSpec("P")
R = TypeVar("R")

# Characters of a wrong argument that an error repeats.
QUOTED_CHARS = 120
# Of "server.tool". Providers allow 64 for a native name, and the dot becomes two characters.
NAME_CHARS = 63


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a tool. None leaves the choice to the toolbox, or sets no limit."""

    timeout: float | None = None
    """Seconds that one call may take."""
    max_calls: int | None = None
    """Calls in the life of a session, before a resume too. Refused calls do not count."""
    max_concurrent: int | None = None
    """Calls at the same time. Further calls wait."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BadInput(
                    f"{name} must be above 0, not {value!r}; leave it out for no limit of this kind"
                )


class Tool(Generic[P, R]):
    """One function that may be called on a model's behalf. Calling the tool itself calls the
    function, unchecked.

    Names and descriptions may come from an unknown server. A name that is not an identifier is
    refused, and descriptions lose the characters that a terminal or a model obeys and a reader does
    not see.
    """

    def __init__(
        self,
        function: Callable[P, R],
        launch: Callable[[inspect.BoundArguments], Future[Plain]],
        *,
        name: str,
        doc: str,
        signature: inspect.Signature,
        schema: dict[str, Any],
        aliases: Mapping[str, str] | None = None,
        effects: bool = False,
        effects_declared: bool = True,
        idempotent: bool = False,
        limits: ToolLimits | None = None,
    ) -> None:
        parts = name.split(".")
        is_python = all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
        if not is_python or parts[0] in RESERVED or len(parts) > 2 or len(name) > NAME_CHARS:
            raise BadInput(
                f"a tool cannot be called {name[:QUOTED_CHARS]!a}: choose a Python name of at most "
                f"{NAME_CHARS} characters that hides nothing, with tool(name=...)"
            )
        functools.update_wrapper(self, function)
        self._function = function
        self._launch = launch
        self.name = name
        self.doc = printable(doc)
        self.signature = signature
        self.schema: dict[str, Any] = _printable_schema(schema)
        # From names of arguments that Python cannot spell to their names in the signature.
        self.aliases = aliases or {}
        self.effects = effects
        # Whether its author said that it has effects, rather than saying nothing.
        self.effects_declared = effects_declared
        # Whether the same call again changes nothing more.
        self.idempotent = idempotent
        self.limits = limits or ToolLimits()
        # Whether its results only repeat history, so that a search must never return them.
        self.echo = False
        # Says which events a result was made from.
        self.origin: Callable[[Any], dict[str, Any]] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.header}>"

    @property
    def header(self) -> str:
        """The signature on one line."""
        return signature_text(self.name, self.signature)

    @property
    def stub(self) -> str:
        """The function as the prompt shows it."""
        annotations = [parameter.annotation for parameter in self.signature.parameters.values()]
        definitions = self.schema.get("$defs", {})
        required = {name: part.get("required", []) for name, part in definitions.items()}
        spelt = shapes([*annotations, self.signature.return_annotation], required)
        return stub_text(self.header, self.doc, spelt, self.remarks)

    def line(self, described: bool = True) -> str:
        """The function as the prompt shows it where there are many: its signature and one line
        about it.
        """
        remarks = [f"{remark}." for remark in self.remarks]
        about = " ".join([*remarks, one_line(self.doc) if described else ""]).strip()
        return f"def {self.header}: ..." + (f"  # {about}" if about else "")

    @property
    def remarks(self) -> list[str]:
        """Facts that a caller must know besides the description."""
        remarks = []
        if self.effects and self.idempotent:
            remarks.append("has effects; the same call again changes nothing more")
        elif self.effects:
            remarks.append("has effects" if self.effects_declared else "may have effects")
        if self.limits.max_concurrent == 1:
            remarks.append("runs one call at a time")
        return remarks

    @property
    def spec(self) -> ToolSpec:
        """The tool for native calling. Providers allow no dots in names."""
        return ToolSpec(self.name.replace(".", "__"), self.doc or self.name, self.schema)

    def names(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Give every argument its name. Raises BadInput when they do not fit the signature."""
        renamed = {self.aliases.get(name, name): value for name, value in kwargs.items()}
        try:
            return self.signature.bind(*args, **renamed)
        except TypeError as error:
            raise BadInput(f"{self.name}: {error}. The signature is {self.header}") from None

    def convert(self, sent: inspect.BoundArguments) -> inspect.BoundArguments:
        """The arguments as the annotations want them.

        Raises BadInput that names the first argument that does not fit.
        """
        converted = {
            name: _same_integers(value, self._converted(self.signature.parameters[name], value))
            for name, value in sent.arguments.items()
        }
        return inspect.BoundArguments(self.signature, converted)

    def start(self, arguments: inspect.BoundArguments) -> Future[Plain]:
        """Begin a call with converted arguments; the result comes as a plain value."""
        return self._launch(arguments)

    def _converted(self, parameter: inspect.Parameter, value: Any) -> Any:
        annotation = parameter.annotation
        try:
            return msgspec.convert(value, annotation, dec_hook=_decode)
        except msgspec.ValidationError:
            pass
        # Models send numbers as text, and dates where text is expected.
        lenient = msgspec.to_builtins(value)
        try:
            return msgspec.convert(lenient, annotation, strict=False, dec_hook=_decode)
        except msgspec.ValidationError as error:
            quoted = repr(value)
            if len(quoted) > QUOTED_CHARS:
                quoted = quoted[:QUOTED_CHARS] + "…"
            reason = " ".join(str(error).split())
            raise BadInput(
                f"{self.name}: parameter {parameter.name!r} must be {type_text(annotation)}, not "
                f"{quoted} ({reason}). The signature is {self.header}"
            ) from None


AnyTool = Tool[..., Any]


@overload
def tool(
    function: Callable[P, R],
    *,
    name: str | None = None,
    effects: bool = False,
    idempotent: bool = False,
    timeout: float | None = None,
    max_calls: int | None = None,
    max_concurrent: int | None = None,
) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    effects: bool = False,
    idempotent: bool = False,
    timeout: float | None = None,
    max_calls: int | None = None,
    max_concurrent: int | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    *,
    name: str | None = None,
    effects: bool = False,
    idempotent: bool = False,
    timeout: float | None = None,
    max_calls: int | None = None,
    max_concurrent: int | None = None,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Turn a typed function into a tool: `@tool`, `@tool(effects=True)` or `tool(function,
    name="other")`.

    `effects` marks a tool that changes the world (it books, sends, pays, deletes). The session's
    `confirm` function is asked before each call, and a call that a crash left without a result is
    reported, never repeated. Without a `confirm` function such calls run without confirmation.
    `idempotent` says that repeating the same call changes nothing more. A coroutine function runs
    on an event loop shared by all tools and must not block; any other function runs in its own
    thread.

    `timeout` limits one call, in seconds, and `max_concurrent` the calls at the same time; further
    calls wait. `max_calls` limits the calls in a session. They are counted in its log, so a resume
    continues the count. Further calls are refused: they are recorded with the state "refused" and
    raise `ToolFailed`, which tells the model to continue without them. A call that failed or timed
    out counts, a refused call does not.

    >>> from scroll_context import tool
    >>> @tool
    ... def flights(origin: str, destination: str) -> list[str]:
    ...     '''All flights between two cities.'''
    ...     return ["LX0", "LX707"]
    >>> flights.name, flights("Hamburg", "Lisbon")
    ('flights', ['LX0', 'LX707'])

    >>> from scroll_context import Session, Store
    >>> @tool(max_calls=1)
    ... def quote(flight: str) -> int:
    ...     '''The price of a flight. Each call costs a fee.'''
    ...     return 51
    >>> with Store("quotes.scroll", create=True) as store:
    ...     with Session.open(store, session_id="trip", tools=[quote]) as session:
    ...         print(session.run("print(quote('LX249'))").content.splitlines()[0])
    ...     with Session.resume(store, "trip", tools=[quote]) as session:
    ...         print(session.run("quote('LX250')").content.splitlines()[-1].partition(". ")[0])
    51
    tools.ToolFailed: quote was not run: it has used up its calls (1)
    """
    limits = ToolLimits(timeout=timeout, max_calls=max_calls, max_concurrent=max_concurrent)
    if function is None:
        return lambda decorated: _make(decorated, name, effects, idempotent, limits)
    return _make(function, name, effects, idempotent, limits)


def _make(
    function: Callable[P, R], name: str | None, effects: bool, idempotent: bool, limits: ToolLimits
) -> Tool[P, R]:
    tool_name = str(name or getattr(function, "__name__", ""))
    signature = _resolved(function, tool_name)

    async def awaited(work: typing.Awaitable[Any]) -> Plain:
        return plain(await work)

    def launch(arguments: inspect.BoundArguments) -> Future[Plain]:
        if inspect.iscoroutinefunction(function):
            return in_loop(awaited(function(*arguments.args, **arguments.kwargs)), "tools")
        return in_thread(
            lambda: plain(function(*arguments.args, **arguments.kwargs)), f"tool-{tool_name}"
        )

    return Tool(
        function,
        launch,
        name=tool_name,
        doc=inspect.getdoc(function) or "",
        signature=signature,
        schema=_schema(tool_name, signature),
        effects=effects,
        idempotent=idempotent,
        limits=limits,
    )


def _resolved(function: Callable[..., Any], name: str) -> inspect.Signature:
    """The signature with its annotations as types.

    Raises BadInput for what a model could not call.
    """
    try:
        signature = inspect.signature(function)
        routine = function if inspect.isroutine(function) else type(function).__call__
        hints = typing.get_type_hints(routine, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise BadInput(f"the annotations of {name} cannot be read: {error}") from error
    parameters = []
    for parameter in signature.parameters.values():
        if parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
            parameter.POSITIONAL_ONLY,
        ):
            raise BadInput(
                f"{name}: parameter {parameter} cannot be passed by name, so a model cannot use "
                "it; write out the parameters, for example with a list or a dict"
            )
        if parameter.name not in hints:
            remedy = f"write {parameter.name}: str or another type"
            if parameter.name == "self":
                remedy = "decorate the bound method"
            raise BadInput(
                f"{name}: parameter {parameter.name!r} has no annotation, so its values cannot be "
                f"checked; {remedy}"
            )
        parameters.append(parameter.replace(annotation=hints[parameter.name]))
    return signature.replace(
        parameters=parameters, return_annotation=hints.get("return", inspect.Signature.empty)
    )


def _schema(name: str, signature: inspect.Signature) -> dict[str, Any]:
    """The JSON schema of the arguments, which also proves that msgspec can convert them."""
    properties: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        annotation = parameter.annotation
        try:
            (schema,), defined = msgspec.json.schema_components(
                [annotation], schema_hook=_foreign_schema, ref_template="#/$defs/{name}"
            )
        except (TypeError, NotImplementedError) as error:
            raise BadInput(
                f"{name}: parameter {parameter.name!r} of type {type_text(annotation)} cannot be "
                f"made from JSON: {error}"
            ) from error
        shared |= defined
        shared |= schema.pop("$defs", {})
        notes = [note for note in getattr(annotation, "__metadata__", ()) if isinstance(note, str)]
        if notes:
            schema = {**schema, "description": notes[0]}
        if parameter.default not in (parameter.empty, None):
            schema = {**schema, "default": msgspec.to_builtins(parameter.default, enc_hook=str)}
        properties[parameter.name] = schema
    required = [p.name for p in signature.parameters.values() if p.default is p.empty]
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return schema | ({"$defs": shared} if shared else {})


def _same_integers(sent: Any, converted: Any) -> Any:
    """The converted value with every integer that was sent: where a float is expected, 1 must not
    become 1.0.
    """
    if type(sent) is int and type(converted) is float:
        return sent
    if (
        isinstance(sent, list | tuple)
        and type(converted) in (list, tuple)
        and len(sent) == len(converted)
    ):
        return type(converted)(map(_same_integers, sent, converted))
    if isinstance(sent, dict) and type(converted) is dict:
        return {key: _same_integers(sent.get(key), value) for key, value in converted.items()}
    return converted


def _printable_schema(part: Any) -> Any:
    """A schema whose descriptions and titles, at any depth, can be shown."""
    if isinstance(part, list):
        return [_printable_schema(item) for item in part]
    if not isinstance(part, dict):
        return part
    schema = {}
    for key, value in part.items():
        if key in ("description", "title") and isinstance(value, str):
            schema[key] = printable(value)
        else:
            schema[key] = _printable_schema(value)
    return schema


def _decode(annotation: type, value: Any) -> Any:
    """msgspec's hook for the two families of types that it does not know."""
    if hasattr(annotation, "model_validate"):
        return annotation.model_validate(value)
    if isinstance(value, str):
        return annotation(value)
    raise ValueError(f"Expected a path as text, got {type(value).__name__}")


def _foreign_schema(annotation: type) -> dict[str, Any]:
    if hasattr(annotation, "model_json_schema"):
        return dict(annotation.model_json_schema())
    if isinstance(annotation, type) and issubclass(annotation, PurePath):
        return {"type": "string", "description": "a path"}
    raise NotImplementedError(f"{annotation} is not made of JSON values")
