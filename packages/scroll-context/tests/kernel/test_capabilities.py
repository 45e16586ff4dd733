"""Calls from cells to the host: which values cross, many at once, deadlines, preludes and names."""

import datetime as dt
import threading
import time

import pytest

from capabilities import functions
from scroll_context.errors import KernelUnavailable
from scroll_context.kernel.kernel import KernelOptions
from scroll_context.kernel.protocol import Prelude
from scroll_context.kernel.results import CapabilityCall, CapabilityResult


def echo(value: object) -> object:
    return value


def test_names_are_functions_and_modules_that_forward(make_kernel) -> None:
    seen: list[CapabilityCall] = []
    offered = functions("ms.search", "ms.expand", "weather")
    kernel = make_kernel(lambda call: seen.append(call) or len(seen), preludes=offered)
    result = kernel.execute(
        "import ms\nfrom ms import expand\nprint(ms.search('a b', k=3), expand(1, 2), weather('Rome', capability='x'))"
    )
    assert result.stdout == "1 2 3\n"
    assert [(c.capability, c.args, c.kwargs, c.cell) for c in seen] == [
        ("ms.search", ("a b",), {"k": 3}, 1),
        ("ms.expand", (1, 2), {}, 1),
        ("weather", ("Rome",), {"capability": "x"}, 1),
    ]
    assert result.bound == ("expand",)


VALUES = [
    "None",
    "[True, False, 1, -1, 2**63, -2**63, 1.5, float('inf')]",
    "2**200",
    "'text é 漢字 🎉 \\x00'",
    "b'\\x00\\xff'",
    "{'a': [1, {'b': []}], 3: 'int key'}",
    "datetime.datetime(2024, 2, 29, 12, 30, 1, 5)",
    "datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))",
    "datetime.date(2024, 2, 29)",
    "[[datetime.date(2024, 1, 1)], {'d': datetime.date(2024, 1, 2)}]",
]


@pytest.mark.parametrize("value", VALUES)
def test_plain_values_cross_both_ways_unchanged(make_kernel, value: str) -> None:
    seen = []
    kernel = make_kernel({"echo": lambda v: seen.append(v) or v})
    source = f"import datetime\nv = {value}\nr = echo(v)\nprint(r == v and type(r) is type(v))"
    assert kernel.execute(source).stdout == "True\n"
    expected = eval(value, {"datetime": dt})
    assert seen == [expected]


REFUSED = {
    "{1, 2}": "TypeError: echo: a value of type set cannot be sent: pass list(...) or sorted(...)",
    "object()": "a value of type object cannot be sent",
    "print": "builtin_function_or_method cannot be sent",
    "{(1, 2): 3}": "a dict key of type tuple cannot be sent",
    "__import__('numpy').zeros(3)": "pass .tolist() or .item()",
    "__import__('pandas').DataFrame()": "pass .to_dict('records')",
    "'\\ud800'": "lone surrogate",
    "deep": "nested too deeply",
    "list(range(200_000))": "more than 100,000 values",
    "b'x' * (33 << 20)": "send it in parts",
}


@pytest.mark.parametrize("value", REFUSED)
def test_other_values_are_refused_in_the_cell_with_advice(make_kernel, needs, value: str) -> None:
    needs(value)
    reached: list[object] = []
    kernel = make_kernel({"echo": lambda value: reached.append(value) or value})
    kernel.execute("deep = []\ndeep.append(deep)")
    result = kernel.execute(f"echo({value})")
    assert REFUSED[value] in result.error.message
    assert reached == []
    assert kernel.execute("print(echo(1))").stdout == "1\n"


def test_subclasses_travel_as_the_plain_type(make_kernel) -> None:
    seen = []
    kernel = make_kernel({"echo": lambda v: seen.append(v)})
    kernel.execute(
        "import collections\nclass Rows(list): note = 'x'\nclass S(str): pass\n"
        "echo([Rows([1]), S('s'), collections.Counter('aa'), (1, 2), bytearray(b'b'), True])"
    )
    assert seen == [[[1], "s", {"a": 2}, [1, 2], b"b", True]]


@pytest.mark.parametrize(
    "result", [object(), {1, 2}, "\ud800", "x" * (33 << 20)], ids=["object", "set", "bad", "big"]
)
def test_a_result_that_cannot_cross_is_an_error_in_the_cell(make_kernel, result: object) -> None:
    kernel = make_kernel({"give": lambda: result})
    answer = kernel.execute("give()")
    assert answer.ended == "error"
    assert answer.error.type in ("TypeError", "ValueError")
    assert kernel.execute("print(1)").restore is None


@pytest.mark.parametrize("megabytes", [1, 10])
def test_large_texts_and_bytes_cross(make_kernel, megabytes: int) -> None:
    text, data = "äb" * (megabytes << 19), b"\x00\x01" * (megabytes << 19)
    kernel = make_kernel({"text": lambda: text, "data": lambda: data, "echo": echo})
    result = kernel.execute(
        "t, d = text(), data()\nprint(len(t), len(d), echo(d) == d, echo(t) == t)"
    )
    assert result.stdout == f"{len(text)} {len(data)} True True\n"


def test_thirty_threads_call_at_once(make_kernel) -> None:
    together = threading.Barrier(30)

    def meet(i: int) -> int:
        together.wait(timeout=50)  # none returns before all have arrived
        return i * i

    kernel = make_kernel({"meet": meet})
    result = kernel.execute(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(30) as pool:\n    print(list(pool.map(meet, range(30))))",
        timeout=60,
    )
    assert result.stdout == f"{[i * i for i in range(30)]}\n"


