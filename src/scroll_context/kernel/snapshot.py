"""Pickles the variables of the namespace and brings them back. Worker only: the host never unpickles anything.

A save looks at what may have changed since the last one: names that were bound, mutable values that were read
(through the functions that a cell called as well), and values that share objects with those. A value is sent only
when the hash of its pickle changed. Names bound to one object are saved once and restored as one object. Plain
pickle does the work; cloudpickle takes over for functions and classes that cells defined, which are restored with
the live namespace as their globals. What cannot be pickled is reported with the reason.

Not covered: two variables that share an object below their top level come back with a copy each.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from io import BytesIO
from pickle import dumps, loads
from sys import getrefcount
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from scroll_context.kernel.describe import type_label
from scroll_context.kernel.interrupts import Interrupts
from scroll_context.kernel.protocol import Blob, Kept, Loaded, WireMessage

_CachedFunction = type(lru_cache(lambda: None))
_PIECE = 4 << 20
_REASON_CHARS = 300
_IMMUTABLE = {id(kind) for kind in (int, float, bool, complex, type(None), str, bytes, range)}
_ON_WRITE_ONLY = _IMMUTABLE | {id(FunctionType), id(ModuleType), id(type)}
_ALONE: frozenset[str] = frozenset()
_CELLS_APART = 32  # older ones count as one


class Snapshots:
    """What is known of each variable since it was last saved."""

    def __init__(self, namespace: dict[str, Any], interrupts: Interrupts) -> None:
        self._namespace = namespace
        self._interrupts = interrupts
        self._hashes: dict[str, bytes] = {}
        self._cells: list[tuple[frozenset[str], frozenset[str]]] = []  # written and read by each since then
        self._company: dict[str, frozenset[str]] = {}  # name -> names with which it may share objects
        interrupts.protect(globals())

    def note_cell(self, written: Iterable[str], read: frozenset[str]) -> None:
        """Remember which names a cell touched."""
        self._cells.append((frozenset(written), read))
        if len(self._cells) > _CELLS_APART:
            (written, read), (also_written, also_read) = self._cells[:2]
            self._cells[:2] = [(written | also_written, read | also_read)]

    def save(self, variables: dict[str, Any], full: bool, limit: int, send: Callable[[WireMessage], None]) -> None:
        """Send what changed among `variables`. Interrupts are on: pickling may run code of the cells."""
        groups = _groups(variables)
        due = set(variables) if full else self._due(variables, groups)
        for group in groups:
            if due.intersection(group):
                self._save_group(group, variables[group[0]], limit, send)
        self._hashes = {name: digest for name, digest in self._hashes.items() if name in variables}
        for written, read in self._cells:
            self._keep_company(written, _with_globals(read, variables), variables)
        self._cells.clear()

    def forget(self) -> None:
        """Count nothing as saved."""
        self._hashes.clear()

    def load(self, names: tuple[str, ...], data: bytes) -> Loaded:
        """Unpickle `data` and bind it to each of `names`."""
        try:
            value = self._guarded(loads, data)
        except BaseException as error:  # noqa: BLE001 - unpickling runs foreign code
            return Loaded("", _reason(error))
        digest = _digest(data)
        for name in names:
            self._namespace[name] = value
            self._hashes[name] = digest
        return Loaded(type_label(type(value)), "")

    def load_module(self, name: str, module: str) -> Loaded:
        try:
            self._namespace[name] = self._guarded(import_module, module)
        except BaseException as error:  # noqa: BLE001 - importing runs foreign code
            return Loaded("", _reason(error))
        self._hashes[name] = module.encode()
        return Loaded("module", "")

    def _due(self, variables: dict[str, Any], groups: list[tuple[str, ...]]) -> set[str]:
        written = {name for names, _ in self._cells for name in names}
        read = _with_globals({name for _, names in self._cells for name in names}, variables)
        due = {name for name in variables if name not in self._hashes or name in written}
        due |= {name for name in read if id(type(variables[name])) not in _ON_WRITE_ONLY}
        return self._with_neighbours(due, variables, groups)

    def _with_neighbours(self, due: set[str], variables: dict[str, Any], groups: list[tuple[str, ...]]) -> set[str]:
        """`due`, and the variables that may share objects with one of it.

        `row = rows[0]` followed by `row["x"] = 1` changes `rows` without naming it. Only a value that something
        besides its own names refers to can be a part of another like that.
        """
        shared: set[str] = set()
        for group in groups:
            value = variables[group[0]]
            own = 2 * len(group) + 2  # the namespace, `variables`, `value`, and the argument of getrefcount
            if id(type(value)) not in _ON_WRITE_ONLY and getrefcount(value) > own:
                shared.update(group)
        pending = list(due)
        seen: set[tuple[frozenset[str], bool]] = set()
        while pending:
            name = pending.pop()
            others, is_shared = self._company.get(name, _ALONE), name in shared
            if (others, is_shared) not in seen:
                seen.add((others, is_shared))
                found = (others if is_shared else others & shared) - due
                due |= found
                pending += found
        return due.intersection(variables)

    def _keep_company(self, written: frozenset[str], read: set[str], variables: dict[str, Any]) -> None:
        """What a cell touched together may share objects.

        A name that is deleted, or bound to a value that has nothing to do with the old one, leaves its company; those
        that it leaves may have got to know each other through it.
        """
        met = frozenset(name for name in read | written if id(type(variables.get(name))) not in _ON_WRITE_ONLY)
        gone = (written - read) | (self._company.keys() - variables.keys())
        after: dict[tuple[frozenset[str], bool], frozenset[str]] = {}  # many names have one and the same company
        company: dict[str, frozenset[str]] = {}
        for name in variables:
            before = _ALONE if name in gone else self._company.get(name, _ALONE)
            key = before, name in met
            if key not in after:
                left = {self._company.get(one, _ALONE) for one in before & gone}
                after[key] = before.union(*left) - gone | (met if name in met else _ALONE)
            company[name] = after[key]
        self._company = company

    def _save_group(self, group: tuple[str, ...], value: Any, limit: int, send: Callable[[WireMessage], None]) -> None:
        label = type_label(type(value))
        if type(value) is ModuleType:
            self._save_module(group, value, label, send)
            return
        try:
            data = self._guarded(self._pickle, value)
            reason = "" if len(data) <= limit else f"its pickle of {len(data):,} bytes exceeds the limit of {limit:,}"
        except BaseException as error:  # noqa: BLE001 - pickling runs foreign code
            data, reason = b"", _reason(error)
        digest = _digest(data) if not reason else b"lost:" + reason.encode()
        changed = any(self._hashes.get(name) != digest for name in group)
        if changed and not reason:
            for start in range(0, len(data), _PIECE):
                send(Blob(data[start : start + _PIECE] if len(data) > _PIECE else data))
        self._keep(group, digest)
        send(Kept(group, label, changed, len(data), "", reason))

    def _save_module(
        self, group: tuple[str, ...], value: ModuleType, label: str, send: Callable[[WireMessage], None]
    ) -> None:
        name = ModuleType.__getattribute__(value, "__dict__").get("__name__")
        known = type(name) is str and len(name) <= 256 and name.isprintable() and sys.modules.get(name) is value
        module = name if known else ""
        digest = module.encode()
        changed = any(self._hashes.get(one) != digest for one in group)
        self._keep(group, digest)
        send(Kept(group, label, changed, 0, module, "" if known else "a module that cannot be imported by its name"))

    def _keep(self, group: tuple[str, ...], digest: bytes) -> None:
        for name in group:
            self._hashes[name] = digest

    def _pickle(self, value: Any) -> bytes:
        """Pickle by value whatever a cell defined: `__main__` of another process does not have it."""
        try:
            data = dumps(value, protocol=5)
        except Exception:  # noqa: BLE001 - whatever it was, cloudpickle may know better
            data = b"__main__"
        if b"__main__" not in data:
            return data
        buffer = BytesIO()
        _ByValue(buffer, protocol=5).dump(value)
        return buffer.getvalue()

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


def _digest(data: bytes) -> bytes:
    """Tells pickles apart within this process; the host names them by a digest of its own."""
    return hash(data).to_bytes(8, "little", signed=True) + len(data).to_bytes(8, "little")


def _reason(error: BaseException) -> str:
    """Why it failed, in a line; the text of the exception may be foreign code too."""
    name = type.__dict__["__name__"].__get__(type(error))
    try:
        text = f"{name}: {error}" if str(error) else name
    except Exception:  # noqa: BLE001 - str() of a foreign exception
        text = name
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return line[:_REASON_CHARS] or "unknown"


def _with_globals(names: Iterable[str], variables: dict[str, Any]) -> set[str]:
    """`names`, and what the functions and classes among them refer to, and so on."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in found or name not in variables:
            continue
        found.add(name)
        for function in _functions_of(variables[name]):
            pending.extend(_global_names(function.__code__))
    return found


