"""A coding session of 200 steps, as a coding assistant drives it: searches, reads, edits, test runs,
commits, and a list of open work.

`python testing/coding_session.py` prints what the last request says about failures, files and open
work, what it costs, and how much of each request a provider could take from its cache. The script
uses nothing but `Scribe`, so the same file measures an older version of the package.
"""

import json
from typing import Any, NamedTuple

from scroll_context.view.working import Rendered
from view_histories import Scribe, shared_prefix

REQUEST = (
    "Fix the flaky login test in this repo: tests/test_login.py fails about once in five runs. "
    "Keep the public API of auth.session as it is, and do not touch the migrations."
)
STEPS = 200
WINDOW = 30_000
TODO = (
    "find out why test_login is flaky",
    "make the token clock injectable",
    "remove the sleep in test_refresh",
    "update docs/auth.md",
)
MODULES = ("session", "tokens", "clock", "store", "cookies")


class CodingRun(NamedTuple):
    """What the session cost, and its last request."""

    scribe: Scribe
    last: Rendered
    # The share of all input tokens that repeated the beginning of the request before.
    reuse: float
    # Raw tokens of an average request.
    mean_tokens: float

    @property
    def text(self) -> str:
        """Everything that the last request says."""
        return "\n".join(message.text for message in self.last.messages)

    @property
    def index(self) -> str:
        return self.scribe.view.index.render()


def coding_run(steps: int = STEPS, window: int = WINDOW) -> CodingRun:
    """Work on one request for so many steps."""
    scribe = Scribe(window, overhead=2_000)
    scribe.user(REQUEST)
    sent = reused = 0.0
    before: Rendered | None = None
    for number in range(steps):
        rendered = scribe.ask("")
        sent += rendered.tokens
        if before is not None:
            reused += rendered.tokens * shared_prefix(before, rendered)
        before = rendered
        name, arguments, result = call_at(number)
        reply = scribe.reply(
            _words(number),
            [(f"c{number}", name, arguments)],
            usage={"input_tokens": rendered.tokens},
        )
        scribe.native(reply, f"c{number}", name, result)
    last = scribe.ask("")
    return CodingRun(scribe, last, reused / sent, sent / steps)


def _words(number: int) -> str:
    words = ("Let me look.", "Reading the module.", "I'll change this.", "Running the tests.", "")
    return words[number % len(words)]


def call_at(number: int) -> tuple[str, dict[str, Any], str]:
    """The tool, the arguments and the result of a step."""
    module = MODULES[number // 5 % len(MODULES)]
    path = f"src/auth/{module}.py"
    if number % 40 == 0:
        return "TodoWrite", {"todos": _todos(number // 40)}, "Todos have been modified."
    if number % 50 == 49:
        message = f"Inject the clock into {module}"
        result = (
            f"[main {number:07x}] {message}\n 2 files changed, 12 insertions(+), 3 deletions(-)"
        )
        return "Bash", {"command": f'git commit -am "{message}"'}, result
    match number % 5:
        case 0:
            lines = [
                f"src/auth/{name}.py:{n}:    now = time()" for name in MODULES for n in (7, 90)
            ]
            return "Grep", {"pattern": f"time\\(\\).*{module}", "path": "src"}, "\n".join(lines * 2)
        case 1:
            numbered = [f"{n:6}→    value_{n} = {module}.read({n})" for n in range(1, 90)]
            return "Read", {"file_path": path}, "\n".join(numbered)
        case 2:
            old = "    now = time()\n    return now"
            new = "    now = self.clock()\n    self.seen = now\n    return now"
            arguments = {"file_path": path, "old_string": old, "new_string": new}
            return "Edit", arguments, f"The file {path} has been updated.\n" + old * 8
        case 3:
            return (
                "Bash",
                {"command": "pytest tests/test_login.py -x 2>&1 | tail -40"},
                _tests(number),
            )
        case _:
            command = f"cd /app && ruff check src/auth/{module}.py"
            return "Bash", {"command": command}, "All checks passed!"


def _todos(done: int) -> list[dict[str, str]]:
    return [
        {"content": text, "status": "completed" if at < done // 2 else "pending"}
        for at, text in enumerate(TODO)
    ]


def _tests(number: int) -> str:
    if number % 3 == 0:
        return "." * 40 + "\n============ 41 passed in 2.31s ============"
    lines = [f"tests/test_login.py::test_case_{n} PASSED" for n in range(30)]
    lines += [
        "=================== FAILURES ===================",
        "    def test_login_refresh(client):",
        "        client.login()",
        ">       assert client.refresh().status == 200",
        "E       assert 401 == 200",
        "E        +  where 401 = <Response expired token>.status",
        "tests/test_login.py:88: AssertionError",
        "FAILED tests/test_login.py::test_login_refresh - assert 401 == 200",
        "========== 1 failed, 40 passed in 2.47s ==========",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    run = coding_run()
    figures = {
        "view_tokens": run.scribe.view.tokens,
        "index_tokens": run.scribe.view.index.tokens,
        "mean_request_tokens": round(run.mean_tokens),
        "cache_reuse": round(run.reuse, 4),
        "evictions": len(run.scribe.plans),
    }
    print(run.index)
    print(json.dumps(figures, indent=1))
