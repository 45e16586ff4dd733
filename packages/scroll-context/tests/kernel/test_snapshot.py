"""Save and restore: what comes back, what does not and why, and that it is incremental."""

import contextlib
import os
import pickle
import select
import time

import msgspec
import pytest

from scroll_context.contents import SnapshotVariable
from scroll_context.errors import KernelDied
from scroll_context.kernel.kernel import Kernel, KernelOptions
from scroll_context.kernel.results import CapabilityResult, Manifest, MemoryBlobs


def restart(kernel: Kernel):
    """Lose the process, as a crash would."""
    result = kernel.execute("import os; os._exit(1)")
    assert result.ended == "killed"
    return result.restore


ROUND_TRIPS = {
    "plain": (
        "v = {'a': [1, 2.5, None, 'x', b'y'], 'b': {1, 2}, 'c': (1,)}",
        "v == {'a': [1, 2.5, None, 'x', b'y'], 'b': {1, 2}, 'c': (1,)}",
    ),
    "function": ("k = 3\ndef v(x, *, y=2): return x * k + y", "v(2) == 8"),
    "lambda and closure": ("def adder(n): return lambda x: x + n\nv = adder(5)", "v(1) == 6"),
    "recursion": ("def v(n): return 1 if n == 0 else n * v(n - 1)", "v(5) == 120"),
    "class": (
        "class V:\n    def __init__(self, n): self.n = n\n    def twice(self): return self.n * 2\nv = V(4)",
        "v.twice() == 8 and type(v) is V and isinstance(V(1), V)",
    ),
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: 'int' = 2\nv = [P(1), P(2)]",
        "v == [P(1), P(2)]",
    ),
    "enum": (
        "import enum\nclass Colour(enum.Enum):\n    RED = 1\nv = Colour.RED",
        "v is Colour.RED",
    ),
    "generator function": ("def v():\n    yield from range(3)", "list(v()) == [0, 1, 2]"),
    "datetime": (
        "import datetime\nv = datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc)",
        "v.isoformat() == '2024-01-02T00:00:00+00:00'",
    ),
    "deque and counter": (
        "import collections\nv = collections.deque([1], 3), collections.Counter('aab')",
        "v[0].maxlen == 3 and v[1]['a'] == 2",
    ),
    "regex": ("import re\nv = re.compile('a+')", "v.match('aa').end() == 2"),
    "partial": ("import functools\nv = functools.partial(int, base=2)", "v('101') == 5"),
    "numpy": (
        "import numpy as np\nv = np.arange(12).reshape(3, 4)",
        "v.shape == (3, 4) and v.sum() == 66 < np.inf",
    ),
    "pandas": (
        "import pandas as pd\nv = pd.DataFrame({'a': [1, 2], 'b': list('xy')})",
        "v.shape == (2, 2) and list(v.b) == ['x', 'y']",
    ),
    "alias of a module": ("import os.path as v", "v.join('a', 'b') == 'a/b'"),
    "cached function": (
        "import functools\n@functools.lru_cache(maxsize=7)\ndef v(x): return x and v(x - 1) + 1",
        "v(3) == 3 and v.cache_info().maxsize == 7",
    ),
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_values_come_back(kernel: Kernel, needs, name: str) -> None:
    bind, check = ROUND_TRIPS[name]
    needs(bind)
    assert kernel.execute(bind).ended == "ok"
    assert kernel.save().lost == ()
    report = restart(kernel)
    assert (report.lost, report.stale, "v" in report.restored) == ((), (), True)
    assert kernel.execute(f"print({check})").stdout == "True\n"


def test_restored_functions_see_the_live_namespace(kernel: Kernel) -> None:
    kernel.execute("total = 1\ndef read(): return total\ndef call(): return read() + 1")
    kernel.save()
    restart(kernel)
    assert kernel.execute("total = 10\nprint(read(), call())").stdout == "10 11\n"
    assert kernel.execute("def read(): return -1\nprint(call())").stdout == "0\n"


def test_classes_of_cells_stay_one_class_across_variables(kernel: Kernel) -> None:
    kernel.execute("class A: pass\na, b = A(), [A()]\ndef is_a(x): return isinstance(x, A)")
    kernel.save()
    restart(kernel)
    assert (
        kernel.execute("print(type(a) is A, type(b[0]) is A, is_a(a))").stdout == "True True True\n"
    )