def _functions_of(value: Any) -> Iterator[FunctionType]:
    """The functions of cells that may run when a cell uses `value`."""
    namespace = _namespace()
    if type(value) is FunctionType:
        if value.__globals__ is namespace:
            yield value
        return
    kind = value if type(value) is type else type(value)
    for base in type.__dict__["__mro__"].__get__(kind):
        members = type.__dict__["__dict__"].__get__(base)
        if members.get("__module__") == "__main__":
            for member in members.values():
                function = member.__func__ if type(member) in (staticmethod, classmethod) else member
                if type(function) is FunctionType and function.__globals__ is namespace:
                    yield function


def _global_names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if type(constant) is CodeType:
            names |= _global_names(constant)
    return names


def function_of_cells(code: CodeType, closure: Any) -> FunctionType:
    """A restored function: its globals are the live namespace, as they were when a cell defined it."""
    return FunctionType(code, _namespace(), None, None, closure)


def cached_again(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """A restored function with `functools.lru_cache`; its cache starts empty."""
    return lru_cache(**parameters)(function)


def _namespace() -> dict[str, Any]:
    return sys.modules["__main__"].__dict__


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles what cells defined by value; their functions keep referring to the namespace, not to a copy of it."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is _CachedFunction:  # would pickle as a name of `__main__`
            return cached_again, (value.__wrapped__, value.cache_parameters())
        return super().reducer_override(value)

    def _dynamic_function_reduce(self, function: FunctionType) -> Any:
        reduced = super()._dynamic_function_reduce(function)
        if function.__globals__ is not _namespace():
            return reduced
        _, (code, _, _, _, closure), (state, slots), *rest = reduced
        return function_of_cells, (code, closure), (state, slots | {"__globals__": {}}), *rest
