"""Messages of the wire with any content, drawn from the types that declare them."""

import types
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from scroll_context.kernel.protocol import ToHost, ToWorker

_short = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | _short,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_short, inner, max_size=3),
    max_leaves=6,
)
# This is the only text with a pattern.
_LIMITS = st.sampled_from(["", "interrupt", "cpu", "memory", "output"])


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type as messages use it, within its bounds."""
    if get_origin(kind) is Annotated:
        kind, meta = get_args(kind)
        if meta.pattern is not None:
            return _LIMITS
        if kind is int:
            return st.integers(meta.ge or 0, (meta.lt or 1 << 53) - 1)
        return values(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return st.one_of([values(member) for member in get_args(kind)])
    if get_origin(kind) is tuple:
        return st.lists(values(get_args(kind)[0]), max_size=3).map(tuple)
    if get_origin(kind) is not None and get_origin(kind).__name__ == "Literal":
        return st.sampled_from(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        return st.builds(kind, **{name: values(hints[name]) for name in kind.__struct_fields__})
    strategies: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(1 << 63), (1 << 63) - 1),
        str: _short,
        bytes: st.binary(max_size=40),
        bool: st.booleans(),
        type(None): st.none(),
        Any: _plain,
        float: st.floats(allow_nan=False),
        msgspec.Raw: _plain.map(lambda value: msgspec.Raw(msgspec.msgpack.encode([[value], {}]))),
    }
    return strategies[kind]


to_host = values(ToHost)
to_worker = values(ToWorker)
