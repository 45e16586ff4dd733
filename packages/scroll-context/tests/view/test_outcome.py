"""The outcome of real tool output in one line: what a test run, a compiler, git, a search or a table
says, and whether it reports a failure.
"""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scroll_context.view.outcome import OUTCOME_CHARS, READ_CHARS, edit_size, outcome

PYTEST = """\
..F.                                                                     [100%]
=================================== FAILURES ===================================
__________________________________ test_login __________________________________
    def test_login(client):
>       assert client.login().status == 200
E       assert 401 == 200
E        +  where 401 = <Response 401>.status

tests/test_login.py:12: AssertionError
=========================== short test summary info ============================
FAILED tests/test_login.py::test_login - assert 401 == 200
========================= 1 failed, 3 passed in 0.31s ==========================
"""
COLLECTION = """\
==================================== ERRORS ====================================
____________________ ERROR collecting tests/test_store.py ______________________
E   ModuleNotFoundError: No module named 'apsw'
=========================== short test summary info ============================
ERROR tests/test_store.py
=============================== 1 error in 0.09s ===============================
"""
UNITTEST = """\
F.
======================================================================
FAIL: test_sum (test_math.SumTest.test_sum)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "/app/test_math.py", line 7, in test_sum
    self.assertEqual(add(1, 1), 3)
AssertionError: 2 != 3

----------------------------------------------------------------------
Ran 2 tests in 0.001s

FAILED (failures=1)
"""
CARGO = """\
running 2 tests
test parses_empty ... ok
test tests::rounds ... FAILED

failures:

---- tests::rounds stdout ----
thread 'tests::rounds' panicked at src/lib.rs:31:9:
assertion `left == right` failed

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

error: test failed, to rerun pass `--lib`
"""
CARGO_BUILD = """\
   Compiling ledger v0.1.0 (/app)
error[E0382]: borrow of moved value: `rows`
  --> src/main.rs:14:20
   |
14 |     println!("{}", rows.len());
error: could not compile `ledger` (bin "ledger") due to 1 previous error
"""
GO = """\
--- FAIL: TestSum (0.00s)
    sum_test.go:8: Sum(1, 2) = 4, want 3
FAIL
FAIL\texample.com/ledger/sum\t0.002s
ok  \texample.com/ledger/parse\t0.110s
FAIL
"""
JEST = """\
FAIL src/cart.test.js
  ● cart › adds an item

    expect(received).toBe(expected) // Object.is equality

Test Suites: 1 failed, 2 passed, 3 total
Tests:       1 failed, 14 passed, 15 total
Snapshots:   0 total
Time:        1.8 s
"""
MOCHA = """\
  cart
    ✓ starts empty
    1) adds an item

  14 passing (31ms)
  1 failing

  1) cart adds an item:
     AssertionError: expected 0 to equal 1
"""
NPM = """\
npm error code E404
npm error 404 Not Found - GET https://registry.example/left-pad-9 - Not found
npm error A complete log of this run can be found in: /home/user/.npm/_logs/x.log
"""
MYPY = """\
src/a.py:3: error: Incompatible types in assignment  [assignment]
src/b.py:9: error: Missing return statement  [return]
Found 2 errors in 2 files (checked 10 source files)
"""
TRACEBACK = """\
loading
Traceback (most recent call last):
  File "/app/run.py", line 3, in <module>
    main()
  File "/app/ledger/rows.py", line 41, in total
    return sum(row["amount"] for row in rows)
KeyError: 'amount'
"""
NODE = """\
/app/index.js:3
  cart.add();
       ^

TypeError: cart.add is not a function
    at Object.<anonymous> (/app/index.js:3:8)
    at Module._compile (node:internal/modules/cjs/loader:1554:14)
"""
JAVA = """\
Exception in thread "main" java.lang.IllegalStateException: no rows
\tat com.example.Ledger.total(Ledger.java:18)
\tat com.example.Main.main(Main.java:5)
"""
GO_PANIC = """\
panic: runtime error: index out of range [3] with length 3

goroutine 1 [running]:
main.main()
\t/app/main.go:7 +0x1d
exit status 2
"""
RUST_PANIC = """\
thread 'main' panicked at src/main.rs:4:37:
no such supplier
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
"""
RUBY = """\
ledger.rb:4:in `total': undefined method `sum' for nil (NoMethodError)
\tfrom ledger.rb:9:in `<main>'
"""
GREP = """\
src/auth/session.py:12:    now = time()
src/auth/session.py:88:    then = time()
src/auth/tokens.py:7:raise ValueError("Error: expired")
"""
DIFF = """\
diff --git a/src/a.py b/src/a.py
--- a/src/a.py
+++ b/src/a.py
@@ -1,2 +1,3 @@
 import os
-x = 1
+x = 2
+y = 3
"""
COMMIT = "[main 1a2b3c4] Fix the login\n 2 files changed, 12 insertions(+), 3 deletions(-)\n"
STATUS = """\
On branch main
Changes not staged for commit:
  (use "git add <file>..." to update what will be committed)
\tmodified:   src/a.py

no changes added to commit (use "git add" and/or "git commit -a")
"""
CONFLICT = """\
Auto-merging src/a.py
CONFLICT (content): Merge conflict in src/a.py
Automatic merge failed; fix conflicts and then commit the result.
"""
SOURCE = "\n".join(f"{n:6}→    raise ValueError('Error: {n}')" for n in range(1, 90))
CSV = "id,supplier,amount\n" + "\n".join(f"{n},Acme,{n}.50" for n in range(120))
MARKDOWN = "| id | name |\n|----|------|\n| 1 | Ada |\n| 2 | Grace |\n"
FRAME = (
    "     supplier  amount\n0        Acme    12.5\n..        ...     ...\n\n[120 rows x 2 columns]"
)
PSQL = " id | name\n----+------\n  1 | Ada\n  2 | Grace\n(2 rows)\n"

