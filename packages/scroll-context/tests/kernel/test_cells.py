"""One cell after another: what is printed, what is kept, how errors look."""

import pytest

from scroll_context.kernel.kernel import Kernel, KernelOptions


def test_only_print_shows_anything_and_names_persist(kernel: Kernel) -> None:
    first = kernel.execute("x = 41\nx + 1")
    assert (first.ended, first.stdout, first.bound) == ("ok", "", ("x",))
    second = kernel.execute("x += 1\nprint(x)")
    assert (second.stdout, second.bound, second.read) == ("42\n", ("x",), ("x",))
    third = kernel.execute("del x")
    assert third.deleted == ("x",)
    assert kernel.execute("x").error.type == "NameError"


def test_names_bound_before_an_error_stay(kernel: Kernel) -> None:
    result = kernel.execute("a = 1\nprint('so far')\n1 / 0\nb = 2")
    assert (result.ended, result.bound, result.stdout) == ("error", ("a",), "so far\n")
    assert kernel.execute("print(a)").stdout == "1\n"


def test_the_traceback_shows_lines_of_cells_and_no_frame_of_the_worker(kernel: Kernel) -> None:
    kernel.execute("def outer(d):\n    return inner(d)\n")
    kernel.execute("import json\ndef inner(d):\n    return json.loads(d)\n")
    error = kernel.execute("\nouter('{')").error
    assert error.type == "json.decoder.JSONDecodeError"
    assert error.message.startswith("json.decoder.JSONDecodeError: Expecting property name")
    assert 'File "<cell 3>", line 2' in error.traceback
    assert "    return inner(d)" in error.traceback
    assert 'File "<cell 2>", line 3, in inner' in error.traceback
    assert "scroll_context" not in error.traceback


def test_chained_exceptions_are_shown_without_the_worker(kernel: Kernel) -> None:
    error = kernel.execute(
        "try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('bad') from e"
    ).error
    assert "KeyError: 'k'" in error.traceback
    assert "direct cause" in error.traceback
    assert "scroll_context" not in error.traceback


def test_a_syntax_error_points_at_the_line_and_binds_nothing(kernel: Kernel) -> None:
    result = kernel.execute("good = 1\nbad = = 2")
    assert result.error.type == "SyntaxError"
    assert "bad = = 2" in result.error.traceback
    assert result.bound == ()


@pytest.mark.parametrize(
    "source", ["await later(2)", "x = await later(2)", "async for x in count():\n    pass"]
)
def test_await_works_at_top_level_on_one_loop(kernel: Kernel, source: str) -> None:
    kernel.execute(
        "import asyncio\nloops = []\n"
        "async def later(n):\n    loops.append(asyncio.get_running_loop())\n    await asyncio.sleep(0)\n    return n\n"
        "async def count():\n    yield await later(1)\n    yield await later(2)\n"
    )
    assert kernel.execute(source).ended == "ok"
    kernel.execute("await later(3)\nprint(len(set(map(id, loops))))")
    assert kernel.execute("print(len(set(map(id, loops))))").stdout == "1\n"


def test_an_error_in_an_awaited_cell_has_a_clean_traceback(kernel: Kernel) -> None:
    error = kernel.execute("import asyncio\nawait asyncio.sleep(0)\n1 / 0").error
    assert error.type == "ZeroDivisionError"
    assert error.traceback.startswith(
        'Traceback (most recent call last):\n  File "<cell 1>", line 3'
    )


def test_standard_error_is_marked_and_stays_in_order(kernel: Kernel) -> None:
    result = kernel.execute(
        "import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')\nsys.stderr.write('d')"
    )
    assert result.stdout == "a\n[stderr] b\nc\n[stderr] d\n"


def test_threads_print_into_their_cell(kernel: Kernel) -> None:
    result = kernel.execute(
        "import threading\n"
        "threads = [threading.Thread(target=lambda i=i: print(f'line {i}')) for i in range(20)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()"
    )
    assert sorted(result.stdout.split("\n")[:-1]) == sorted(f"line {i}" for i in range(20))


