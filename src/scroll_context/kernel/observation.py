"""What the model reads about a cell, in plain text. Pure functions of a CellResult.

Four cases must never be confused: the cell failed before it printed anything (which says nothing about what a
search would have found), it failed after it had printed, it ran and printed nothing, and it printed more than
fits. Each text says what happened, what was kept, and what to do next.
"""

from scroll_context.kernel.results import CellResult, Loss, RestoreReport

_NAMES_SHOWN = 20
_NAME_CHARS = 60


LONG_CELL = 2.0  # seconds, from which a cell without calls tells its time


def observation(result: CellResult, tool_calls: int = 0) -> str:
    """Everything about a finished cell that belongs into the model's view."""
    parts: list[str] = []
    if result.stdout:
        parts.append(result.stdout.rstrip("\n"))
    if result.is_cut:
        parts.append(printed_too_much(result))
    if result.ended != "ok":
        parts.append(failed_after_output(result) if result.printed_chars else failed_before_output(result))
    elif not result.printed_chars:
        parts.append(printed_nothing(result))
    if result.rebound:
        parts.append(host_names_are_back(result.rebound))
    if result.restore is not None:
        parts.append(restored(result.restore))
    if tool_calls or result.duration >= LONG_CELL:
        called = f"{tool_calls:,} call{'s' * (tool_calls > 1)} of tools, " if tool_calls else ""
        parts.append(f"[{called}{result.duration:,.1f} s]")
    return "\n".join(parts)


def failed_before_output(result: CellResult) -> str:
    return (
        f"[the cell failed before it printed anything: {_how(result)}. This is an error in running the cell and says"
        f" nothing about what the data or the history contains. {_what_is_kept(result)} Correct the cell and run it"
        f" again.]{_trace(result)}"
    )


def failed_after_output(result: CellResult) -> str:
    return (
        f"[the cell failed after printing the text above: {_how(result)}. The text is valid but may be incomplete."
        f" {_what_is_kept(result)} Run only what is still missing.]{_trace(result)}"
    )


def printed_nothing(result: CellResult) -> str:
    bound = (*result.bound, *result.changed)
    made = f" It bound {_listed(bound)}." if bound else ""
    return (
        f"[the cell ran to its end and printed nothing.{made} The value of a last expression is not shown: use print()"
        " to see a value. Printing nothing does not mean that nothing was found.]"
    )


def printed_too_much(result: CellResult) -> str:
    return (
        f"[cut: {result.printed_chars:,} characters were printed; the beginning and the end are shown, without the"
        f" {result.hidden_chars:,} between. The whole output is kept in the log under this cell. Your variables are all"
        " there: print less of them. A count, a few rows, a slice of each text, or an aggregate computed in a variable"
        " is usually enough.]"
    )


def host_names_are_back(names: tuple[str, ...]) -> str:
    return (
        f"[{_listed(names)} had been overwritten by an earlier cell and {'were' if len(names) > 1 else 'was'} put back"
        " before this one. Use another name for your own values.]"
    )


def restored(report: RestoreReport) -> str:
    """What a restart of the kernel brought back and what it did not."""
    lines = ["[the kernel was started again. What was saved is back:"]
    if report.restored or not report.stale:
        lines.append(f" restored: {_listed(report.restored)}" if report.restored else " restored: nothing")
    if report.stale:
        lines.append(f" restored, but perhaps not as they were last: {_reasons(report.stale)}")
    if report.lost:
        lines.append(f" lost: {_reasons(report.lost)}")
    return "\n".join(lines) + "]"


def _how(result: CellResult) -> str:
    return _what_happened(result).rstrip(".")


def _what_happened(result: CellResult) -> str:
    error = result.error
    match result.ended:
        case "timeout":
            return error.message if error is not None else "it ran out of time"
        case "interrupted":
            return "it was interrupted"
        case "killed":
            return f"its process was ended ({error.message if error else 'no reason is known'})"
        case "memory":
            return "it ran out of memory (MemoryError). Delete large variables, or work in smaller parts"
        case "output-limit":
            return "it printed without end and was stopped"
        case _:
            return error.message if error is not None else "it raised an exception"


def _what_is_kept(result: CellResult) -> str:
    if result.ended == "killed":
        return "What it had bound is lost; what was saved before it is restored."
    bound = (*result.bound, *result.changed)
    return f"What it bound before that is kept: {_listed(bound)}." if bound else "Earlier variables are unchanged."


def _trace(result: CellResult) -> str:
    return f"\n{result.error.traceback.rstrip()}" if result.error is not None and result.error.traceback else ""


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(map(_quoted, names[:_NAMES_SHOWN]))
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"


def _reasons(losses: tuple[Loss, ...]) -> str:
    """Names by reason, since many names often have one and the same."""
    by_reason: dict[str, list[str]] = {}
    for loss in losses:
        by_reason.setdefault(loss.reason, []).append(loss.name)
    return "; ".join(f"{_listed(tuple(names))} ({reason})" for reason, names in by_reason.items())


def _quoted(name: str) -> str:
    """A name that a kernel process chose, marked as a name: it may read like a sentence."""
    return f"`{name if len(name) <= _NAME_CHARS else name[:_NAME_CHARS] + '…'}`"
