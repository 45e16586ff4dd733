"""The host does not parse long sources: parsing holds the interpreter lock of every thread."""

import time

import pytest

from scroll_context.kernel.cell_source import PARSED_CHARS
from scroll_context.kernel.variables import Namespace
from scroll_context.session.cells import recalls

LONG_FSTRING = "f'" + "{apples}" * 20_000 + "'"


def namespace() -> Namespace:
    names = Namespace()
    for number, name in enumerate(("apples", "pears"), 1):
        names.record_cell(number, (name,), (), (), (), f"{name} = 1", 40 + number)
    return names


def test_the_host_spends_little_time_on_a_long_source() -> None:
    names = namespace()
    begun = time.process_time()
    recalls(LONG_FSTRING)
    names.cells_behind(LONG_FSTRING, lambda _: "")
    names.record_cell(3, ("f",), (), (), (), f"def f(): return {LONG_FSTRING}", 43)
    assert time.process_time() - begun < 0.2


def test_a_long_source_may_read_every_variable() -> None:
    padding = "x = 1\n" * PARSED_CHARS
    assert namespace().cells_behind(padding + "print(apples)", lambda _: "") == (41, 42)
    assert namespace().cells_behind(padding, lambda _: "") == ()


@pytest.mark.parametrize(
    ("last_line", "is_echo"),
    [("ms.search('x')", True), ("\uff4d\uff53.search('x')", True), ("items = 1", False)],
)
def test_a_long_source_is_an_echo_if_it_names_ms(last_line: str, is_echo: bool) -> None:
    assert recalls("x = 1\n" * PARSED_CHARS + last_line) is is_echo
