"""The variables of the namespace: how each is described, pickled and restored.
Worker only.

`describe` gives the type, the shape or length, the size, and the value when it is small. It runs no
code that a cell defined: no `repr`, no `len`, no attribute of an object whose type is not known.
Types are told apart by identity, or, for numpy, by being a type that only C can make; classes of
the model get their name and nothing else. Attributes are read through the descriptors of C types
and from instance dicts.

`Snapshots` pickles; the host never unpickles anything. A value can change without being named:
through `globals()`, through another name for one of its parts, by a thread. So a save looks at
every value that is small, by pickling it or by a mark that tells it is the same, and at each larger
one that a cell has named (through the functions that it called as well). The rest is reported as
not looked at, and the host reports it as possibly stale; a full save looks at everything. A value
is sent only when the hash of its pickle changed. Names bound to one object are saved once and
restored as one object. Plain pickle does the work; cloudpickle takes over for functions and classes
that cells defined, which are restored with the live namespace as their globals. What cannot be
pickled is reported with the reason.

Not covered: two variables that share an object below their top level come back with a copy each.
"""

import builtins
import datetime as dt
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from io import BytesIO
from itertools import islice
from pickle import dumps, loads
from sys import _current_frames, getsizeof
from time import thread_time
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import cloudpickle

from scroll_context.kernel.channel import CpuLimitExceeded, Interrupts
from scroll_context.kernel.protocol import Blob, Loaded, SavedValue, WireMessage
from scroll_context.kernel.results import Variable

_type_name: Callable[[type], str] = type.__dict__["__name__"].__get__
_type_module: Callable[[type], Any] = type.__dict__["__module__"].__get__
_type_flags: Callable[[type], int] = type.__dict__["__flags__"].__get__
_type_mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_type_dict: Callable[[type], Any] = type.__dict__["__dict__"].__get__
_HEAP_TYPE = 1 << 9

_INLINE_CHARS = 60
_SAMPLE = 16
_KEYS_SHOWN = 8
_KEY_CHARS = 24
# By identity: a look-up of the type itself would run the __hash__ and __eq__ of a metaclass.
_SCALARS = {id(kind) for kind in (int, float, bool, complex, type(None))}
_SIZED = {id(kind) for kind in (list, tuple, dict, set, frozenset, bytes, bytearray, range)}
_CONTAINERS = {id(kind) for kind in (list, tuple, dict, set, frozenset, str)}
_FUNCTIONS = {id(kind) for kind in (FunctionType, BuiltinFunctionType, MethodType)}
_PLAIN = _SCALARS | _SIZED | {id(str)}
_C_DESCRIPTORS = {id(GetSetDescriptorType), id(MemberDescriptorType)}


def describe(name: str, value: Any) -> Variable:
    """The facts about one variable."""
    kind = type(value)
    detail, inline, size = "", False, 0
    if id(kind) in _SCALARS:
        inline, size = not (kind is int and value.bit_length() > 190), getsizeof(value)
        detail = repr(value) if inline else f"{value.bit_length():,} bits"
    elif kind is str:
        inline, size = len(value) <= _INLINE_CHARS, getsizeof(value)
        spelt = repr if value.isprintable() else ascii
        detail = spelt(value) if inline else f"{len(value):,} characters"
    elif id(kind) in _SIZED:
        detail, size = _sized(value, kind)
    elif kind is dt.datetime or kind is dt.date:
        inline, detail = True, value.isoformat()
    elif kind is ModuleType:
        detail = _module_name(value)
    elif kind is FunctionType:
        detail = f"({', '.join(value.__code__.co_varnames[: value.__code__.co_argcount])})"
    else:
        detail, size = _describe_object(value, kind)
    return Variable(
        name=name, type=type_label(kind), detail=_clean(detail, 512), size=size, inline=inline
    )


def _describe_object(value: Any, kind: type) -> tuple[str, int]:
    base = _container_base(kind)
    if base is not None:
        return _subclass_sized(value, base)
    if _is_numpy(kind, "ndarray"):
        return _array(value)
    module = _type_module(kind)
    if type(module) is str and module.partition(".")[0] == "pandas":
        return _frame(value, _type_name(kind))
    return _fields(value), 0


def type_label(kind: type) -> str:
    """A short name for a type, read without asking the type."""
    if id(kind) in _FUNCTIONS:
        return "function"
    if any(base is type for base in _type_mro(kind)):
        return "class"
    return _clean(_type_name(kind), 256)


def _container_base(kind: type) -> type | None:
    """The built-in container that a class derives from. Its `__len__` is C and can be trusted."""
    for base in _type_mro(kind):
        if id(base) in _CONTAINERS:
            return base
    return None


