"""Tools inside the kernel: each is a function of its own name, those of an MCP server in a
namespace of its name.

This file is not imported by the host: its source runs inside the jail, where `call` reaches the
host and `TOOLS` maps each tool's name to its signature, its description and how many of its calls
may run at once.
"""

import threading as _threading
import types as _types
from collections.abc import Callable, Iterable
from typing import Any

call: Callable[..., Any]  # put here by the kernel
TOOLS: dict[str, tuple[str, str, int | None]]  # put here by the host

_AT_ONCE = 16  # calls of map_calls for a tool that sets no limit
_PROGRESS_SECONDS = 10.0


class ToolFailed(Exception):
    """A tool did not give a result; the text is the tool's own."""


class CallResults(list[Any]):
    """The results of map_calls in order, None where a call failed; `errors` maps positions to what
    went wrong.
    """

    errors: dict[int, str]


def map_calls(fn: Callable[..., Any], calls: Iterable[Any]) -> CallResults:
    """Call `fn` with each dict of keyword arguments (or each single argument) in `calls`.

    Several calls run at once, as many as `fn` allows. The results come as a list in the order of
    `calls`, with None where a call failed; `.errors` maps positions to what went wrong. One failure
    does not stop the others.
    """
    todo = list(calls)
    results = CallResults([None] * len(todo))
    results.errors = {}
    waiting = iter(enumerate(todo))
    taking, ended = _threading.Lock(), _threading.Condition()
    done = 0
    stop = False

    def work() -> None:
        nonlocal done
        while True:
            with taking:
                position, given = next(waiting, (-1, None))
            if position < 0 or stop:
                return
            try:
                results[position] = fn(**given) if isinstance(given, dict) else fn(given)
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
                    print(
                        f"map_calls: {done:,} of {len(todo):,} calls done, {len(results.errors):,} failed"
                    )
    finally:
        stop = True  # when the cell is interrupted, no further call begins
    if results.errors:
        results.errors = dict(sorted(results.errors.items()))
        first, said = next(iter(results.errors.items()))
        print(
            f"map_calls: {len(results.errors):,} of {len(todo):,} calls failed; .errors[{first}]: {said[:300]}"
        )
    return results


def _function(name: str, header: str, doc: str, max_concurrent: int | None) -> Callable[..., Any]:
    def tool(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = call(f"tools.{name}", *args, **kwargs)
        except Exception as error:
            kind, _, text = str(error).partition(": ")
            if kind != "ToolFailed":
                raise
            raise ToolFailed(text) from None
        return _loaded(name, answer["handle"]) if "handle" in answer else answer["value"]

    tool.__name__ = tool.__qualname__ = name.rpartition(".")[2]
    tool.__doc__ = f"{header}\n\n{doc}"
    tool.max_concurrent = max_concurrent  # type: ignore[attr-defined]
    return tool


def _loaded(name: str, facts: dict[str, Any]) -> Any:
    import handles

    try:
        return handles.load(facts)
    except MemoryError:
        raise MemoryError(
            f"{name} returned {facts['size']:,} bytes, more than this kernel can hold as a value. The call is done and "
            f"its result is kept at seq {facts['seq']}: delete what you no longer need and read it with "
            f"ms.expand({facts['seq']})[0]['payload'], or ask the tool for less at a time."
        ) from None


def _mount() -> None:
    for name, facts in TOOLS.items():
        space, dot, own = name.partition(".")
        if dot:
            globals().setdefault(space, _types.SimpleNamespace())
            setattr(globals()[space], own, _function(name, *facts))
        else:
            globals()[name] = _function(name, *facts)


_mount()