def test_names_of_one_object_are_one_object_again(kernel: Kernel) -> None:
    kernel.execute("a = b = [1]\nc = [1]\nn = m = 5\nd = a")
    kernel.save()
    kernel.execute("e = a")
    kernel.save()
    restart(kernel)
    assert (
        kernel.execute("a.append(2)\nprint(a is b is d is e, b, c)").stdout == "True [1, 2] [1]\n"
    )
    kernel.execute("b = [9]")
    kernel.save()
    restart(kernel)
    assert kernel.execute("print(a is d, a is b, b)").stdout == "True False [9]\n"


UNPICKLABLE = {
    "generator": "v = (i for i in range(3))",
    "lock": "import threading\nv = threading.Lock()",
    "open file": "v = open('f', 'w')",
    "refuses": "class R:\n    def __reduce__(self): raise ValueError('not me')\nv = R()",
    "frame": "import sys\nv = sys._getframe()",
    "thread": "import threading\nv = threading.Thread(target=print)",
}


@pytest.mark.parametrize("name", UNPICKLABLE)
def test_what_cannot_be_saved_is_reported_with_the_reason(kernel: Kernel, name: str) -> None:
    kernel.execute(UNPICKLABLE[name] + "\nw = [1]")
    (lost,) = kernel.save().lost
    assert lost.name == "v"
    assert lost.reason
    report = restart(kernel)
    assert [
        (loss.name, loss.reason.startswith("it could not be saved: ")) for loss in report.lost
    ] == [("v", True)]
    assert kernel.execute("print(w)").stdout == "[1]\n"


def test_only_what_was_touched_is_sent_again(make_kernel) -> None:
    class Counting(MemoryBlobs):
        puts = 0

        def put(self, data: bytes, /) -> str:
            self.puts += 1
            return super().put(data)

    blobs = Counting()
    kernel = make_kernel(blobs=blobs)
    kernel.execute("\n".join(f"v{i} = ['{i}' * 5000]" for i in range(20)))
    kernel.save()
    assert blobs.puts == 20
    kernel.save()
    assert blobs.puts == 20
    kernel.execute("print(v1, v2)\nv3.append(1)\nv4 = ['new' * 5000]\nv5 = v5")
    report = kernel.save()
    assert (blobs.puts, report.mutated) == (22, ("v3",))
    assert kernel.save(full=True).mutated == ()
    assert blobs.puts == 22


MUTATIONS = {
    "by a method": "data.append(1)",
    "by a function": "add(1)",
    "by a function that calls a function": "outer(1)",
    "by a method of a class": "Adder().add(1)",
    "by an instance": "adder.add(1)",
    "through another name": "alias.append(1)",
    "through an element": "element.append(1)",
    "through a container": "holder['data'].append(1)",
}


@pytest.mark.parametrize("how", MUTATIONS)
def test_changes_in_place_are_noticed(kernel: Kernel, how: str) -> None:
    kernel.execute("data = [0, [5]]")
    kernel.execute("def add(x): data.append(x)\ndef outer(x): (lambda: add(x))()")
    kernel.execute("class Adder:\n    def add(self, x): add(x)\nadder = Adder()")
    kernel.execute("alias = data")
    kernel.execute("element = data[1]")
    kernel.execute("holder = {'data': data}")
    kernel.save()
    kernel.execute(MUTATIONS[how])
    assert "data" in kernel.save().mutated
    restart(kernel)
    expected = "[0, [5, 1]]" if how == "through an element" else "[0, [5], 1]"
    assert kernel.execute("print(data)").stdout == expected + "\n"


ALIASES = {
    "bound by one cell": ["rows = [{}]\nrow = rows[0]\ncell = row"],
    "bound by one cell, in a loop": ["rows = [{}]\nfor row in rows: cell = row"],
    "bound one after the other": ["rows = [[{}]]", "row = rows[0]", "cell = row[0]"],
    "put there later": ["rows = [{}]", "cell = {}\nrow = cell", "rows[0] = cell"],
    "put there by a function": [
        "rows = [{}]\ndef put(): rows[0] = cell",
        "cell = {}\nrow = cell",
        "put()",
    ],
    "made by a function": [
        "rows = [{}]\ndef first(): return rows[0]",
        "row = first()",
        "cell = row",
    ],
    "bound again from its old value": ["rows = [{}]", "row = cell = rows[0]", "rows = rows + [{}]"],
    "by way of a name that was bound again": [
        "all = [{}]",
        "cell = all[0]",
        "rows = all + []",
        "all = 0\nrow = cell",
    ],
    "by way of a name that was deleted": [
        "all = [{}]",
        "cell = all[0]",
        "rows = all + []",
        "del all\nrow = cell",
    ],
    "almost bound again": [
        "rows = [{}]",
        "row = cell = rows[0]",
        "try: undefined; rows = []\nexcept NameError: pass",
    ],
    "bound again": [
        "rows = row = 1",
        "rows = [{}]",
        "rows = rows + [{}]\nrow = rows[0]",
        "cell = row",
    ],
}


