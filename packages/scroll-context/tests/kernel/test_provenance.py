"""Each variable is traced to the events that its own assignments read, for display."""

import pytest

from scroll_context.kernel.cell_source import assigned_from
from scroll_context.kernel.kernel import Kernel
from scroll_context.kernel.results import CapabilityResult, Variable
from scroll_context.kernel.variables import Namespace


def rows(*seqs: int) -> CapabilityResult:
    return CapabilityResult(list(seqs), seqs)


def seqs(kernel: Kernel) -> dict[str, tuple[int, ...]]:
    return {variable.name: variable.seqs for variable in kernel.variables()}


def test_a_variable_has_the_events_of_its_own_assignment_only(make_kernel) -> None:
    kernel = make_kernel({"rows": rows})
    kernel.execute(
        "hotels = rows(1, 2)\n"
        "flights = rows(\n    7,\n    8,\n)\n"
        "cheap = [f for f in flights if f < 8]\n"
        "both = {'h': hotels, 'f': cheap}\n"
        "limit = 100\n"
        "print(rows(50))"
    )
    assert seqs(kernel) == {
        "hotels": (1, 2),
        "flights": (7, 8),
        "cheap": (7, 8),
        "both": (1, 2, 7, 8),
        "limit": (),
    }


def test_functions_loops_and_changes_in_place_count_for_the_line_that_caused_them(
    make_kernel,
) -> None:
    kernel = make_kernel({"rows": rows})
    kernel.execute("def fetch(n):\n    return rows(n)")
    kernel.execute("a = fetch(3)\nb = fetch(4)\nhits = []\nby_day = {}\nn = 0")
    kernel.execute(
        "for item in a:\n"
        "    hits.append(item)\n"
        "    n += 1\n"
        "by_day['mon'] = b\n"
        "size = len('nothing of it')"
    )
    found = seqs(kernel)
    assert found["a"] == (3,) and found["b"] == (4,)
    assert found["hits"] == (3,) and found["n"] == (3,)
    assert found["by_day"] == (4,) and found["size"] == ()


def test_a_name_that_is_bound_again_loses_its_old_events(make_kernel) -> None:
    kernel = make_kernel({"rows": rows})
    kernel.execute("a = rows(3)")
    kernel.execute("b = a\na = rows(9)")
    assert seqs(kernel) == {"a": (9,), "b": (3,)}


def test_assignments_that_cannot_be_told_apart_have_the_events_of_their_cell(make_kernel) -> None:
    kernel = make_kernel({"rows": rows})
    kernel.execute("globals()['x'] = rows(3)\ny = rows(4)")
    found = seqs(kernel)
    assert found["x"] == (3, 4), "no assignment names it, so nothing is left out"
    assert found["y"] == (4,)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("with f() as (p, q): pass", {"p": {1}, "q": {1}}),
        ("if (m := f()): pass", {"m": {1}}),
        ("try:\n    t = f()\nexcept E:\n    t = 0", {"t": set()}),
        ("x, *y = f()", {"x": {1}, "y": {1}}),
        ("old.field = f()", {"old": {1, 5}}),
        ("old[0][1] += f()", {"old": {1, 5}}),
        ("new = [old for old in ()]", {"new": set()}),
        ("import json", {}),
    ],
)
def test_forms_of_binding(source: str, names: dict[str, set[int]]) -> None:
    lines = {
        number: frozenset({1}) for number, line in enumerate(source.split("\n"), 1) if "f()" in line
    }
    found = assigned_from(source, lines, lambda name: frozenset({5} if name == "old" else ()))
    assert {name: set(behind) for name, behind in found.items()} == names


def test_the_list_of_variables_leaves_out_what_tells_nothing(make_kernel) -> None:
    kernel = make_kernel({"rows": rows})
    kernel.execute(
        "total = 0\nnothing = None\nempty = []\nblank = ''\n_tmp = 4\n"
        "for n, row in enumerate([[1, 2]]):\n    total += n\nkeep = rows(*range(1, 900))"
    )
    assert kernel.variable_list().splitlines()[-2:] == ["keep: list 899 of int", "total: int = 0"]
    assert "seq" not in kernel.variable_list()


def test_a_forged_line_number_cannot_hide_events() -> None:
    names = Namespace()
    names.record_cell(1, ["a"], (), (), (3,), "a = rows()", 10, {999: frozenset({3})})
    names.record_description([Variable(name="a", type="list")])
    assert names.made_by(["a"]) == (10,), "erasure rests on the cells, not on lines"
