"""Which names a cell reads decides where its variables come from."""

import pytest

from scroll_context.kernel.names import names_read_later, names_used
from scroll_context.kernel.results import Variable
from scroll_context.kernel.variables import Namespace


@pytest.mark.parametrize(
    ("source", "read", "bound"),
    [
        ("r = fetch()\nprint(r[:9])", {"fetch", "print"}, {"r"}),
        ("r = r + 1", {"r"}, {"r"}),
        ("r += 1", {"r"}, {"r"}),
        ("a, (b, *c) = f()\ng(a, b)", {"f", "g"}, {"a", "b", "c"}),
        ("if x:\n    r = 1\nprint(r)", {"x", "r", "print"}, {"r"}),
        ("for i in x:\n    s = i\nprint(s)", {"x", "i", "s", "print"}, {"i", "s"}),
        ("def f():\n    return r\nr = 1", {"r"}, {"f", "r"}),
        ("x[0] = 1\nx = 2", {"x"}, {"x"}),
        ("n: int = 5\nprint(n)", {"int", "print"}, {"n"}),
        ("x.a = 1", {"x"}, set()),
        ("r = 1\nprint(r if r else x)", {"x", "print"}, {"r"}),
        (
            "try:\n    r = f()\nexcept OSError:\n    x\nprint(r)",
            {"f", "OSError", "x", "r", "print"},
            {"r"},
        ),
        ("with f():\n    r = x\nprint(r)", {"f", "x", "r", "print"}, {"r"}),
        ("del r\nr = 1\nprint(r)", {"r", "print"}, {"r"}),
        ("s = [r for _ in x]\nr = 1", {"r", "x"}, {"r", "s"}),
        ("r = 1\nf = lambda: r\nprint(r, f)", {"print"}, {"r", "f"}),
        ("if x: s = 1\nr = 2\nprint(r, s)", {"x", "s", "print"}, {"r", "s"}),
        ("x and (r := 1)\nprint(r)", {"x", "r", "print"}, {"r"}),
        ("def f(x):\n    s = x.r\n    return s", set(), {"f"}),
        ("def f():\n    global r\n    r = x", {"x"}, {"f", "r"}),
        ("class A:\n    s = x\n    def g(self): return self.r, a", {"x", "a"}, {"A"}),
        ("import os.path\nfrom re import sub as s", set(), {"os", "s"}),
        ("print([r for r in x])", {"print", "x"}, set()),
        ("s = {r: i for r, i in x}\nr = i = 1", {"x"}, {"r", "i", "s"}),
        ("def f():\n    global r\n    r = 1\n    return {r for _ in x}", {"x", "r"}, {"f", "r"}),
        ("r = await f(x)", {"f", "x"}, {"r"}),
        ("i = 1\n@r\ndef f():\n    pass\nr = 1", {"r"}, {"i", "f", "r"}),
        ("i = 1; print(r); r = 2", {"print", "r"}, {"i", "r"}),
        ("i = 1\r\nprint(r)\r\nr = 2", {"print", "r"}, {"i", "r"}),
        ('s = """\n"""; print(r)\nr = 2', {"print", "r"}, {"s", "r"}),
        ("print(\uff52)\nr = 2", {"print", "r"}, {"r"}),  # another way to write r
    ],
)
def test_a_name_bound_first_is_not_read(source: str, read: set[str], bound: set[str]) -> None:
    used = names_used(source, "<cell>", existing="fetch print r a b c x i s f".split())
    assert (set(used.read) - {"__annotations__"}, set(used.bound)) == (read, bound)


def test_a_name_that_has_no_value_before_the_cell_is_not_read_by_the_cell_that_binds_it() -> None:
    source = "for row in rows:\n    total += row"
    used = names_used(source, "<cell>", existing=["rows", "total"])
    assert set(used.read) == {"rows", "total"}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f(a):\n    b = a + r\n    return print(b)", {"r", "print"}),
        ("f = lambda: [r for _ in x]", {"r", "x"}),
        ("class A:\n    s = x\n    def g(self): return r", {"x", "r"}),
        ("s = r + x", set()),
    ],
)
def test_functions_read_their_names_whenever_they_are_run(source: str, names: set[str]) -> None:
    assert names_read_later(source, "<cell>") == names


TYPES = {"rows": "list", "f": "function", "total": "int", "other": "int"}


def test_the_cells_behind_a_source_are_those_that_made_what_it_reads() -> None:
    sources = {
        10: "rows = fetch()",
        20: "def f():\n    return total",
        30: "total = len(rows)",
        40: "other = 1",
        50: "rows.append(other)",
    }
    names = Namespace()
    names.record_cell(1, ["rows"], [], [], (), sources[10], 10)
    names.record_cell(2, ["f"], [], [], (), sources[20], 20)
    names.record_cell(3, ["total"], [], ["rows"], (), sources[30], 30)
    names.record_cell(4, ["other"], [], [], (), sources[40], 40)
    names.record_description([Variable(name=name, type=kind) for name, kind in TYPES.items()])
    names.record_save(["rows", "f", "total", "other"], [], 4)

    def behind(source: str) -> tuple[int, ...]:
        return names.cells_behind(source, lambda event: sources[event])

    assert (
        behind("print(rows)") == (10,)
        and behind("print(other)") == (40,)
        and behind("print(2)") == ()
    )
    assert behind("rows = 1\nprint(rows)") == ()  # its old value is not seen
    assert behind("print(f())") == (20, 30)  # the function reads `total`, which was bound after it
    assert behind("print(eval('to' + 'tal'))") == (10, 20, 30, 40)
    assert behind("not python at all") == ()
    names.record_cell(5, [], [], ["rows"], (), sources[50], 50)
    assert behind("print(rows)") == (
        10,
        50,
    )  # it may have been changed, and that is not known before it is saved
    names.record_save(["rows", "f", "total", "other"], ["rows"], 5)
    assert behind("print(rows)") == (50,)  # whose own event names the cell before
