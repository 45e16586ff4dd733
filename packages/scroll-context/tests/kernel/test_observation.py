"""The texts that tell the four cases apart, and the bookkeeping behind them, without a process."""

from scroll_context.kernel.results import (
    CellError,
    CellResult,
    Loss,
    Manifest,
    RestoreReport,
    SnapshotVariable,
    head_and_tail,
    observation,
)
from scroll_context.kernel.variables import Namespace


def result(**fields: object) -> CellResult:
    text = fields.pop("text", "")
    shown = fields.pop("shown", text)
    return CellResult(
        **{"cell": 1, "ended": "ok", "stdout": shown, "printed_chars": len(text), **fields}
    )


ERROR = CellError("KeyError", "KeyError: 'a'", "Traceback ...\nKeyError: 'a'\n")


def test_the_four_cases_read_differently() -> None:
    before = observation(result(ended="error", error=ERROR))
    after = observation(result(ended="error", error=ERROR, text="row 1\n"))
    nothing = observation(result())
    shown, hidden = head_and_tail("x" * 50_000, 100, 50_000)
    too_much = observation(result(text="x" * 50_000, shown=shown, hidden_chars=hidden))
    assert before.startswith("[the cell failed before it printed anything: KeyError: 'a'.")
    assert "says nothing about what the data or the history contains" in before
    assert after.startswith("row 1\n[the cell failed after printing the text above: KeyError: 'a'.")
    assert nothing.startswith("[the cell ran to its end and printed nothing.")
    assert too_much.startswith("x" * 68 + "\n[cut: the cell printed 50,000 characters.")
    assert too_much.endswith("]\n" + "x" * 32) and too_much.count("[cut") == 1
    assert len({before, after, nothing, too_much}) == 4


def test_plain_output_is_left_alone() -> None:
    assert observation(result(text="42\n")) == "42"


def test_what_was_kept_and_what_was_put_back_is_told() -> None:
    assert "It bound `a`, `b`." in observation(result(bound=("a", "b")))
    assert "What it bound before that is kept: `a`." in observation(
        result(ended="error", error=ERROR, bound=("a",))
    )
    assert "`ms` had been overwritten" in observation(result(text="x", rebound=("ms",)))


def test_a_restart_is_told_with_reasons() -> None:
    report = RestoreReport(
        ("a",), (Loss("b", "as it was after cell 3"),), (Loss("c", "TypeError: no"),)
    )
    text = observation(
        result(ended="killed", error=CellError("KernelDied", "it ended"), restore=report)
    )
    assert "its process was ended (it ended)" in text
    assert "restored: `a`" in text
    assert "`b` (as it was after cell 3)" in text
    assert "lost: `c` (TypeError: no)" in text


def test_provenance_is_the_union_of_what_was_given_and_what_was_read() -> None:
    names = Namespace()
    names.record_cell(1, ["a"], [], [], (10, 11))
    names.record_cell(2, ["b"], [], ["a"], (5,))
    names.record_cell(3, ["c"], ["a"], ["b", "unknown"], ())
    found = {one.name: one for one in names.variables()}
    assert found["b"].seqs == found["c"].seqs == (5, 10, 11)
    assert "a" not in found
    assert (found["b"].cell, found["b"].used) == (2, 3)


def test_a_value_changed_in_place_derives_from_what_touched_it() -> None:
    names = Namespace()
    names.record_cell(1, ["a", "b"], [], [], (1,))
    names.record_save(["a", "b"], ["a", "b"], 1)
    names.record_cell(2, [], [], ["a", "b"], (7,))
    assert names.record_save(["a", "b"], ["a"], 2) == ("a",)
    assert [one.seqs for one in names.variables()] == [(1, 7), (1,)]


def test_a_restore_tells_stale_from_lost() -> None:
    names = Namespace()
    names.record_cell(1, ["a", "b", "c"], [], [], (1,))
    names.record_save(["a", "b", "c"], ["a", "b", "c"], 1)
    saved = Manifest(
        variables=tuple(SnapshotVariable(name=n, group=i, cell=1) for i, n in enumerate("abc")),
        cell=1,
    )
    names.record_cell(2, ["a", "d"], [], ["b"], (2,))
    report = names.record_restore(saved, ["a", "b"], [Loss("c", "damaged")])
    assert report.restored == ()
    assert [loss.name for loss in report.stale] == ["a", "b"]
    assert [(loss.name, loss.reason) for loss in report.lost] == [
        ("c", "damaged"),
        ("d", "bound by cell 2, after the last save"),
    ]
    assert [v.name for v in names.variables()] == ["a", "b"]
