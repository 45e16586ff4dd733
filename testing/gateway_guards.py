"""Takes each guard of the gateway away, and shows which attacks then succeed.

    python testing/gateway_guards.py [WORDS OF A GUARD]

A guard is a line of the source. A copy of all packages gets another line in its place, and the
attack tests run on the copy. A guard whose tests still pass is not tested: the status is then 1.

One kind of attack has no guard that could be taken away: the name of a session is never used as a
path.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
TESTS = ["test_attacks.py", "test_hostile_upstreams.py"]
SERVER = "scroll-gateway/src/scroll_gateway/server.py"
RUNNING = "scroll-gateway/src/scroll_gateway/running.py"
CONVERSATIONS = "scroll-gateway/src/scroll_gateway/conversations.py"
WIRED = "scroll-gateway/src/scroll_gateway/wire/session.py"
# A body without end must not fill the memory of the machine.
MOST_MEMORY = 3 * 2**30
SECONDS = 120


class Guard(msgspec.Struct, frozen=True):
    """A line that protects, the line without it, and the tests that must then fail."""

    about: str
    file: str
    line: str
    without: str
    tests: str


GUARDS = [
    Guard(
        "the Host header is checked",
        SERVER,
        'if headers.get("host", "").lower() not in self._hosts:',
        "if False:",
        "test_web_pages_are_refused and 421",
    ),
    Guard(
        "the Origin header is refused",
        SERVER,
        'if "origin" in headers:',
        "if False:",
        "test_web_pages_are_refused and 403",
    ),
    Guard(
        "the path must have the token",
        SERVER,
        "return rest if is_ours else None",
        "return rest if is_ours else path",
        "test_a_path_without_the_token or test_the_token_may_come or test_another_user",
    ),
    Guard(
        "the rest of a path begins with a slash",
        SERVER,
        ' and rest.startswith("/")',
        "",
        "test_a_path_cannot_choose",
    ),
    Guard(
        "the gateway listens on loopback",
        RUNNING,
        'HOST = "127.0.0.1"',
        'HOST = "0.0.0.0"',
        "test_it_listens_on_loopback_only",
    ),
    Guard(
        "WebSockets are refused",
        SERVER,
        'if headers.get("upgrade", "").lower() == "websocket":',
        "if False:",
        "test_websockets",
    ),
    Guard(
        "keys are not logged",
        SERVER,
        "            headers = dict(request.headers)\n",
        "            headers = dict(request.headers)\n"
        '            _logger.warning("a request with %s", headers)\n',
        "test_keys_are_forwarded",
    ),
    Guard(
        "keys are not stored",
        CONVERSATIONS,
        "                return conversation.reply_to(protocol, body)\n",
        "                conversation.session.record(Kind.NOTICE, content=str(dict(headers)))\n"
        "                return conversation.reply_to(protocol, body)\n",
        "test_keys_are_forwarded",
    ),
    Guard(
        "keys are forwarded",
        SERVER,
        'REQUEST_ONLY_HERE = HOP_BY_HOP | {"host",',
        'REQUEST_ONLY_HERE = HOP_BY_HOP | {"authorization", "host",',
        "test_keys_are_forwarded",
    ),
    Guard(
        "the token's file is for its user alone",
        RUNNING,
        "descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)\n    with",
        "descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)\n    with",
        "test_the_token_is_for_its_user",
    ),
    Guard(
        "the folder of tokens is for its user alone",
        RUNNING,
        'file = _folder() / f"{os.getpid()}-{port}.json"\n'
        "    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)",
        'file = _folder() / f"{os.getpid()}-{port}.json"\n'
        "    file.parent.mkdir(parents=True, exist_ok=True)",
        "test_the_token_is_for_its_user",
    ),
    Guard(
        "the token's file leaves with the gateway",
        RUNNING,
        "    finally:\n        file.unlink(missing_ok=True)",
        "    finally:\n        pass",
        "test_the_token_is_for_its_user",
    ),
    Guard(
        "the store is for its user alone",
        "scroll-context/src/scroll_context/log/schema.py",
        "mode & 0o700",
        "mode & 0o777",
        "test_another_user",
    ),
    Guard(
        "headers that open an address to web pages do not pass",
        SERVER,
        ' and not name.startswith("access-control-")',
        "",
        "test_headers_of_a_hostile",
    ),
    Guard(
        "headers that harm under another address do not pass",
        SERVER,
        'RESPONSE_ONLY_HERE = HOP_BY_HOP | {"alt-svc", "strict-transport-security", "set-cookie"}',
        "RESPONSE_ONLY_HERE = HOP_BY_HOP",
        "test_headers_of_a_hostile",
    ),
    Guard(
        "redirects are not followed",
        SERVER,
        "follow_redirects=False",
        "follow_redirects=True",
        "test_a_redirect",
    ),
    Guard(
        "a stream without end is not held",
        WIRED,
        "if self._size > MOST_REPLY:",
        "if False:",
        "test_a_stream_without_end",
    ),
    Guard(
        "a body without end is refused",
        SERVER,
        "if size > MOST_REPLY:",
        "if False:",
        "test_a_body_without_end",
    ),
    Guard(
        "a line of many chunks is joined once",
        "scroll-gateway/src/scroll_gateway/wire/replies.py",
        'if b"\\n" not in chunk and b"\\r" not in chunk and not self._rest[0].endswith(b"\\r"):',
        "if False:",
        "test_a_line_of_many_chunks",
    ),
    Guard(
        "a compressed reply is not expanded",
        SERVER,
        'return response.headers.get("content-encoding", "identity") != "identity"',
        "return False",
        "test_a_compressed_reply",
    ),
    Guard(
        "an upstream that breaks HTTP is an error for its client alone",
        SERVER,
        "except httpx2.TransportError as error:",
        "except ZeroDivisionError as error:",
        "test_a_broken_response",
    ),
    Guard(
        "a reply that cannot be read passes",
        WIRED,
        "        except Exception:\n            self._reader = None",
        "        except ZeroDivisionError:\n            self._reader = None",
        "test_malformed_events",
    ),
    Guard(
        "a body that cannot be read is sent as it came",
        CONVERSATIONS,
        "            self._record_fault(conversation, error)\n",
        "            raise\n",
        "test_a_hostile_body",
    ),
    Guard(
        "quoted words do not look like a stub",
        "scroll-context/src/scroll_context/view/wording.py",
        'return text.replace("[scroll:", "(scroll:")',
        "return text",
        "imitate_a_stub",
    ),
    Guard(
        "the token in a header does not reach the upstream",
        SERVER,
        '"expect", "x-scroll-token"}',
        '"expect"}',
        "test_the_token_may_come",
    ),
]


def main(words: str) -> int:
    guards = [guard for guard in GUARDS if words in guard.about]
    every: set[str] = set()
    succeeded: set[str] = set()
    untested = []
    with tempfile.TemporaryDirectory() as folder:
        for guard in guards:
            passed, failed = _attacks(guard, Path(folder) / "packages")
            every |= passed | failed
            succeeded |= failed
            untested += [] if failed else [guard.about]
            print(f"\n{guard.about}: {len(failed)} of {len(failed | passed)} attacks succeed")
            for name in sorted(failed):
                print(f"  {name}")
            for name in sorted(passed):
                print(f"  {name} (refused all the same)")
            sys.stdout.flush()
    print(f"\n{len(guards)} guards, {len(succeeded)} of {len(every)} attacks succeed without one.")
    print("\n".join(f"not tested: {about}" for about in untested))
    return 1 if untested else 0


def _attacks(guard: Guard, copy: Path) -> tuple[set[str], set[str]]:
    """The tests of a guard that pass and that fail without it."""
    shutil.rmtree(copy, ignore_errors=True)
    for source in ROOT.glob("packages/*/src"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, copy / source.relative_to(ROOT / "packages"), ignore=ignored)
    file = copy / guard.file
    text = file.read_text()
    assert guard.line in text, f"{guard.file} lacks {guard.line!r}"
    file.write_text(text.replace(guard.line, guard.without))
    sources = os.pathsep.join(str(path) for path in sorted(copy.glob("*/src")))
    tests = [f"packages/scroll-gateway/tests/{name}" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-rA", "--tb=no", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *tests, "-k", guard.tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": sources},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            preexec_fn=_limit_memory,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return set(), {f"{guard.tests} (without end)"}
    outcomes = re.findall(r"^(PASSED|FAILED|ERROR) \S+::(.+?)(?: - .*)?$", done.stdout, re.M)
    assert outcomes, done.stdout + done.stderr
    passed = {name for outcome, name in outcomes if outcome == "PASSED"}
    return passed, {name for outcome, name in outcomes if outcome != "PASSED"}


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
