"""The variables of the namespace, pickled and restored. Worker only; the host never unpickles.

A value can change without being named: through `globals()`, through another name for one of its
parts, by a thread. So a save looks at every value that is small, by pickling it or by a mark that
tells it is the same, and at each larger one that a cell has named (through the functions that it
called as well). The rest is reported as not looked at, and the host reports it as possibly stale; a
full save looks at everything. A value is sent only when the hash of its pickle changed. Names bound
to one object are saved once and restored as one object. Plain pickle does the work; cloudpickle
takes over for functions and classes that cells defined, which are restored with the live namespace
as their globals. What cannot be pickled is reported with the reason.

Not covered: two variables that share an object below their top level come back with a copy each.
"""

import builtins
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from io import BytesIO
from pickle import dumps, loads
from sys import _current_frames
from time import thread_time
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import cloudpickle

from scroll_context.kernel.channel import CpuLimitExceeded, Interrupts
from scroll_context.kernel.describe import (
    module_name,
    type_dict,
    type_label,
    type_mro,
    type_name,
)
from scroll_context.kernel.protocol import Loaded, SavedValue, SavePiece, WireMessage

_CachedFunction = type(lru_cache(lambda: None))
_PIECE = 4 << 20
_MODULE_CHARS = 256
_IMMUTABLE = {id(kind) for kind in (int, float, bool, complex, type(None), str, bytes, range)}
# A variable with a pickle up to this size is pickled only to see whether it changed.
_SMALL = 64 << 10
# The processor time for all of those in one save.
_SECONDS = 0.02


class _Mark(NamedTuple):
    """Shows without pickling that a value is the same as before."""

    facts: tuple[int, ...]
    # Objects whose ids are among the facts. Held, so that no other object gets these ids.
    held: tuple[Any, ...] = ()


class _Sent(NamedTuple):
    """The facts about a variable since it was last sent."""

    digest: bytes
    group: tuple[str, ...]
    size: int
    seconds: float
    mark: _Mark | None

    def is_same(self, value: Any) -> bool:
        """Whether the value is surely unchanged."""
        mark = _mark(value)
        if mark is None or self.mark is None:
            return False
        return mark.facts == self.mark.facts


class _Pickle(NamedTuple):
    """A value at rest: its bytes, or the name of a module, or the reason why there is neither."""

    data: bytes = b""
    module: str = ""
    reason: str = ""

    @property
    def digest(self) -> bytes:
        """Tells pickles apart within this process; the host names them by a digest of its own."""
        if self.reason or self.module:
            return f"{self.reason}/{self.module}".encode()
        hashed = hash(self.data).to_bytes(8, "little", signed=True)
        return hashed + len(self.data).to_bytes(8, "little")