REPORTS = [
    (PYTEST, "1 failed, 3 passed; tests/test_login.py::test_login; assert 401 == 200", True),
    (COLLECTION, "1 error; tests/test_store.py; ModuleNotFoundError: No module named 'apsw'", True),
    ("....\n4 passed, 1 warning in 0.12s\n", "4 passed, 1 warning", False),
    ("\nno tests ran in 0.01s\n", "no tests ran", True),
    (UNITTEST, "FAILED (failures=1), 2 tests; test_sum (test_math.SumTest.test_sum)", True),
    ("..\n------\nRan 2 tests in 0.001s\n\nOK\n", "OK, 2 tests", False),
    (CARGO, "test result: FAILED. 1 passed; 1 failed; tests::rounds", True),
    (
        CARGO_BUILD,
        (
            'error: could not compile `ledger` (bin "ledger") due to 1 previous error; '
            "error[E0382]: borrow of moved value: `rows`"
        ),
        True,
    ),
    (GO, "FAIL example.com/ledger/sum; TestSum", True),
    ("ok  \texample.com/a\t0.01s\nok  \texample.com/b\t(cached)\n", "ok: 2 packages", False),
    (JEST, "Tests: 1 failed, 14 passed, 15 total; cart › adds an item", True),
    (MOCHA, "1 failing; adds an item", True),
    ("[INFO] x\n[ERROR] Tests run: 5, Failures: 1, Errors: 0\n", None, True),
    ("5 examples, 0 failures\n", "5 examples, 0 failures", False),
    (
        NPM,
        (
            "npm error code E404; npm error 404 Not Found - GET "
            "https://registry.example/left-pad-9 - Not found"
        ),
        True,
    ),
    ("\nadded 120 packages, and audited 121 packages in 3s\n", None, False),
    (
        MYPY,
        (
            "Found 2 errors in 2 files (checked 10 source files); "
            "src/a.py:3: error: Incompatible types in assignment [assignment]"
        ),
        True,
    ),
    ("All checks passed!\n", "All checks passed!", False),
    (
        "src/a.ts(3,5): error TS2322: Type 'string' is not assignable to type 'number'.\n",
        "src/a.ts(3,5): error TS2322: Type 'string' is not assignable to type 'number'.",
        True,
    ),
    ("make: *** [Makefile:7: all] Error 2\n", "make: *** [Makefile:7: all] Error 2", True),
    (TRACEBACK, "KeyError: 'amount' at rows.py:41", True),
    (
        NODE,
        "TypeError: cart.add is not a function; at Object.<anonymous> (/app/index.js:3:8)",
        True,
    ),
    (
        JAVA,
        (
            'Exception in thread "main" java.lang.IllegalStateException: no rows; '
            "at com.example.Ledger.total(Ledger.java:18)"
        ),
        True,
    ),
    (GO_PANIC, "exit 2: panic: runtime error: index out of range [3] with length 3", True),
    (RUST_PANIC, "thread 'main' panicked at src/main.rs:4:37: no such supplier", True),
    (RUBY, None, True),
    (GREP, "3 matches in 2 files: src/auth/session.py, src/auth/tokens.py", False),
    ("./a/b.py\n./a/c.py\n./d.txt\n", "3 paths: ./a/b.py, ./a/c.py, …", False),
    (DIFF, "+2 −1 in 1 file: src/a.py", False),
    (COMMIT, "[main 1a2b3c4] Fix the login: +12 −3 in 2 files", False),
    (STATUS, "on branch main: 1 file: src/a.py", False),
    ("On branch main\nnothing to commit, working tree clean\n", None, False),
    (CONFLICT, "CONFLICT (content): Merge conflict in src/a.py", True),
    ("fatal: not a git repository\n", "fatal: not a git repository", True),
    ("1a2b3c4 Fix the login\n2b3c4d5 Add tests\n", "2 commits, first 1a2b3c4 Fix the login", False),
    (SOURCE, "lines 1-89", False),
    (CSV, "120 rows × 3 columns: id, supplier, amount", False),
    (MARKDOWN, "2 rows × 2 columns: id, name", False),
    (FRAME, "120 rows × 2 columns: supplier, amount", False),
    (PSQL, "2 rows: id, name", False),
    ('[{"id": 1, "name": "Ada"}, {"id": 2}]', "2 rows × 2 columns: id, name", False),
    ('{"total": 12, "rows": [1, 2, 3]}', "total: 12, rows: 3 items", False),
    (
        '{"error": {"type": "invalid_request_error", "message": "unknown model"}}',
        "error: invalid_request_error: unknown model",
        True,
    ),
    ('{"status": 404, "detail": "no such invoice"}', "error: 404: no such invoice", True),
    ('{"success": false, "message": "quota"}', "error: quota", True),
    ("HTTP/1.1 503 Service Unavailable\nRetry-After: 5\n\n", "HTTP 503 Service Unavailable", True),
    ("curl: (6) Could not resolve host: example.test\n", None, True),
    (
        "Exit code 127\nbash: gti: command not found\n",
        "exit 127: bash: gti: command not found",
        True,
    ),
    ("cat: x.txt: No such file or directory\n", "cat: x.txt: No such file or directory", True),
    ("The harbour was built in 1843.\n", "The harbour was built in 1843.", False),
    ("\n".join(f"row {n}" for n in range(50)), "50 lines: row 0 … row 49", False),
    ("", "", False),
    (" \n\t\n", "", False),
]


