"""Which descriptors of the host a worker keeps: those that it was given, and no other."""

import subprocess
import sys

import pytest

CLOSE = """
import os, sys
from scroll_context.jail.linux import close_inherited

source = os.open(os.devnull, os.O_RDONLY)
for number in (9, 10, 11, 12, 40, 41, 900):
    os.dup2(source, number)
keep = {int(number) for number in sys.argv[1:]}
close_inherited(keep | {1})
is_open = []
for number in range(3, 1_000):
    try:
        os.fstat(number)
        is_open.append(number)
    except OSError:
        pass
print(*is_open)
"""


@pytest.mark.parametrize("keep", [(), (10,), (9, 10), (10, 12), (41,), (900,), (9, 11, 900)])
def test_no_descriptor_is_inherited_but_those_that_are_kept(keep: tuple[int, ...]) -> None:
    command = [sys.executable, "-c", CLOSE, *map(str, keep)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert [int(number) for number in process.stdout.split()] == list(keep)