def _subclass_sized(value: Any, base: type) -> tuple[str, int]:
    """The length of an instance of a class that derives from a container, and its keys or items.

    Everything goes through the methods of the container itself, which are C.
    """
    count = _type_dict(base)["__len__"](value)
    if base is str:
        return f"{count:,} characters", 0
    if base is dict:
        return f"{count:,}{_keys(value)}", 0
    try:
        sample = list(islice(_type_dict(base)["__iter__"](value), _SAMPLE))
    except RuntimeError:
        # A thread of the cell changed it meanwhile.
        return f"{count:,}", 0
    return f"{count:,}{_item_type(sample)}", 0


def _item_type(sample: list[Any]) -> str:
    """The common type of the items of a container, and their keys if they are dicts."""
    if not sample or any(type(item) is not type(sample[0]) for item in sample):
        return ""
    kind = type(sample[0])
    keys = ""
    if any(base is dict for base in _type_mro(kind)):
        keys = _keys(sample[0])
    return f" of {_clean(_type_name(kind), 60)}{keys}"


def _fields(value: Any) -> str:
    """The names of the attributes of an object whose class a cell defined."""
    module = _type_module(type(value))
    if type(module) is not str or module != "__main__":
        return ""
    for base in _type_mro(type(value)):
        holder = _type_dict(base).get("__dict__")
        if holder is not None and id(type(holder)) in _C_DESCRIPTORS:
            attributes = holder.__get__(value)
            return _keys(attributes).strip() if type(attributes) is dict else ""
    return ""


def _sized(value: Any, kind: type) -> tuple[str, int]:
    count = len(value)
    if kind is bytes or kind is bytearray:
        return f"{count:,} bytes", getsizeof(value)
    size = getsizeof(value)
    sample = _sample(value, kind)
    if sample:
        sizes = [getsizeof(item) if id(type(item)) in _PLAIN else 64 for item in sample]
        size += sum(sizes) * count // len(sample)
    if kind is dict:
        return f"{count:,}{_keys(value)}", size
    return f"{count:,}{_item_type(sample)}", size


def _keys(value: dict[Any, Any]) -> str:
    """The first keys of a dict, if all of them are text or integers."""
    keys: list[str] = []
    try:
        for key in dict.__iter__(value):
            if type(key) is not str and type(key) is not int:
                return ""
            if len(keys) == _KEYS_SHOWN:
                keys.append("…")
                break
            keys.append(_clean(_key_text(key), _KEY_CHARS))
    except RuntimeError:
        # A thread of the cell changed it meanwhile.
        return ""
    return f" {{{', '.join(keys)}}}" if keys else ""


def _key_text(key: str | int) -> str:
    if isinstance(key, int):
        return str(key) if key.bit_length() < 64 else "…"
    return key


def _sample(value: Any, kind: type) -> list[Any]:
    """The first items of a container, or values of a dict."""
    if kind is range:
        return []
    try:
        return list(islice(value.values() if kind is dict else value, _SAMPLE))
    except RuntimeError:
        # A thread of the cell changed it meanwhile.
        return []


def _module_name(value: ModuleType) -> str:
    name = ModuleType.__getattribute__(value, "__dict__").get("__name__", "")
    return name if type(name) is str else ""


def _is_numpy(kind: type, name: str) -> bool:
    """Whether this is a type of numpy.

    Only C code can make a type that is not on the heap, so the name of such a type is not forged.
    """
    return (
        not _type_flags(kind) & _HEAP_TYPE
        and _type_name(kind) == name
        and _type_module(kind) == "numpy"
    )


def _array(value: Any) -> tuple[str, int]:
    members = _type_dict(type(value))
    shape = members["shape"].__get__(value)
    dtype = members["dtype"].__get__(value)
    kind, width = dtype.kind, dtype.itemsize
    names = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool", "O": "object"}
    label = names.get(kind, kind)
    if kind in "fiuc":
        label += str(width * 8)
    return f"{shape} {label}", members["nbytes"].__get__(value)


def _frame(value: Any, name: str) -> tuple[str, int]:
    """The shape of a DataFrame or Series, from the axes that its block manager keeps in C."""
    axes = _raw(_raw(value, "_mgr"), "axes")
    if type(axes) is not list:
        return "", 0
    lengths = [_index_length(axis) for axis in axes]
    if any(length < 0 for length in lengths):
        return "", 0
    if name == "DataFrame" and len(lengths) == 2:
        return f"{lengths[1]:,} rows x {lengths[0]:,} columns", 0
    return " x ".join(f"{length:,}" for length in lengths), 0


def _index_length(index: Any) -> int:
    held = _raw(index, "_range")
    if type(held) is range:
        return len(held)
    held = _raw(index, "_data")
    for inner in ("_ndarray", "_pa_array"):
        if _raw(held, inner) is not None:
            held = _raw(held, inner)
    if _is_numpy(type(held), "ndarray"):
        shape = _type_dict(type(held))["shape"].__get__(held)
        return int(shape[0])
    return -1