@pytest.mark.parametrize(("text", "line", "failed"), REPORTS, ids=range(len(REPORTS)))
def test_a_report_names_what_matters_and_whether_it_failed(
    text: str, line: str | None, failed: bool
) -> None:
    report = outcome(text)
    assert report.text == line or line is None
    assert report.text or not text.strip()
    assert report.failed is failed


@pytest.mark.parametrize(
    "text",
    [
        # A document that quotes an error is not a failure.
        TRACEBACK + "\n".join(f"and then paragraph {n} goes on." for n in range(60)),
        "Errors\n\n\n===\nerror: so the compiler ends\n" + "Chapter two goes on.\n" * 60,
        # Nor is a file that holds one.
        "\n".join(f"{n:4}\t{line}" for n, line in enumerate(TRACEBACK.splitlines(), 1)),
    ],
)
def test_an_error_that_was_read_is_not_an_outcome(text: str) -> None:
    assert not outcome(text).failed


def test_of_a_call_that_failed_the_first_error_is_named() -> None:
    text = "connecting\nthe upload was refused: quota exceeded\nretrying\ngiving up\nbye"
    assert outcome(text).text.startswith("5 lines: ")
    report = outcome(text, is_error=True)
    assert report.text == "the upload was refused: quota exceeded"


def test_a_count_of_which_only_a_part_was_read_says_so() -> None:
    long = "src/auth/session.py:12:    now = time()\n" * 4_000
    assert outcome(long).text.startswith("at least ")
    assert outcome(GREP, is_partial=True).text.startswith("at least 3 matches")
    failing = "x\n" * READ_CHARS + PYTEST
    assert outcome(failing) == outcome(PYTEST), "a summary at the end is not a count of ours"


def test_colours_do_not_hide_a_summary() -> None:
    coloured = (
        "\x1b[31m=== \x1b[31m\x1b[1m1 failed\x1b[0m, \x1b[32m3 passed\x1b[0m in 0.31s ===\x1b[0m"
    )
    assert outcome(coloured).text == "1 failed, 3 passed"


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ({"file_path": "a", "old_string": "a\nb", "new_string": "a\nc\nd"}, "+2 −1"),
        ({"path": "a", "old_str": "a", "new_str": ""}, "+0 −1"),
        ({"path": "a", "edits": [{"oldText": "a", "newText": "b\nc"}]}, "+2 −1"),
        ({"patch": "*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n+z\n*** End Patch"}, "+2 −1"),
        ({"path": "a", "content": "1\n2\n3\n"}, "+3 −0"),
        ({"content": "a message, not a file"}, ""),
        ({"command": "ls"}, ""),
        ("not an object", ""),
    ],
)
def test_an_edit_is_told_by_the_lines_it_changes(arguments: object, size: str) -> None:
    assert edit_size(arguments) == size


lines = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.sampled_from(
            "".join(
                (PYTEST, UNITTEST, GO, TRACEBACK, GREP, DIFF, CSV[:200], JEST, STATUS)
            ).splitlines()
        ),
    ),
    max_size=30,
)


@given(lines, st.booleans())
def test_any_output_has_one_bounded_line(drawn: list[str], is_error: bool) -> None:
    report = outcome("\n".join(drawn), is_error=is_error)
    assert len(report.text) <= OUTCOME_CHARS
    assert len(report.text.splitlines()) <= 1


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["error", "errors", "status", "ok", "message", "rows", "x"]), inner
            )
        ),
    )
)
def test_any_json_value_has_one_bounded_line(value: object) -> None:
    assert len(outcome(json.dumps(value)).text) <= OUTCOME_CHARS
    edit_size(value)


@pytest.mark.parametrize("piece", ["x", "1-", "a/", "a.", "a.b-1", "x: ", "= "])
def test_a_line_as_long_as_may_be_read_takes_little_time(piece: str) -> None:
    line = piece * (READ_CHARS // len(piece))
    begun = time.process_time()
    outcome(line)
    outcome("\n".join([line] * 2), is_error=True)
    assert time.process_time() - begun < 1
