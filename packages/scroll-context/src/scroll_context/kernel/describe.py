"""How a variable is described: its type, its shape or length, its size, and a small value itself.
Worker only.

No code that a cell defined is run: no `repr`, no `len`, no attribute of an object whose type is not
known. Types are told apart by identity, or, for numpy, by being a type that only C can make;
classes of the model get their name and nothing else. Attributes are read through the descriptors of
C types and from instance dicts.
"""

import datetime as dt
from collections.abc import Callable
from itertools import islice
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

type_name: Callable[[type], str] = type.__dict__["__name__"].__get__
type_module: Callable[[type], Any] = type.__dict__["__module__"].__get__
type_flags: Callable[[type], int] = type.__dict__["__flags__"].__get__
type_mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
type_dict: Callable[[type], Any] = type.__dict__["__dict__"].__get__
_HEAP_TYPE = 1 << 9

_DETAIL_CHARS = 512
_INLINE_CHARS = 60
# A longer integer would not fit into so many characters.
_INLINE_BITS = 190
_SAMPLE = 16
_KEYS_SHOWN = 8
_KEY_CHARS = 24
# The assumed size of an item whose type is not known.
_ITEM_BYTES = 64
# By identity: a look-up of the type itself would run the __hash__ and __eq__ of a metaclass.
_SCALARS = {id(kind) for kind in (int, float, bool, complex, type(None))}
_CONTAINERS = {id(kind) for kind in (list, tuple, dict, set, frozenset, str)}
_PLAIN = _SCALARS | _CONTAINERS | {id(kind) for kind in (bytes, bytearray, range)}
_FUNCTIONS = {id(kind) for kind in (FunctionType, BuiltinFunctionType, MethodType)}
_DTYPES = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool", "O": "object"}
_C_DESCRIPTORS = {id(GetSetDescriptorType), id(MemberDescriptorType)}


def describe(name: str, value: Any) -> Variable:
    """The facts about one variable."""
    kind = type(value)
    size = getsizeof(value) if id(kind) in _PLAIN else 0
    inline = _inline(value, kind)
    detail = inline
    if not inline:
        detail, more = _detail(value, kind)
        size += more
    return Variable(
        name=name,
        type=type_label(kind),
        detail=_clean(detail, _DETAIL_CHARS),
        size=size,
        inline=bool(inline),
    )


def _inline(value: Any, kind: type) -> str:
    """A small value itself; "" for any other."""
    if kind is str and len(value) <= _INLINE_CHARS:
        return repr(value) if value.isprintable() else ascii(value)
    if kind is int and value.bit_length() > _INLINE_BITS:
        return ""
    if id(kind) in _SCALARS:
        return repr(value)
    if kind is dt.datetime or kind is dt.date:
        return str(value.isoformat())
    return ""


def _detail(value: Any, kind: type) -> tuple[str, int]:
    """A shape, a length or the first keys, and the bytes that are not in the object itself."""
    if kind is int:
        return f"{value.bit_length():,} bits", 0
    if kind is bytes or kind is bytearray:
        return f"{len(value):,} bytes", 0
    if kind is range:
        # A range may be longer than `len` can say.
        count = (value[-1] - value[0]) // value.step + 1 if value else 0
        return f"{count:,}", 0
    if kind is ModuleType:
        return module_name(value), 0
    if kind is FunctionType:
        code = value.__code__
        return f"({', '.join(code.co_varnames[: code.co_argcount])})", 0
    for base in type_mro(kind):
        if id(base) in _CONTAINERS:
            return _container(value, base)
    if _is_array(kind):
        return _array(value)
    module = type_module(kind)
    if type(module) is str and module.partition(".")[0] == "pandas":
        return _frame(value, type_name(kind)), 0
    return _fields(value), 0


def type_label(kind: type) -> str:
    """A short name for a type, read without asking the type."""
    if id(kind) in _FUNCTIONS:
        return "function"
    if any(base is type for base in type_mro(kind)):
        return "class"
    return _clean(type_name(kind), 256)