@pytest.mark.parametrize("how", ALIASES)
def test_a_change_through_one_name_is_saved_for_every_variable_that_holds_the_object(
    kernel: Kernel, how: str
) -> None:
    for source in ALIASES[how]:
        assert kernel.execute(source).ended == "ok"
        kernel.save()
    kernel.execute("cell['x'] = 1")
    kernel.save()
    shown = kernel.execute("print(rows, row, cell)").stdout
    assert "x" in shown.split("}")[0]
    restart(kernel)
    assert kernel.execute("print(rows, row, cell)").stdout == shown


def test_saving_after_a_cell_that_bound_many_names_stays_fast(kernel: Kernel) -> None:
    kernel.execute("for number in range(10_000): globals()[f'v{number}'] = [number]")
    kernel.save()
    kernel.execute("v7.append(1)\nholder = [v8]")
    begun = time.monotonic()
    assert kernel.save().mutated == ("v7",)
    assert time.monotonic() - begun < 30


def test_a_manifest_can_be_stored_and_restored_into_another_kernel(make_kernel) -> None:
    blobs = MemoryBlobs()
    rows = {"rows": lambda: CapabilityResult([1, 2], (7, 8))}
    first = make_kernel(rows, blobs=blobs)
    first.execute("a = rows()")
    first.execute("b = ['big'] * 5000\nimport json")
    stored = msgspec.json.encode(first.save().manifest)
    second = make_kernel(rows, blobs=blobs, start=False)
    second.start()
    report = second.restore(msgspec.json.decode(stored, type=Manifest))
    assert set(report.restored) == {"a", "b", "json"}
    assert second.execute("print(a, len(b), json.dumps(1))").stdout == "[1, 2] 5000 1\n"
    assert second.variable_list().splitlines()[-1] == "a: list 2 of int"
    assert {one.name: one.seqs for one in second.variables()}["a"] == (7, 8)
    assert second.execute("").cell == 4


def test_a_restore_replaces_what_was_there(kernel: Kernel) -> None:
    kernel.execute("old = 1")
    manifest = kernel.save().manifest
    kernel.execute("new = 2")
    kernel.restore(manifest)
    assert kernel.execute("print(old, 'new' in globals())").stdout == "1 False\n"


def test_missing_and_damaged_blobs_cost_their_variable_only(kernel: Kernel) -> None:
    kernel.execute("good = 1\nbad = 2\ngone = 3")
    manifest = kernel.save().manifest
    damaged = {"bad": {"inline": b"\x80\x05garbage"}, "gone": {"inline": b"", "digest": "0" * 64}}
    changed = msgspec.structs.replace(
        manifest,
        variables=tuple(
            msgspec.structs.replace(v, **damaged.get(v.name, {})) for v in manifest.variables
        ),
    )
    report = kernel.restore(changed)
    assert report.restored == ("good",)
    assert {loss.name for loss in report.lost} == {"bad", "gone"}
    assert any("its saved bytes cannot be read" in loss.reason for loss in report.lost)


class Tampered:
    """A pickle that calls a function of its choice."""

    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


def test_a_tampered_pickle_runs_in_the_jail_and_gains_nothing(make_kernel, tmp_path, tier) -> None:
    if tier == "none":
        pytest.skip("tier none has no jail to hold it")
    proof = tmp_path / "proof"
    tricks = {
        "write": Tampered(eval, f"open({str(proof)!r}, 'w').write('owned')"),
        "run": Tampered(os.system, f"touch {proof}"),
        "read": Tampered(eval, "open('/etc/passwd').read()"),
        "leave": Tampered(os._exit, 0),
    }
    variables = tuple(
        SnapshotVariable(name=name, group=i, inline=pickle.dumps(trick))
        for i, (name, trick) in enumerate(tricks.items())
    )
    good = SnapshotVariable(name="good", group=99, inline=pickle.dumps([1]))
    kernel = make_kernel()
    report = kernel.restore(Manifest(variables=(*variables, good)))
    assert not proof.exists()
    lost = {loss.name: loss.reason for loss in report.lost}
    assert lost["leave"] == "the kernel process ended while it was being restored"
    assert lost["write"] and lost["read"]
    assert kernel.execute("print(good)").stdout == "[1]\n"
    assert "root:" not in kernel.execute("print(globals().get('read'))").stdout


