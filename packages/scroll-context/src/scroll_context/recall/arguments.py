"""Arguments of `ms`: what is accepted, and the sentence that refuses everything else.

Arguments come from model code, or from frames that model code forged. Models send whole numbers as
text, dates as date objects, and one text where several are allowed; all of these work.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, cast

from scroll_context.errors import BadInput
from scroll_context.events import Scope
from scroll_context.log import times
from scroll_context.log.filters import FilterFields, SearchFilters
from scroll_context.origin import LABELS

# Characters in all arguments of one call together.
MAX_TEXT = 100_000
# Values in all arguments of one call together.
MAX_VALUES = 20_000
# Rows of one expand. A caller asks for more in parts.
MAX_EXPAND = 5_000
FILTER_ARGUMENTS = {
    *SearchFilters.__struct_fields__,
    "scope",
    "all_agents",
    "created_on",
} - {"task_id"}
"""The filters of `ms`: every field of the filters except the task, which `scope` names, and three
arguments that set several fields.
"""


def check_size(capability: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that are larger than a question is.

    Everything under the limit costs linear time everywhere.
    """
    characters = values = 0
    waiting: list[Any] = [args, kwargs]
    while waiting:
        value = waiting.pop()
        values += 1
        if isinstance(value, str | bytes | bytearray | memoryview):
            characters += len(value)
        elif isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif isinstance(value, int):
            characters += value.bit_length() // 64
        if characters > MAX_TEXT or values + len(waiting) > MAX_VALUES:
            raise BadInput(
                f"the arguments of {capability} are too large: together they may have "
                f"{MAX_TEXT:,} characters in {MAX_VALUES:,} values. "
                "Ask for less at once, or filter the rows in your own code."
            )


def filters_of(method: str, arguments: Mapping[str, Any], scope: Scope) -> SearchFilters:
    """The filters that the arguments of a call ask for. A scope can only narrow the grant.

    `all_agents=True` takes the narrowing of `scope` away; the grant holds in any case.
    """
    unknown = sorted(arguments.keys() - FILTER_ARGUMENTS)
    if unknown:
        offered = ", ".join(sorted(FILTER_ARGUMENTS))
        raise BadInput(f"{method} has no argument {unknown[0]!r}; it filters by {offered}")
    values = {name: value for name, value in arguments.items() if value is not None}
    filters = SearchFilters()
    if "scope" in values and not values.get("all_agents"):
        grant = scope.grant(values["scope"])
        filters = SearchFilters.of(
            session_id=grant.session_id, task_id=grant.task_id, agent_id=grant.agent_id
        )
    # A session named beside scope="session" is the one that is meant.
    fields: dict[str, Any] = {name: texts(values[name], name) for name in LABELS if name in values}
    if "seq_range" in values:
        fields["seq_range"] = bounds(values["seq_range"])
    first = values.get("created_from", values.get("created_on"))
    if first is not None:
        fields["created_from"] = moment(first, upper=False)
    last = values.get("created_to", values.get("created_on"))
    if last is not None:
        fields["created_to"] = moment(last, upper=True)
    return filters.narrowed(**cast(FilterFields, fields))


def text_of(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{name} must be text, not {type(value).__name__}")
    return value


def texts(value: Any, name: str) -> list[str]:
    several = [value] if isinstance(value, str) else value
    is_list = isinstance(several, list | tuple)
    if not is_list or not all(isinstance(text, str) for text in several):
        raise BadInput(f"{name} must be text or a list of texts, not {value!r:.80}")
    return list(several)


def whole_number(value: Any, name: str, least: int, most: int = (1 << 63) - 1) -> int:
    """An integer, also when it was sent as text; a number that is too large becomes `most`."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} must be a whole number, not {value!r:.80}") from None
    if number < least:
        raise BadInput(f"{name} must be at least {least}, not {number}")
    return min(number, most)


def bounds(pair: Any) -> tuple[int, int]:
    """The first and the last seq of a range."""
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise BadInput(f"seq_range is a pair (first, last), not {pair!r:.80}")
    return whole_number(pair[0], "first seq", 0), whole_number(pair[1], "last seq", 0)


def places_of(places: tuple[Any, ...]) -> tuple[list[int], str]:
    """The seqs meant by expand(7), expand([7, 9]) and expand(7, 9), which is a range.

    expand((7, 9)) is the list.
    """
    if len(places) == 2 and not any(isinstance(place, list | tuple) for place in places):
        lo, hi = bounds(places)
        label = f"{lo}-{hi}"
        if hi - lo >= MAX_EXPAND:
            raise BadInput(
                f"expand returns at most {MAX_EXPAND:,} events at once; {label} has "
                f"{hi - lo + 1:,}. Read it in parts."
            )
        return list(range(max(lo, 1), hi + 1)), label
    flat: list[Any] = []
    for place in places:
        flat += place if isinstance(place, list | tuple) else [place]
    if not flat:
        raise BadInput("ms.expand needs a seq, a list of seqs, or a first and a last seq")
    if len(flat) > MAX_EXPAND:
        raise BadInput(f"expand returns at most {MAX_EXPAND:,} events at once, not {len(flat):,}")
    seqs = [whole_number(seq, "seq", 0) for seq in flat]
    return seqs, f"seq {', '.join(map(str, flat[:10]))}"


def moment(value: Any, *, upper: bool) -> str:
    """The first or last moment that a date, a datetime or a text means, in UTC."""
    if not isinstance(value, str | dt.date):
        raise BadInput(
            f"{value!r:.80} is not a date: give one such as '2024-07-31', or an ISO time, as text"
        )
    return times.bound(value, upper=upper)


def bindable(params: Any) -> Mapping[str, Any] | Sequence[Any]:
    """The parameters of a query, with dates as text; a single value stands for a list of one."""

    def plain(value: Any) -> Any:
        return value.isoformat() if isinstance(value, dt.date) else value

    if isinstance(params, Mapping):
        return {name: plain(value) for name, value in params.items()}
    several = params if isinstance(params, list | tuple) else (params,)
    return [plain(value) for value in several]