def test_text_without_a_newline_and_bytes_are_printed(kernel: Kernel) -> None:
    source = "import sys\nprint('no newline', end='', flush=True)\nsys.stdout.buffer.write(b' and \\xc3\\xa9 \\xff')"
    assert kernel.execute(source).stdout == "no newline and é \ufffd"


def test_unicode_and_lone_surrogates_can_be_printed(kernel: Kernel) -> None:
    assert kernel.execute("print('héllo 漢字 🎉')").stdout == "héllo 漢字 🎉\n"
    assert kernel.execute("print('lone \\ud800 one')").stdout == "lone \\ud800 one\n"
    assert (
        kernel.execute("raise ValueError('lone \\ud800')").error.message
        == "ValueError: lone \\ud800"
    )


def test_a_source_that_is_not_unicode_is_an_error_and_not_a_crash(kernel: Kernel) -> None:
    result = kernel.execute("x = '\ud800'")
    assert (result.ended, result.error.type) == ("error", "UnicodeEncodeError")
    assert kernel.execute("print(1)").stdout == "1\n"


def test_input_is_refused_with_advice(kernel: Kernel) -> None:
    for source in (
        "input('name? ')",
        "import sys; sys.stdin.readline()",
        "import sys; sys.stdin.read()",
    ):
        assert "nobody is there" in kernel.execute(source).error.message


def test_leaving_the_interpreter_does_not_end_the_kernel(kernel: Kernel) -> None:
    for source in ("exit()", "import sys; sys.exit(3)", "raise SystemExit", "quit()"):
        result = kernel.execute("kept = 1\n" + source)
        assert (result.ended, result.restore) == ("error", None)
    assert kernel.execute("print(kept)").stdout == "1\n"


def test_long_output_is_cut_and_kept_whole(make_kernel) -> None:
    kernel = make_kernel(options=KernelOptions(output_chars=100))
    result = kernel.execute("for i in range(1000): print('é', i)")
    whole = "".join(f"é {i}\n" for i in range(1000))
    hidden = len(whole) - 100
    head, message, tail = result.stdout.partition("\n[cut: ")
    message, _, tail = tail.partition("]\n")
    assert (head, tail) == (whole[:68], whole[-32:])
    lines = whole[68:-32].count("\n")
    assert (
        f"printed {len(whole):,} characters. Above are the first 68, below the last 32" in message
    )
    assert f"{hidden:,} characters in {lines:,} lines between them are not shown" in message
    assert result.hidden_chars == hidden
    assert result.printed.decode() == whole
    assert (result.printed_chars, result.is_cut, result.ended) == (len(whole), True, "ok")


def test_runs_of_equal_and_empty_lines_collapse_in_the_view_only(kernel: Kernel) -> None:
    result = kernel.execute("print('a\\n' * 50 + '\\n \\n' * 9 + 'b\\n' * 3, end='')")
    assert result.stdout == "a\n[the line above 50 times in all]\n\n\nb\nb\nb\n"
    assert result.printed.count(b"a") == 50 and not result.is_cut


def test_output_without_end_stops_the_cell_and_keeps_the_namespace(make_kernel) -> None:
    kernel = make_kernel(options=KernelOptions(output_bytes=1 << 20))
    result = kernel.execute(
        "x = 7\nwhile True:\n    try:\n        print('y' * 1000)\n    except Exception:\n        pass"
    )
    assert result.ended == "output-limit"
    assert len(result.printed) == 1 << 20
    assert kernel.execute("print(x)").stdout == "7\n"


def test_ten_megabytes_of_output_arrive_unchanged(kernel: Kernel) -> None:
    result = kernel.execute("print('0123456789' * 1_000_000)")
    assert result.printed == b"0123456789" * 1_000_000 + b"\n"