def _raw(value: Any, name: str) -> Any:
    """An attribute, read without running code: from the instance's dict, or by a C descriptor."""
    for base in _type_mro(type(value)):
        members = _type_dict(base)
        if name in members:
            member = members[name]
            return member.__get__(value) if id(type(member)) in _C_DESCRIPTORS else None
    for base in _type_mro(type(value)):
        holder = _type_dict(base).get("__dict__")
        if holder is not None:
            return holder.__get__(value).get(name) if id(type(holder)) in _C_DESCRIPTORS else None
    return None


def _clean(text: str, limit: int) -> str:
    """One printable line of at most `limit` characters."""
    if not text.isprintable():
        text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


# pickles ------------------------------------------------------------------------------------------

_CachedFunction = type(lru_cache(lambda: None))
_PIECE = 4 << 20
_IMMUTABLE = {id(kind) for kind in (int, float, bool, complex, type(None), str, bytes, range)}
# A variable with a pickle up to this size is pickled only to see whether it changed.
_SMALL = 64 << 10
# The processor time for all of those in one save.
_SECONDS = 0.02


class _Sent(NamedTuple):
    """The facts about a variable since it was last sent."""

    digest: bytes
    group: tuple[str, ...]
    size: int
    seconds: float
    # Shows without pickling that the value is the same; None when nothing does.
    mark: Any

    def is_same(self, value: Any) -> bool:
        """Whether the value is surely unchanged."""
        return self.mark is not None and _is_marked(value, self.mark)


class Snapshots:
    """The facts about each variable since it was last saved."""

    def __init__(self, namespace: dict[str, Any], interrupts: Interrupts) -> None:
        self._namespace = namespace
        self._interrupts = interrupts
        self._sent: dict[str, _Sent] = {}
        # Names that cells have touched since the last save.
        self._touched: set[str] = set()
        interrupts.protect(globals())

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
            return Loaded("", _reason("import" if module else "load", error))
        sent = _Sent(module.encode() or _digest(data), names, len(data), 0.0, _mark(value))
        for name in names:
            self._namespace[name] = value
            self._sent[name] = sent
        return Loaded(type_label(type(value)), "")

    def _save_group(
        self, group: tuple[str, ...], value: Any, limit: int, send: Callable[[WireMessage], None]
    ) -> None:
        data, module, reason = b"", "", ""
        begun = thread_time()
        if type(value) is ModuleType:
            module = _importable(value)
            reason = "" if module else "module"
        else:
            try:
                data = self._guarded(self._pickle, value)
                reason = "" if len(data) <= limit else "size"
            except BaseException as error:  # noqa: BLE001 - pickling runs foreign code
                reason = _reason("pickle", error)
        digest = b"lost:" + reason.encode() if reason else module.encode() or _digest(data)
        before = [self._sent.get(name) for name in group]
        changed = any(state is None or state.digest != digest for state in before)
        mark = None if reason else _mark(value)
        sent = _Sent(digest, group, len(data), thread_time() - begun, mark)
        for name in group:
            self._sent[name] = sent
        same_group = all(state is not None and state.group == group for state in before)
        if not changed and same_group:
            return
        if changed and not reason:
            for start in range(0, len(data), _PIECE):
                send(Blob(data[start : start + _PIECE] if len(data) > _PIECE else data))
        send(SavedValue(group, type_label(type(value)), changed, len(data), module, reason))

    def _pickle(self, value: Any) -> bytes:
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


def _mark(value: Any) -> Any:
    """A mark that shows, without pickling, that a value is unchanged; None if there is none.

    Text and bytes are known by their hash, which they keep. Numbers, modules, and functions without
    state of their own are known by being the same object, which is held for that reason.
    """
    kind = type(value)
    if kind is str or kind is bytes:
        return kind, hash(value), len(value)
    if id(kind) in _IMMUTABLE or kind is ModuleType:
        return value
    if kind is FunctionType and not (
        value.__closure__
        or value.__defaults__
        or value.__kwdefaults__
        or value.__dict__
        or value.__annotations__
    ):
        return value, value.__code__
    return None


def _is_marked(value: Any, mark: Any) -> bool:
    kind = type(value)
    if kind is str or kind is bytes:
        return type(mark) is tuple and mark[0] is kind and mark[1:] == (hash(value), len(value))
    if kind is FunctionType:
        return (
            type(mark) is tuple
            and mark[0] is value
            and mark[1] is value.__code__
            and _mark(value) is not None
        )
    return mark is value


def _importable(module: ModuleType) -> str:
    name = _module_name(module)
    return (
        name if len(name) <= 256 and name.isprintable() and sys.modules.get(name) is module else ""
    )


def _reason(code: str, error: BaseException) -> str:
    """Why it failed: the nearest built-in exception, and nothing that foreign code can word."""
    if isinstance(error, KeyboardInterrupt | CpuLimitExceeded | MemoryError):
        code = "limit"
    for kind in type.__dict__["__mro__"].__get__(type(error)):
        name = type.__dict__["__name__"].__get__(kind)
        if vars(builtins).get(name) is kind:
            return f"{code}:{name}"
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
    for base in type.__dict__["__mro__"].__get__(kind):
        members = type.__dict__["__dict__"].__get__(base)
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