def test_the_host_never_unpickles(make_kernel, monkeypatch) -> None:
    import _pickle

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("unpickled in the host")

    for module in (pickle, _pickle):
        monkeypatch.setattr(module, "loads", refuse)
        monkeypatch.setattr(module, "Unpickler", refuse)
    kernel = make_kernel()
    kernel.execute("a = [1]")
    kernel.save()
    assert restart(kernel).restored == ("a",)


def test_pickling_without_end_is_interrupted_and_costs_its_variable(
    kernel: Kernel, monkeypatch
) -> None:
    monkeypatch.setattr("scroll_context.kernel.kernel._SAVE_SECONDS", 0.3)
    kernel.execute(
        "class Slow:\n    def __reduce__(self):\n        while True: pass\nkept = [1]\nslow = Slow()"
    )
    report = kernel.save()
    assert "slow" in {loss.name for loss in report.lost}
    assert kernel.execute("print(kept)").stdout == "[1]\n"


def test_a_save_that_kills_the_process_keeps_the_last_one(kernel: Kernel) -> None:
    kernel.execute("kept = [1]")
    kernel.save()
    kernel.execute("import os\nclass Bomb:\n    def __reduce__(self): os._exit(1)\nbomb = Bomb()")
    with pytest.raises(KernelDied):
        kernel.save()
    result = kernel.execute("print(kept)")
    assert result.stdout == "[1]\n"
    assert {loss.name for loss in result.restore.lost} >= {"bomb"}


def test_a_blob_store_that_fails_costs_the_save_and_nothing_else(make_kernel) -> None:
    class Full(MemoryBlobs):
        full = False

        def put(self, data: bytes, /) -> str:
            if self.full:
                raise OSError("no room")
            return super().put(data)

    blobs = Full()
    kernel = make_kernel(blobs=blobs)
    kernel.execute("a, b = ['old'] * 5000, ['old'] * 5000")
    kernel.save()
    kernel.execute("b = ['new'] * 5000\nc = ['new'] * 5001")
    blobs.full = True
    with pytest.raises(OSError, match="no room"):
        kernel.save()
    assert kernel.execute("print(b[0])").stdout == "new\n"
    blobs.full = False
    kernel.save()
    restart(kernel)
    assert kernel.execute("print(a[0], b[0], len(c))").stdout == "old new 5001\n"


@pytest.mark.parametrize("use", [Kernel.start, Kernel.save, Kernel.variable_list, id])
def test_a_process_lost_between_cells_is_never_replaced_by_an_empty_one(
    kernel: Kernel, use
) -> None:
    kernel.execute("kept = [1]")
    kernel.save()
    pid = kernel.start().pid
    ended = os.pidfd_open(pid)
    os.kill(pid, 9)
    select.select([ended], [], [])
    os.close(ended)
    with contextlib.suppress(KernelDied):
        use(kernel)
    results = [kernel.execute("print(kept)") for _ in range(2)]
    assert results[1].stdout == "[1]\n"
    assert [r.restore.restored for r in results if r.restore is not None] == [("kept",)], (
        "told once"
    )
    assert kernel.save().manifest.variables


def test_a_pickle_above_the_limit_is_reported(make_kernel) -> None:
    kernel = make_kernel(options=KernelOptions(blob_bytes=10_000))
    kernel.execute("small, large = b'x' * 5000, b'x' * 20_000")
    (lost,) = kernel.save().lost
    assert (lost.name, "larger than the limit" in lost.reason) == ("large", True)


def test_saving_three_of_a_hundred_variables_looks_at_no_others(kernel: Kernel) -> None:
    kernel.execute(
        "import time\nfor i in range(101):\n    globals()[f'v{i}'] = [bytes([i]) * 1000 for _ in range(430)]"
    )

    def cost(source: str) -> float:
        """Seconds of processor time, on both sides, for saving what a cell has changed."""
        kernel.execute(f"{source}; used = time.process_time()")
        begun = time.process_time()
        kernel.save()
        return (
            time.process_time()
            - begun
            + float(kernel.execute("print(time.process_time() - used)").stdout)
        )

    everything = cost("pass")
    few = [cost(f"v{i}.append(1); v{i + 10}.append(1); v{i + 20} = [2] * 10_000") for i in range(5)]
    assert min(few) < 0.15 * everything  # looking at all of them again would be 0.3
