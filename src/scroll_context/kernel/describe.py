"""What a variable looks like from outside: type, shape or length, size, and the value when it is small. Worker only.

Nothing here runs code that a cell defined: no `repr`, no `len`, no attribute of an object whose type is not known.
Types are told apart by identity, or, for numpy, by being a type that only C can make; classes of the model get
their name and nothing else. Attributes are read through the descriptors of C types and from instance dicts.
"""

import datetime as dt
from collections.abc import Callable, Iterable
from sys import getsizeof
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

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
        inline, detail, size = _scalar(value)
    elif kind is str:
        inline, detail, size = _string(value)
    elif id(kind) in _SIZED:
        detail, size = _sized(value, kind)
    elif kind is dt.datetime or kind is dt.date:
        inline, detail = True, value.isoformat()
    elif kind is ModuleType:
        detail = _module_name(value)
    elif kind is FunctionType:
        detail = f"({', '.join(value.__code__.co_varnames[: value.__code__.co_argcount])})"
    elif (base := _container_base(kind)) is not None:
        detail = f"{_type_dict(base)['__len__'](value):,}"
    elif _is_numpy(kind, "ndarray"):
        detail, size = _array(value)
    elif _comes_from(kind, "pandas"):
        detail, size = _frame(value, _type_name(kind))
    return Variable(name=name, type=type_label(kind), detail=_clean(detail, 512), size=size, inline=inline)


def type_label(kind: type) -> str:
    """A short name for a type, read without asking the type."""
    if id(kind) in _FUNCTIONS:
        return "function"
    if any(base is type for base in _type_mro(kind)):
        return "class"
    return _clean(_type_name(kind), 256)


def _container_base(kind: type) -> type | None:
    """The built-in container that a class derives from; its own `__len__` is C and tells the truth."""
    for base in _type_mro(kind):
        if id(base) in _CONTAINERS:
            return base
    return None


def _scalar(value: Any) -> tuple[bool, str, int]:
    if type(value) is int and value.bit_length() > 190:
        return False, f"{value.bit_length():,} bits", getsizeof(value)
    return True, repr(value), getsizeof(value)


def _string(value: str) -> tuple[bool, str, int]:
    if len(value) <= _INLINE_CHARS:
        return True, ascii(value) if not value.isprintable() else repr(value), getsizeof(value)
    return False, f"{len(value):,} characters", getsizeof(value)


def _sized(value: Any, kind: type) -> tuple[str, int]:
    count = len(value)
    if kind is bytes or kind is bytearray:
        return f"{count:,} bytes", getsizeof(value)
    size = getsizeof(value)
    sample = _sample(value, kind)
    if sample:
        taken = sum(getsizeof(item) if id(type(item)) in _PLAIN else 64 for item in sample)
        size += taken * count // len(sample)
    if kind is dict:
        return f"{count:,}{_keys(value)}", size
    if not sample or any(type(item) is not type(sample[0]) for item in sample):
        return f"{count:,}", size
    fields = _keys(sample[0]) if type(sample[0]) is dict else ""
    return f"{count:,} of {_type_name(type(sample[0]))}{fields}", size


def _keys(value: dict[Any, Any]) -> str:
    """The first keys of a dict, if all of them are text."""
    shown: list[str] = []
    try:
        for key in value:
            if type(key) is not str:
                return ""
            if len(shown) == _KEYS_SHOWN:
                shown.append("…")
                break
            shown.append(_clean(key, _KEY_CHARS))
    except RuntimeError:  # a thread of the cell changed it meanwhile
        return ""
    return f" {{{', '.join(shown)}}}" if shown else ""


def _sample(value: Any, kind: type) -> list[Any]:
    if kind is range:
        return []
    if kind is dict:
        items: Iterable[Any] = value.values()
    else:
        items = value
    taken: list[Any] = []
    try:
        for item in items:
            taken.append(item)
            if len(taken) == _SAMPLE:
                break
    except RuntimeError:  # a thread of the cell changed it meanwhile
        return []
    return taken


def _module_name(value: ModuleType) -> str:
    name = ModuleType.__getattribute__(value, "__dict__").get("__name__", "")
    return name if type(name) is str else ""


def _is_numpy(kind: type, name: str) -> bool:
    """Only C code can make a type that is not on the heap, so the name of such a type is not forged."""
    return not _type_flags(kind) & _HEAP_TYPE and _type_name(kind) == name and _type_module(kind) == "numpy"


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


def _comes_from(kind: type, package: str) -> bool:
    module = _type_module(kind)
    return type(module) is str and module.partition(".")[0] == package


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
    """An attribute without running code: from the instance's dict, or by the descriptor of a C type."""
    for base in _type_mro(type(value)):
        members = _type_dict(base)
        if name in members:
            found = members[name]
            return found.__get__(value) if id(type(found)) in _C_DESCRIPTORS else None
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