class Snapshots:
    """The facts about each variable since it was last saved."""

    def __init__(self, namespace: dict[str, Any], interrupts: Interrupts) -> None:
        self._namespace = namespace
        self._interrupts = interrupts
        self._sent: dict[str, _Sent] = {}
        # Names that cells have touched since the last save.
        self._touched: set[str] = set()

    def note_cell(self, names: Iterable[str]) -> None:
        """Remember which names a cell touched."""
        self._touched.update(names)

    def save(
        self, variables: dict[str, Any], full: bool, limit: int, send: Callable[[WireMessage], None]
    ) -> tuple[str, ...]:
        """Send the variables that changed. Returns those that may have changed and were not
        examined.

        Interrupts are on: pickling may run code of the cells.
        """
        touched = _with_globals(self._touched, variables)
        unchecked: list[str] = []
        begun = thread_time()
        for group in _groups(variables):
            value = variables[group[0]]
            sent = [self._sent[name] for name in group if name in self._sent]
            if full or len(sent) < len(group) or not touched.isdisjoint(group):
                self._save_group(group, value, limit, send)
                continue
            if all(state.is_same(value) for state in sent):
                continue
            is_cheap = sent[0].size <= _SMALL and sent[0].seconds < _SECONDS / 4
            if is_cheap and thread_time() - begun < _SECONDS:
                self._save_group(group, value, limit, send)
            else:
                unchecked += group
        self._sent = {name: state for name, state in self._sent.items() if name in variables}
        self._touched.clear()
        # A thread that a cell left running may change anything after it was checked.
        return tuple(variables) if len(_current_frames()) > 1 else tuple(unchecked)

    def forget(self) -> None:
        """Count nothing as saved."""
        self._sent.clear()

    def load(self, names: tuple[str, ...], data: bytes, module: str) -> Loaded:
        """Unpickle `data`, or import a module, and bind it to each of `names`."""
        try:
            value = self._guarded(import_module, module) if module else self._guarded(loads, data)
        except BaseException as error:  # noqa: BLE001 - both run foreign code
            return Loaded(_reason("import" if module else "load", error))
        sent = _Sent(_Pickle(data, module).digest, names, len(data), 0.0, _mark(value))
        for name in names:
            self._namespace[name] = value
            self._sent[name] = sent
        return Loaded("")

    def _save_group(
        self, group: tuple[str, ...], value: Any, limit: int, send: Callable[[WireMessage], None]
    ) -> None:
        begun = thread_time()
        pickle = self._pickle(value, limit)
        mark = None if pickle.reason else _mark(value)
        seconds = thread_time() - begun
        sent = _Sent(pickle.digest, group, len(pickle.data), seconds, mark)
        before = [self._sent.get(name) for name in group]
        self._sent.update(dict.fromkeys(group, sent))
        changed = any(state is None or state.digest != sent.digest for state in before)
        is_same_group = all(state is not None and state.group == group for state in before)
        if not changed and is_same_group:
            return
        data, module, reason = pickle
        if changed and not reason:
            for start in range(0, len(data), _PIECE):
                send(SavePiece(data[start : start + _PIECE]))
        send(SavedValue(group, type_label(type(value)), changed, len(data), module, reason))

    def _pickle(self, value: Any, limit: int) -> _Pickle:
        if type(value) is ModuleType:
            name = module_name(value)
            is_found_again = sys.modules.get(name) is value
            if is_found_again and len(name) <= _MODULE_CHARS and name.isprintable():
                return _Pickle(module=name)
            return _Pickle(reason="module")
        try:
            data = self._guarded(_pickle_bytes, value)
        except BaseException as error:  # noqa: BLE001 - pickling runs foreign code
            return _Pickle(reason=_reason("pickle", error))
        return _Pickle(data, reason="" if len(data) <= limit else "size")

    def _guarded(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Run something that may run foreign code; the host can interrupt it."""
        self._interrupts.arm()
        try:
            return function(argument)
        finally:
            self._interrupts.disarm()


def _groups(variables: dict[str, Any]) -> list[tuple[str, ...]]:
    """Names that are bound to one and the same object, together."""
    by_object: dict[int, list[str]] = {}
    groups: list[list[str]] = []
    for name, value in variables.items():
        if id(type(value)) in _IMMUTABLE:
            groups.append([name])
        elif id(value) in by_object:
            by_object[id(value)].append(name)
        else:
            groups.append(by_object.setdefault(id(value), [name]))
    return [tuple(group) for group in groups]


def _mark(value: Any) -> _Mark | None:
    """A mark for a value, if it can have one.

    Text and bytes are known by their hash, which they keep. Numbers, modules, and functions without
    state of their own are known by being the same object.
    """
    kind = type(value)
    if kind is str or kind is bytes:
        return _Mark((id(kind), hash(value), len(value)))
    if id(kind) in _IMMUTABLE or kind is ModuleType:
        return _Mark((id(kind), id(value)), (value,))
    if kind is FunctionType and not (
        value.__closure__
        or value.__defaults__
        or value.__kwdefaults__
        or value.__dict__
        or value.__annotations__
    ):
        code = value.__code__
        return _Mark((id(kind), id(value), id(code)), (value, code))
    return None


def _pickle_bytes(value: Any) -> bytes:
    """Pickle by value what a cell defined, since `__main__` of another process lacks it."""
    try:
        data = dumps(value, protocol=5)
    except Exception:  # noqa: BLE001 - whatever it was, cloudpickle may know better
        data = b"__main__"
    if b"__main__" not in data:
        return data
    buffer = BytesIO()
    _ByValue(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def _reason(code: str, error: BaseException) -> str:
    """Why it failed: the nearest built-in exception, and nothing that foreign code can word."""
    if isinstance(error, KeyboardInterrupt | CpuLimitExceeded | MemoryError):
        code = "limit"
    for kind in type_mro(type(error)):
        if vars(builtins).get(type_name(kind)) is kind:
            return f"{code}:{type_name(kind)}"
    return code


def _with_globals(names: Iterable[str], variables: dict[str, Any]) -> set[str]:
    """`names`, and the names that the functions and classes among them refer to, and so on."""
    reached: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in reached or name not in variables:
            continue
        reached.add(name)
        for function in _functions_of(variables[name]):
            pending.extend(_global_names(function.__code__))
    return reached


def _functions_of(value: Any) -> Iterator[FunctionType]:
    """The functions of cells that may run when a cell uses `value`."""
    namespace = _namespace()
    if type(value) is FunctionType:
        if value.__globals__ is namespace:
            yield value
        return
    kind = value if type(value) is type else type(value)
    for base in type_mro(kind):
        members = type_dict(base)
        if members.get("__module__") == "__main__":
            for member in members.values():
                is_wrapped = type(member) in (staticmethod, classmethod)
                function = member.__func__ if is_wrapped else member
                if type(function) is FunctionType and function.__globals__ is namespace:
                    yield function


def _global_names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if type(constant) is CodeType:
            names |= _global_names(constant)
    return names


def function_of_cells(code: CodeType, closure: Any) -> FunctionType:
    """A restored function. Its globals are the live namespace, as when a cell defined it."""
    return FunctionType(code, _namespace(), None, None, closure)


def cached_again(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """A restored function with `functools.lru_cache`; its cache starts empty."""
    return lru_cache(**parameters)(function)


def _namespace() -> dict[str, Any]:
    return sys.modules["__main__"].__dict__


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles by value what cells defined.

    Their functions still refer to the namespace, not to a copy of it.
    """

    def reducer_override(self, value: Any) -> Any:
        if type(value) is _CachedFunction:
            # It would be pickled as a name of `__main__`.
            return cached_again, (value.__wrapped__, value.cache_parameters())
        return super().reducer_override(value)

    def _dynamic_function_reduce(self, function: FunctionType) -> Any:
        reduced = super()._dynamic_function_reduce(function)
        if function.__globals__ is not _namespace():
            return reduced
        _, (code, _, _, _, closure), (state, slots), *rest = reduced
        return function_of_cells, (code, closure), (state, slots | {"__globals__": {}}), *rest
