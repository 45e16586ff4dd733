"""Tools inside the kernel: each is a function of its own name, those of an MCP server in a
namespace of its name.

This file is not imported by the host: its source runs inside the jail, where `call` reaches the
host and `TOOLS` maps each tool's name to its signature, its description, how many of its calls may
run at once, and the shapes of its earlier results.

Data frames and arrays arrive pickled by the host and are unpickled here. After a call, `help(f)`
shows the shape of the results so far, as the host describes them. Text where earlier results were
something else is printed: it is often an error message that the tool returned instead of raising
it.
"""

import pickle as _pickle
import threading as _threading
import types as _types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from scroll_context.kernel.values import Pickled as _Pickled

# The kernel puts it here.
call: Callable[..., Any]
# The host puts it here.
TOOLS: dict[str, tuple[str, str, int | None, tuple[str, ...]]]

_AT_ONCE = 16
"""The number of calls that map_calls runs at once for a tool that sets no limit."""
_PROGRESS_SECONDS = 10.0
_TEXT_CHARS = 200


class ToolFailed(Exception):
    """A tool did not give a result; the text is the tool's own."""


class CallResults(list[Any]):
    """The results of map_calls in order, None where a call failed; `errors` maps positions to what
    went wrong.
    """

    errors: dict[int, str]


def map_calls(fn: Callable[..., Any], calls: Iterable[Any]) -> CallResults:
    """Call `fn` with each dict of keyword arguments (or each single argument) in `calls`.

    Up to 16 calls run at once, or fewer if `fn` allows fewer: a function whose description says
    "runs one call at a time" is called once at a time. The results come as a list in the order of
    `calls`, with None where a call failed; `.errors` maps positions to what went wrong. One failure
    does not stop the others.
    """
    todo = list(calls)
    results = CallResults([None] * len(todo))
    results.errors = {}
    waiting: Iterator[tuple[int, Any]] = iter(enumerate(todo))
    taking, ended = _threading.Lock(), _threading.Condition()
    done = 0
    stop = False

    def work() -> None:
        nonlocal done
        _state.in_map_calls = True
        while True:
            with taking:
                position, arguments = next(waiting, (-1, None))
            if position < 0 or stop:
                return
            try:
                if isinstance(arguments, dict):
                    results[position] = fn(**arguments)
                else:
                    results[position] = fn(arguments)
            except Exception as error:  # noqa: BLE001 - it stands beside the results
                results.errors[position] = f"{type(error).__name__}: {error}"
            with ended:
                done += 1
                ended.notify()

    at_once = min(len(todo), getattr(fn, "max_concurrent", None) or _AT_ONCE)
    for _ in range(at_once):
        _threading.Thread(target=work, daemon=True).start()
    try:
        with ended:
            while done < len(todo):
                if not ended.wait(_PROGRESS_SECONDS):
                    count, failures = f"{done:,} of {len(todo):,}", len(results.errors)
                    print(f"map_calls: {count} calls done, {failures:,} failed")
    finally:
        # When the cell is interrupted, no further call begins.
        stop = True
    if results.errors:
        results.errors = dict(sorted(results.errors.items()))
        first, text = next(iter(results.errors.items()))
        count = f"{len(results.errors):,} of {len(todo):,}"
        print(f"map_calls: {count} calls failed; .errors[{first}]: {text[:300]}")
    _report_odd_texts(results)
    return results


def _report_odd_texts(results: CallResults) -> None:
    """Print how many results are text among results that are not."""
    texts = [at for at, value in enumerate(results) if isinstance(value, str)]
    others = {_kind(value) for value in results if not isinstance(value, str | None)}
    if texts and others:
        first = texts[0]
        print(
            f"map_calls: {len(texts):,} of {len(results):,} results are text where others are"
            f" {' or '.join(sorted(others))}, perhaps error messages; [{first}]:"
            f" {results[first][:_TEXT_CHARS]!r}"
        )


class _State(_threading.local):
    in_map_calls = False


_state = _State()


def _kind(value: Any) -> str:
    return type(value).__name__


def _unpickled(name: str, value: Any) -> Any:
    """A result with its data frames and arrays in place; what cannot be loaded is lists."""
    if isinstance(value, _Pickled):
        try:
            return _pickle.loads(value.data)
        except Exception as error:  # noqa: BLE001 - the library may be missing or different here
            print(
                f"{name}: the {value.type} arrives as lists, because this kernel cannot load it"
                f" ({type(error).__name__}: {str(error)[:_TEXT_CHARS]})"
            )
            return value.plain
    if isinstance(value, dict):
        return {key: _unpickled(name, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpickled(name, item) for item in value]
    return value


def _function(
    name: str, header: str, doc: str, max_concurrent: int | None, observed: tuple[str, ...]
) -> Callable[..., Any]:
    shapes = {shape.partition(" ")[0]: shape for shape in observed}

    def tool(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = call(f"tools.{name}", *args, **kwargs)
        except Exception as error:
            kind, _, text = str(error).partition(": ")
            if kind != "ToolFailed":
                raise
            raise ToolFailed(text) from None
        if "handle" in answer:
            value = _loaded(name, answer["handle"], answer["note"])
        else:
            value = _unpickled(name, answer["value"]) if answer["tables"] else answer["value"]
        observe(value, answer["shape"])
        return value

    def observe(value: Any, shape: str) -> None:
        """Keep the first shape of each type for `help`, and print text that is out of place."""
        kind = _kind(value)
        earlier = sorted(shapes.keys() - {"str", "NoneType"})
        if kind == "str" and earlier and not _state.in_map_calls:
            print(
                f"{name}: this result is text, and earlier ones were {' or '.join(earlier)}."
                f" It may be an error message: {value[:_TEXT_CHARS]!r}"
            )
        if kind not in shapes:
            shapes[kind] = shape
            describe()

    def describe() -> None:
        results = "\n".join(f"Observed result: {shape}" for shape in shapes.values())
        tool.__doc__ = f"{header}\n\n{doc}\n\n{results}".rstrip("\n")

    tool.__name__ = tool.__qualname__ = name.rpartition(".")[2]
    describe()
    tool.max_concurrent = max_concurrent  # type: ignore[attr-defined]
    return tool


def _loaded(name: str, facts: dict[str, Any], note: str) -> Any:
    import handles

    if note:
        print(f"{name}: {note}")
    try:
        return handles.load(facts)
    except MemoryError:
        raise MemoryError(
            f"{name} returned {facts['size']:,} bytes, more than this kernel can hold as a value."
            f" The call is done and its result is kept at seq {facts['seq']}: delete what you no"
            f" longer need and read it with ms.expand({facts['seq']})[0]['payload'], or ask the"
            " tool for less at a time."
        ) from None


class _Tools(_types.SimpleNamespace):
    """The tools of one server. Printed, it lists them with the shapes of their results so far."""

    def __repr__(self) -> str:
        return "\n".join(map(_listed, vars(self).values()))


def _listed(function: Callable[..., Any]) -> str:
    lines = (function.__doc__ or "").split("\n")
    observed = [line for line in lines if line.startswith("Observed result: ")]
    return "  # ".join([lines[0], *observed])


def _mount() -> None:
    for name, facts in TOOLS.items():
        space, dot, own = name.partition(".")
        if dot:
            globals().setdefault(space, _Tools())
            setattr(globals()[space], own, _function(name, *facts))
        else:
            globals()[name] = _function(name, *facts)


_mount()