def test_calls_of_a_thread_between_cells_are_answered(make_kernel) -> None:
    kernel = make_kernel({"echo": echo})
    kernel.execute(
        "import threading\ngot = []\ngo = threading.Event()\n"
        "def work():\n    go.wait()\n    for i in range(20): got.append(echo(i))\n"
        "t = threading.Thread(target=work); t.start()"
    )
    kernel.execute("go.set()")
    for _ in range(10):
        kernel.execute("echo(0)")
    assert kernel.execute("t.join(); print(got == list(range(20)))").stdout == "True\n"


def test_what_the_host_raises_is_raised_in_the_cell(make_kernel) -> None:
    class QueryRefused(Exception):
        pass

    def fail(kind: str) -> None:
        raise {
            "value": ValueError("bad value"),
            "own": QueryRefused("not that table"),
            "exit": SystemExit(3),
        }[kind]

    kernel = make_kernel({"fail": fail})
    assert (
        kernel.execute("try:\n    fail('value')\nexcept ValueError as e:\n    print(e)").stdout
        == "bad value\n"
    )
    own = kernel.execute("fail('own')")
    assert own.error.message.endswith("CapabilityError: QueryRefused: not that table")
    assert "scroll_context" not in own.error.traceback
    assert kernel.execute("fail('exit')").ended == "error"
    assert (
        "the host offers no capability 'other'"
        in make_kernel({}, preludes=functions("other")).execute("other()").error.message
    )


def test_a_call_has_a_deadline_of_its_own(make_kernel) -> None:
    release = threading.Event()
    kernel = make_kernel(
        {"slow": lambda: release.wait(60), "quick": lambda: 1},
        options=KernelOptions(call_seconds=1.5),
    )
    result = kernel.execute("try:\n    slow()\nexcept TimeoutError as e:\n    print(e, quick())")
    release.set()
    assert "no answer within 1.5 s" in result.stdout
    assert result.stdout.endswith(" 1\n")
    assert 1.5 <= result.duration < 30
    assert kernel.execute("print(quick())").stdout == "1\n", "the late answer confused nobody"


def test_more_calls_than_may_be_open_wait_for_their_turn(make_kernel) -> None:
    kernel = make_kernel({"echo": lambda v: time.sleep(0.001) or v})
    result = kernel.execute(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(50) as pool:\n    print(sum(pool.map(echo, range(500))))",
        timeout=60,
    )
    assert result.stdout == f"{sum(range(500))}\n"


def test_events_handed_to_a_cell_are_recorded(make_kernel) -> None:
    kernel = make_kernel({"rows": lambda *seqs: CapabilityResult([{"seq": s} for s in seqs], seqs)})
    assert kernel.execute("a = rows(5, 6)\nb = rows(9)").seqs == (5, 6, 9)
    assert kernel.execute("c = len(a)").seqs == ()


PRELUDE = """
class Rows(list):
    note = ""

class Surface:
    def search(self, query):
        rows = Rows(call("ms.search", query))
        rows.note = "capped"
        return rows

ms = Surface()
secret = 1
"""


def test_a_prelude_runs_in_the_jail_and_exports_names(make_kernel) -> None:
    kernel = make_kernel(
        {"ms.search": lambda q: [q, q]},
        preludes=(
            Prelude("memory", PRELUDE, ("ms", "Rows")),
            Prelude("helpers", "def twice(x): return 2 * x", ("helpers",)),
        ),
    )
    result = kernel.execute(
        "r = ms.search('q')\nprint(r, r.note, type(r) is Rows, helpers.twice(4))\nimport memory\nprint(memory.secret)"
    )
    assert result.stdout == "['q', 'q'] capped True 8\n1\n"
    assert kernel.variable_list().endswith("r: Rows 2 of str")
    assert "secret" not in kernel.variable_list()
    kernel.save()
    assert kernel.execute("import os; os._exit(1)").restore.restored == ("memory", "r")
    assert (
        kernel.execute("print(r, r.note, type(r) is Rows, ms.search(1))").stdout
        == "['q', 'q'] capped True [1, 1]\n"
    )


def test_a_prelude_that_fails_stops_the_start(make_kernel) -> None:
    with pytest.raises(KernelUnavailable, match=r"prelude broken failed(.|\n)*ZeroDivisionError"):
        make_kernel(preludes=(Prelude("broken", "1 / 0"),))


def test_names_of_the_host_come_back_at_the_next_cell(make_kernel) -> None:
    kernel = make_kernel({"ms.search": echo, "echo": echo})
    first = kernel.execute("ms = 3\ndel echo\nprint(ms)")
    assert (first.stdout, first.rebound) == ("3\n", ())
    second = kernel.execute("print(ms.search('x'), echo('y'))")
    assert (second.stdout, set(second.rebound)) == ("x y\n", {"ms", "echo"})
    assert kernel.execute("import ms").rebound == ()


def test_names_that_were_added_later_come_back_as_well(make_kernel) -> None:
    kernel = make_kernel({"echo": echo, "more": echo}, preludes=functions("echo"))
    kernel.replace_preludes(functions("echo", "more"), call_seconds=60.0)
    kernel.execute("more = 3")
    assert kernel.execute("print(more(4))").stdout == "4\n"


def test_a_saved_reference_to_a_host_function_works_after_a_restore(make_kernel) -> None:
    kernel = make_kernel({"ms.search": echo, "echo": echo})
    kernel.execute("f, g, h = ms.search, echo, [ms]")
    assert kernel.save().lost == ()
    kernel.execute("import os; os._exit(1)")
    assert kernel.execute("print(f(1), g(2), h[0].search(3))").stdout == "1 2 3\n"
