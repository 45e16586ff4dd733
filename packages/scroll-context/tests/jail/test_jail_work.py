"""What must go on working inside the jail, in each tier."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import jailed
import pytest

TIERS = ["full", "kernel-only"]

_WORKS = {
    "threads": """
done = []
threads = [threading.Thread(target=done.append, args=(n,)) for n in range(50)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(done))
""",
    "a pool of threads": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(16) as pool:
    print(sum(pool.map(lambda n: n, range(1000))))
""",
    "asyncio": """
import asyncio
async def twice(n):
    await asyncio.sleep(0.01)
    return 2 * n
async def main():
    return sum(await asyncio.gather(*map(twice, range(10)))) + await asyncio.to_thread(int, '1')
print(asyncio.run(main()))
""",
    "temporary files": """
import tempfile, shutil, pathlib
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, 'a').write_text('text')
    os.mkdir(folder + '/sub')
    os.rename(folder + '/a', folder + '/sub/b')
    shutil.copyfile(folder + '/sub/b', folder + '/c')
    print(pathlib.Path(folder, 'c').read_text(), os.path.realpath(folder).startswith(os.path.realpath(scratch)))
""",
    "a database": """
import sqlite3
base = sqlite3.connect('base.db')
base.execute('create table t (a)')
base.executemany('insert into t values (?)', [(1,), (2,)])
base.commit()
print(base.execute('select sum(a) from t').fetchone()[0])
""",
    "a mapped file": """
import mmap
with open('mapped', 'w+b') as file:
    file.truncate(8192)
    with mmap.mmap(file.fileno(), 8192) as memory:
        memory[5000:5004] = b'text'
    file.seek(5000)
    print(file.read(4))
""",
    "time zones": """
import datetime, zoneinfo
print(datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Rome')).utcoffset())
""",
    "the null device": """
import contextlib
with open(os.devnull, 'w') as null, contextlib.redirect_stdout(null):
    print('nothing')
print(open(os.devnull).read() == '')
""",
    "random numbers": "import secrets, uuid; print(len(secrets.token_bytes(9)), uuid.uuid4().version)",
    "late imports": "import decimal, html.parser, email.message, xml.dom, lzma, csv; print(decimal.Decimal(1))",
    "callbacks from C": """
import ctypes
compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
numbers = (ctypes.c_int * 3)(3, 1, 2)
ctypes.CDLL(None).qsort(numbers, 3, ctypes.sizeof(ctypes.c_int), compare(lambda a, b: a[0] - b[0]))
print(list(numbers))
""",
    "a clean environment": "print('SECRET' in os.environ, os.getcwd() == scratch, os.environ['HOME'] == scratch)",
}
_EXPECTED = {
    "threads": "50",
    "a pool of threads": "499500",
    "asyncio": "91",
    "temporary files": "text True",
    "a database": "3",
    "a mapped file": "b'text'",
    "time zones": "2:00:00",
    "the null device": "True",
    "random numbers": "9 4",
    "late imports": "1",
    "callbacks from C": "[1, 2, 3]",
    "a clean environment": "False True True",
}


@pytest.mark.parametrize("tier", TIERS)
def test_ordinary_python_works(tier: str, tmp_path: Path) -> None:
    jailed.need(tier)
    ended = "print('--')\n"
    source = "enter_jail()\n" + "".join(_WORKS[name] + "\n" + ended for name in _EXPECTED)
    result = jailed.run(source, tmp_path, tier, env={"SECRET": "hunter2"})
    answers = dict(
        zip(_EXPECTED, [part.strip() for part in result.stdout.split("--\n")], strict=False)
    )
    assert answers == _EXPECTED, result.stderr


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("package", "source", "expected"),
    [
        (
            "numpy",
            "import numpy as np; a = np.arange(250_000.0).reshape(500, 500); print(int((a @ a).trace() > 0), a.mean())",
            "1 124999.5",
        ),
        (
            "pandas",
            """
import pandas as pd
pd.DataFrame({'k': list('aab'), 'v': [1, 2, 3]}).to_csv('f.csv')
print(pd.read_csv('f.csv').groupby('k').v.sum().to_dict())
""",
            "{'a': 3, 'b': 3}",
        ),
    ],
)
def test_installed_packages_work_when_declared(
    tier: str, package: str, source: str, expected: str, tmp_path: Path
) -> None:
    jailed.need(tier)
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    result = jailed.run(f"enter_jail(*site_packages())\n{source}", tmp_path, tier)
    assert result.stdout.strip() == expected, result.stderr


@pytest.mark.parametrize("tier", TIERS)
def test_installed_packages_are_absent_unless_declared(tier: str, tmp_path: Path) -> None:
    jailed.need(tier)
    if importlib.util.find_spec("numpy") is None:
        pytest.skip("numpy is not installed")
    source = "enter_jail()\ntry:\n    import numpy\nexcept (ImportError, PermissionError):\n    print('absent')"
    assert jailed.run(source, tmp_path, tier).stdout.strip() == "absent"
