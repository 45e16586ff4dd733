"""Which names a cell reads decides where its variables come from."""

import importlib
import inspect
import symtable

import pytest

from scroll_context.kernel.cell import loaded_and_stored, names_used


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
        ("try:\n    r = f()\nexcept OSError:\n    x\nprint(r)", {"f", "OSError", "x", "r", "print"}, {"r"}),
        ("with f():\n    r = x\nprint(r)", {"f", "x", "r", "print"}, {"r"}),
        ("del r\nr = 1\nprint(r)", {"r", "print"}, {"r"}),
        ("s = [r for _ in x]\nr = 1", {"r", "x"}, {"r", "s"}),
        ("r = 1\nf = lambda: r\nprint(r, f)", {"print"}, {"r", "f"}),
        ("if x: s = 1\nr = 2\nprint(r, s)", {"x", "s", "print"}, {"r", "s"}),
        ("x and (r := 1)\nprint(r)", {"x", "r", "print"}, {"r"}),
    ],
)
def test_a_name_bound_first_is_not_read(source: str, read: set[str], bound: set[str]) -> None:
    used = names_used(
        source, "<cell>", compile(source, "<cell>", "exec"), existing="fetch print r a b c x i s f".split()
    )
    assert (set(used.read) - {"__annotations__"}, set(used.bound)) == (read, bound)


def test_a_name_that_has_no_value_before_the_cell_is_not_read_by_the_cell_that_binds_it() -> None:
    source = "for row in rows:\n    total += row"
    used = names_used(source, "<cell>", compile(source, "<cell>", "exec"), existing=["rows", "total"])
    assert set(used.read) == {"rows", "total"}


@pytest.mark.parametrize("module", ["asyncio.base_events", "dataclasses", "socket", "subprocess", "threading"])
def test_the_instructions_tell_what_the_symbol_tables_tell(module: str) -> None:
    source = inspect.getsource(importlib.import_module(module))
    loaded, stored = loaded_and_stored(compile(source, module, "exec", dont_inherit=True))
    read, bound, of_classes = _by_symbol_tables(source)
    assert not (read - loaded), "read, and not seen in the instructions"
    assert not (loaded - read - bound - of_classes), "not read, and yet seen in the instructions"
    assert stored - {"__doc__"} == bound


def test_names_with_a_large_index_are_told_too() -> None:
    source = "\n".join(f"b{number} = a{number}" for number in range(70_000))
    loaded, stored = loaded_and_stored(compile(source, "<cell>", "exec"))
    assert loaded == {f"a{number}" for number in range(70_000)}
    assert stored == {f"b{number}" for number in range(70_000)}


def _by_symbol_tables(source: str) -> tuple[set[str], set[str], set[str]]:
    """Names read and bound in the module's namespace, and those that belong to a class."""
    read: set[str] = set()
    bound: set[str] = set()
    of_classes = {"__name__", "__annotations__", "__classdict__", "__conditional_annotations__"}
    tables = [symtable.symtable(source, "<module>", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table.get_type() == "class" and not symbol.is_global():
                of_classes.add(symbol.get_name())
            elif table.get_type() == "module" or symbol.is_global():
                read |= {symbol.get_name()} if symbol.is_referenced() else set()
                bound |= {symbol.get_name()} if symbol.is_assigned() or symbol.is_imported() else set()
    return read, bound, of_classes