def _container(value: Any, base: Any) -> tuple[str, int]:
    """The length of a container with its keys or the type of its items, and their bytes.

    Everything goes through the methods of the built-in type itself, which are C, because `value`
    may be an instance of a class that derives from it.
    """
    count = base.__len__(value)
    if base is str:
        return f"{count:,} characters", 0
    items = dict.values(value) if base is dict else base.__iter__(value)
    try:
        sample = list(islice(items, _SAMPLE))
    except RuntimeError:
        # A thread of the cell changed it meanwhile.
        sample = []
    content = _keys(value) if base is dict else _item_type(sample)
    size = 0
    if sample and type(value) is base:
        size = sum(map(_item_size, sample)) * count // len(sample)
    return f"{count:,}{content}", size


def _item_size(item: Any) -> int:
    return getsizeof(item) if id(type(item)) in _PLAIN else _ITEM_BYTES


def _item_type(sample: list[Any]) -> str:
    """The common type of the items of a container, and their keys if they are dicts."""
    if not sample or any(type(item) is not type(sample[0]) for item in sample):
        return ""
    kind = type(sample[0])
    keys = ""
    if any(base is dict for base in type_mro(kind)):
        keys = _keys(sample[0])
    return f" of {_clean(type_name(kind), 60)}{keys}"


def _fields(value: Any) -> str:
    """The names of the attributes of an object whose class a cell defined."""
    module = type_module(type(value))
    if type(module) is not str or module != "__main__":
        return ""
    return _keys(_attributes(value)).strip()


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes in the dict of an instance, read without running code."""
    for base in type_mro(type(value)):
        descriptor = type_dict(base).get("__dict__")
        if id(type(descriptor)) in _C_DESCRIPTORS:
            attributes = descriptor.__get__(value)
            return attributes if type(attributes) is dict else {}
    return {}


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


def module_name(value: ModuleType) -> str:
    name = ModuleType.__getattribute__(value, "__dict__").get("__name__", "")
    return name if type(name) is str else ""


def _is_array(kind: type) -> bool:
    """Whether this is numpy's own array type.

    Only C code can make a type that is not on the heap, so the name of such a type is not forged.
    """
    is_from_c = not type_flags(kind) & _HEAP_TYPE
    return is_from_c and (type_module(kind), type_name(kind)) == ("numpy", "ndarray")


def _array(value: Any) -> tuple[str, int]:
    dtype = _raw(value, "dtype")
    label = _DTYPES.get(dtype.kind, dtype.kind)
    if dtype.kind in "fiuc":
        label += str(dtype.itemsize * 8)
    return f"{_raw(value, 'shape')} {label}", _raw(value, "nbytes")


def _frame(value: Any, name: str) -> str:
    """The shape of a DataFrame or Series, from the axes that its block manager keeps in C."""
    axes = _raw(_raw(value, "_mgr"), "axes")
    if type(axes) is not list:
        return ""
    lengths = [_index_length(axis) for axis in axes]
    if any(length < 0 for length in lengths):
        return ""
    if name == "DataFrame" and len(lengths) == 2:
        return f"{lengths[1]:,} rows x {lengths[0]:,} columns"
    return " x ".join(f"{length:,}" for length in lengths)


def _index_length(index: Any) -> int:
    """The length of an index of pandas; -1 if it is not known."""
    positions = _raw(index, "_range")
    if type(positions) is range:
        return len(positions)
    data = _raw(index, "_data")
    if _raw(data, "_ndarray") is not None:
        data = _raw(data, "_ndarray")
    return int(_raw(data, "shape")[0]) if _is_array(type(data)) else -1


def _raw(value: Any, name: str) -> Any:
    """An attribute, read without running code: by a C descriptor, or from the instance's dict."""
    for base in type_mro(type(value)):
        members = type_dict(base)
        if name in members:
            member = members[name]
            return member.__get__(value) if id(type(member)) in _C_DESCRIPTORS else None
    return _attributes(value).get(name)


def _clean(text: str, limit: int) -> str:
    """One printable line of at most `limit` characters."""
    if not text.isprintable():
        text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