def test_output_of_a_thread_between_cells_belongs_to_the_next(kernel: Kernel) -> None:
    kernel.execute(
        "import threading\ngo, done = threading.Event(), threading.Event()\n"
        "def late():\n    go.wait()\n    print('late')\n    done.set()\n"
        "threading.Thread(target=late).start()"
    )
    assert kernel.execute("go.set(); done.wait(); print('now')").stdout == "late\nnow\n"


CARELESS = [
    "print = 3",
    "list = [1]; str = 'x'; len = dict = type = id = None",
    "import builtins; builtins.len = builtins.print = builtins.isinstance = builtins.id = None",
    "import builtins; vars(builtins).clear()",
    "del __builtins__",
    "import sys; sys.stdout = sys.stderr = None",
    "import sys; sys.stdout.close()",
    "import sys; sys.modules.clear()",
    "import sys; sys.setrecursionlimit(50)",
    "__name__ = 'other'",
    "globals()[5] = 1; globals()['not a name'] = 2",
    "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))",
    "import gc; gc.disable(); gc.set_threshold(0)",
    "import threading, time, select, os; threading.Lock = time.monotonic = select.poll = os.getpid = None",
    "import json, pickle, msgspec, hashlib; json.dumps = pickle.dumps = msgspec.msgpack = hashlib.blake2b = None",
    "import sys; sys.settrace(lambda *a: 1 / 0)",
    "import os; os.chdir('/'); os.environ.clear()",
]


@pytest.mark.parametrize("source", CARELESS)
def test_carelessness_with_the_interpreter_costs_at_most_the_cell(
    kernel: Kernel, source: str
) -> None:
    kernel.execute("kept = [1, 2, 3]")
    kernel.execute(source)
    restored_names = "import builtins\nfrom builtins import print, len\n"
    result = kernel.execute(restored_names + "print(kept, len(kept))")
    assert result.stdout == "[1, 2, 3] 3\n"
    assert result.restore is None, "the process had to be replaced"


def test_names_of_a_run_are_told_apart(kernel: Kernel) -> None:
    kernel.execute("data = [1]\ndef f():\n    global made\n    made = data\n    return unknown")
    result = kernel.execute(
        "import math as m\nfor i in data: pass\nwith open('f', 'w') as out: out.write('x')\nn = 0"
    )
    assert set(result.bound) == {"m", "i", "out", "n"}
    assert result.read == ("data",)  # `out` had no value that it could have read
    assert kernel.execute("new = 1\ndata = data\nn = 0").bound[0] == "new"
    assert set(kernel.execute("data = data\nn = 0").bound) == {"data", "n"}


ODDITIES = {
    "many names": "globals().update({f'n{i}': i for i in range(30_000)})",
    "type name": "v = type('\\ud800' * 1000, (), {})()",
    "exception name": "raise type('E\\ud800' * 1000, (Exception,), {})('\\ud800' * 100_000)",
    "exception without text": "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
    "deep recursion": "def f(): return f()\nf()",
    "deep nesting": "(" * 500 + ")" * 500,
    "null byte": "x = '\0'",
    "many exceptions": "raise ExceptionGroup('g', [ValueError(str(i)) for i in range(5000)])",
    "module with an odd name": "import types, sys\nv = types.ModuleType('\\ud800')\nsys.modules['\\ud800'] = v",
    "a thread that changes the namespace": (
        "import threading\ndef churn():\n    i = 0\n    while go:\n        globals()[f't{i % 50}'] = i; i += 1\n"
        "        globals().pop(f't{(i * 7) % 50}', None)\ngo = True\nthreading.Thread(target=churn).start()"
    ),
}


@pytest.mark.parametrize("name", ODDITIES)
def test_odd_but_honest_cells_do_not_cost_the_process(kernel: Kernel, name: str) -> None:
    kernel.execute("kept = 1")
    assert kernel.execute(ODDITIES[name]).ended in ("ok", "error")
    kernel.variable_list()
    for _ in range(3):
        kernel.save()
        kernel.execute("pass")
    result = kernel.execute("go = False\nprint(kept)")
    assert (result.stdout, result.restore) == ("1\n", None)
