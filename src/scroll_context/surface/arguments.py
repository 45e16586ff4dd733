"""Arguments of `ms` as they come from model code, or from frames that model code forged: checked, and made plain.

Models send whole numbers as text, dates as date objects, and one text where several are allowed; all of these work.
Everything else is refused with a sentence that says what is expected.
"""

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from scroll_context.errors import BadInput
from scroll_context.events import Scope

MAX_EXPAND = 5_000  # rows of one expand; more is asked for in pieces

FILTERS = ("scope", "kind", "role", "session_id", "agent_id", "all_agents", "seq_range", "created_on", "created_from",
           "created_to")  # fmt: skip


def filters_of(method: str, given: Mapping[str, Any], scope: Scope, known: Collection[str] = FILTERS) -> dict[str, Any]:
    """The filters that a caller named, as the store takes them. A scope can only narrow the grant."""
    if unknown := sorted(set(given) - set(known)):
        raise BadInput(f"{method} has no argument {unknown[0]!r}; it filters by {', '.join(sorted(known))}")
    wanted: dict[str, Any] = {
        name: texts(given[name], name)
        for name in ("kind", "role", "session_id", "agent_id")
        if given.get(name) is not None
    }
    named = given.get("scope")
    if named is not None and not given.get("all_agents"):
        narrowed = scope.grant(named)
        for name in ("session_id", "task_id", "agent_id"):
            if (value := getattr(narrowed, name)) is not None:
                wanted.setdefault(name, value)  # a session named beside scope="session" is the one that is meant
    if given.get("seq_range") is not None:
        wanted["seq_range"], _ = bounds(given["seq_range"])
    for name in ("created_from", "created_to"):
        value = given.get("created_on") if given.get(name) is None else given[name]
        if value is not None:
            wanted[name] = iso(value)
    return wanted


def whole_number(value: Any, name: str, least: int, most: int = (1 << 63) - 1) -> int:
    """A whole number, also when it was sent as text; too large ones are brought down to the most."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} must be a whole number, not {value!r:.80}") from None
    if number < least:
        raise BadInput(f"{name} must be at least {least}, not {number}")
    return min(number, most)


def texts(value: Any, name: str) -> list[str]:
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list | tuple) or not all(isinstance(one, str) for one in several):
        raise BadInput(f"{name} is a text or a list of texts, not {value!r:.80}")
    return list(several)


def bounds(pair: Any) -> tuple[tuple[int, int], str]:
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise BadInput(f"seq_range is a pair (first, last), not {pair!r:.80}")
    lo, hi = whole_number(pair[0], "first seq", 0), whole_number(pair[1], "last seq", 0)
    return (lo, hi), f"{lo}-{hi}"


def places_of(places: tuple[Any, ...]) -> tuple[list[int], str]:
    """The seqs meant by expand(7), expand([7, 9]), expand(7, 9) and, since models write it, expand((7, 9))."""
    if len(places) == 2 and not any(isinstance(place, list | tuple) for place in places):
        (lo, hi), asked = bounds(places)
        if hi - lo >= MAX_EXPAND:
            raise BadInput(
                f"expand gives at most {MAX_EXPAND:,} events at once; {asked} has {hi - lo + 1:,}. Take parts."
            )
        return list(range(max(lo, 1), hi + 1)), asked
    flat = [one for place in places for one in (place if isinstance(place, list | tuple) else [place])]
    if not flat:
        raise BadInput("ms.expand needs a seq, a list of seqs, or a first and a last seq")
    if len(flat) > MAX_EXPAND:
        raise BadInput(f"expand gives at most {MAX_EXPAND:,} events at once, not {len(flat):,}")
    return [whole_number(one, "seq", 0) for one in flat], f"seq {', '.join(map(str, flat[:10]))}"


def iso(value: Any) -> str:
    if isinstance(value, dt.date):
        return value.isoformat()
    if not isinstance(value, str):
        raise BadInput(f"{value!r:.80} is not a date: give one such as '2024-07-31', or an ISO time, as text")
    return value


def bindable(params: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any] | Sequence[Any]:
    def plain(value: Any) -> Any:
        return value.isoformat() if isinstance(value, dt.date) else value

    if isinstance(params, Mapping):
        return {name: plain(value) for name, value in params.items()}
    return [plain(value) for value in params]
