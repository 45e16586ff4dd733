"""Reading the arguments that model code sends."""

from typing import Any

from scroll_context.errors import BadInput


def whole_number(value: Any, name: str, least: int, most: int = (1 << 63) - 1) -> int:
    """A whole number, also when it was sent as text; too large ones are brought down to the most."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} must be a whole number, not {value!r:.80}") from None
    if number < least:
        raise BadInput(f"{name} must be at least {least}, not {number}")
    return min(number, most)
