"""Which names a cell reads decides where its variables come from."""

import pytest

from scroll_context.kernel.cell import names_used


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
    ],
)
def test_a_name_bound_first_is_not_read(source: str, read: set[str], bound: set[str]) -> None:
    used = names_used(source, "<cell>", compile(source, "<cell>", "exec"))
    assert (set(used.read), set(used.bound)) == (read, bound)
