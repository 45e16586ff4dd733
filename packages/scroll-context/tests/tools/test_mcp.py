"""MCP servers as namespaces of tools, against a real server process over standard streams and over
HTTP.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from open_journals import journal_of
from scroll_context.errors import BadInput, ToolFailed
from scroll_context.events import Scope
from scroll_context.log.log import EventLog
from scroll_context.tools.toolbox import Toolbox, ToolUse
from scroll_context.tools.tools import tool

pytest.importorskip("mcp")

from scroll_context.tools.mcp import McpMount, mount_http, mount_stdio

SERVER = str(Path(__file__).with_name("mcp_server.py"))


def start(**options: Any) -> McpMount:
    return mount_stdio(sys.executable, [SERVER, "stdio"], **options)


def by_name(mount: McpMount) -> SimpleNamespace:
    """The tools of a server as attributes."""
    return SimpleNamespace(**{tool.name.partition(".")[2]: tool for tool in mount.tools})


def box(log: EventLog, mount: McpMount, **options: Any) -> Toolbox:
    return Toolbox(mount.tools, journal=journal_of(log, Scope("s", "a")), **options)


class HttpServer:
    """The test server in a process of its own, on a port of loopback."""

    def __init__(self, port: str = "") -> None:
        command = [sys.executable, SERVER, "http", *([port] if port else [])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = self.process.stdout.readline().strip()
        self.url = f"http://127.0.0.1:{self.port}/mcp"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def mount() -> Iterator[McpMount]:
    """A server over standard streams that no test harms."""
    with start(env={"SCROLL_TEST": "given"}) as mount:
        yield mount


@pytest.fixture(scope="module")
def mortal() -> Iterator[McpMount]:
    """A server that tests kill. The next call connects to a new one."""
    with start(name="mortal") as mount:
        yield mount


@pytest.fixture(scope="module")
def web() -> Iterator[McpMount]:
    """The same server over HTTP."""
    pytest.importorskip("uvicorn")
    server = HttpServer()
    with mount_http(server.url, {"x-test": "a header"}, name="web") as mount:
        yield mount
    server.stop()


@pytest.fixture(params=["stdio", "http"])
def either(request: pytest.FixtureRequest) -> McpMount:
    found: McpMount = request.getfixturevalue("mount" if request.param == "stdio" else "web")
    return found


# mounting -------------------------------------------------------------------------------------------------


def test_a_server_becomes_a_namespace(mount: McpMount) -> None:
    assert mount.name == "Weather_more"
    names = [one.name for one in mount.tools]
    assert names == sorted(names)
    assert {"Weather_more.forecast", "Weather_more.say_text", "Weather_more.say_text_2"} <= set(
        names
    )
    assert by_name(mount).add(1, b="2") == 3


def test_signatures_come_from_the_schemas(mount: McpMount) -> None:
    assert by_name(mount).forecast.stub == (
        "def Weather_more.forecast(city: str, days: int = 3, unit: Literal['C', 'F'] = 'C') -> dict[str, Any]:\n"
        '    """Temperatures of the next days.\n'
        "    city: name of a city\n"
        '    days: how many days"""'
    )
    assert by_name(mount).add.header == "Weather_more.add(a: int, b: int) -> int"


def test_native_names_have_no_dots(log: EventLog, mount: McpMount) -> None:
    tools = box(log, mount)
    spec = next(spec for spec in tools.specs() if spec.name == "Weather_more__forecast")
    assert spec.parameters["properties"]["days"]["minimum"] == 1
    result = tools.call_native("Weather_more__add", {"a": 1, "b": 2}, tool_call_id="x")
    assert (result.name, result.content) == ("Weather_more.add", "3")


def test_effects_follow_the_servers_hints_unless_overruled(mount: McpMount) -> None:
    assert by_name(mount).forecast.effects is False
    assert by_name(mount).forecast.remarks == []
    assert by_name(mount).hang.effects is True  # says nothing
    assert by_name(mount).hang.remarks == ["may have effects"]
    assert by_name(mount).say_text_2.effects is True  # not destructive is not yet read-only
    with start(name="trusted", effects=False) as other:
        assert other.name == "trusted"
        assert not any(one.effects for one in other.tools)


def test_a_namespace_cannot_hide_a_tool(log: EventLog, mount: McpMount) -> None:
    def other() -> None: ...

    with pytest.raises(BadInput, match="is already used"):
        Toolbox(
            [*mount.tools, tool(other, name="Weather_more")], journal=journal_of(log, Scope("s"))
        )
    with pytest.raises(BadInput, match="is already used"):
        Toolbox(
            [tool(other, name="Weather_more"), *mount.tools], journal=journal_of(log, Scope("s"))
        )


def test_the_environment_is_the_one_given(mount: McpMount, monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_name(mount).variable("SCROLL_TEST") == "given"
    monkeypatch.setenv("SCROLL_SECRET", "leaked")
    with start(name="other") as other:
        assert by_name(other).variable("SCROLL_SECRET") == "unset"


@pytest.mark.parametrize(
    ("command", "args", "said"),
    [
        ("no-such-command-here", [], "cannot be reached: .*No such file"),
        (sys.executable, ["-c", "import sys; sys.exit('no licence')"], "It last wrote: no licence"),
    ],
)
def test_a_server_that_does_not_start_says_why(command: str, args: list[str], said: str) -> None:
    with pytest.raises(ToolFailed, match=said):
        mount_stdio(command, args)


def test_the_extra_is_only_needed_to_mount() -> None:
    code = (
        "import sys; sys.modules['mcp'] = None\n"
        "from scroll_context.tools.mcp import mount_http\n"
        "try: mount_http('http://127.0.0.1:9')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("BadInput MCP servers need the mcp extra")
    assert "pip install './packages/scroll-context[mcp]'" in done.stdout


def test_a_server_that_never_answers_is_given_up_and_ended() -> None:
    mute = "import os, sys, time; print(os.getpid(), file=sys.stderr, flush=True); time.sleep(600)"
    with pytest.raises(
        ToolFailed, match=r"cannot be reached: no answer in time It last wrote: (\d+)"
    ) as caught:
        mount_stdio(sys.executable, ["-c", mute], connect_timeout=1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(caught.value).split()[-1]), 0)


def test_an_address_where_nobody_listens_says_so() -> None:
    with pytest.raises(
        ToolFailed, match=r"the MCP server at http://127\.0\.0\.1:9/mcp cannot be reached"
    ) as caught:
        mount_http("http://user:secret@127.0.0.1:9/mcp?token=secret")
    assert "secret" not in str(caught.value)


# calling --------------------------------------------------------------------------------------------------


def test_results_become_python_values(either: McpMount) -> None:
    space = by_name(either)
    assert space.forecast("Graz", days="2") == {"city": "Graz in C", "days": [20.5, 20.5]}
    assert space.add(2, 3) == 5
    assert space.say_text("words") == "words"
    assert space.say_text_2("words") == ["words", "and again"]
    see, gif, memo, pdf, link = space.blocks()
    assert (see, gif[:4], memo, pdf, link["uri"]) == (
        "see",
        b"GIF8",
        "a memo",
        b"%PDF-",
        "memo://3",
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"rows": [1, 2.5]}', {"rows": [1, 2.5]}),
        ("[]", []),
        ("[1] see the footnote", "[1] see the footnote"),
        ("5", "5"),
        ("Root(content='it\\'s [here]')", "it's [here]"),
        ('Root(result="[1, 2]")', [1, 2]),
        ("Root(content=[{'a': None}])", [{"a": None}]),
        ("Root(content=open('x'))", "Root(content=open('x'))"),
        ("Root(content='a', more=1)", "Root(content='a', more=1)"),
        ('{"content": "a"}', "a"),
        ('{"text": "a"}', {"text": "a"}),
    ],
)
def test_texts_become_the_values_that_they_spell(mount: McpMount, text: str, value: Any) -> None:
    assert by_name(mount).say_text(text) == value


def test_a_wrapper_of_one_field_is_taken_off_and_the_signature_says_so(mount: McpMount) -> None:
    assert by_name(mount).page.header == "Weather_more.page() -> str"
    assert by_name(mount).page() == "[1, 2]"


def test_a_number_reaches_the_server_as_it_was_sent(log: EventLog, either: McpMount) -> None:
    assert by_name(either).spelling.header == f"{either.name}.spelling(number: int | float) -> str"
    tools = box(log, either)
    for sent, arrives in ((1, "1"), ("1", "1"), (1.5, "1.5"), (2.0, "2.0"), (2**60, str(2**60))):
        assert tools.call(f"{either.name}.spelling", (sent,)).value == arrives
    native = tools.call_native(f"{either.name}__spelling", {"number": 1}, tool_call_id="x")
    assert native.content == "1"


def test_what_a_server_calls_idempotent_is_sent_again(tmp_path: Path) -> None:
    with start(name="mortal", max_concurrent=1) as mount:
        assert by_name(mount).set_once.remarks == [
            "has effects; the same call again changes nothing more",
            "runs one call at a time",
        ]
        assert by_name(mount).forecast.remarks == ["runs one call at a time"]
        description = " ".join(by_name(mount).set_once.doc.split())
        assert "the server says that repeating is harmless" in description
        assert by_name(mount).set_once(str(tmp_path / "marker")) == "alive"


def test_media_are_payloads_in_the_log(log: EventLog, either: McpMount) -> None:
    tools = box(log, either)
    outcome = tools.call(f"{either.name}.picture", (40_000,), cell_seq=1)
    event = log.get(outcome.result_seq)
    assert outcome.value.startswith(b"\x89PNG")
    assert event.payload is not None
    assert (event.payload.media_type, event.payload.size) == ("image/png", 40_008)
    mixed = log.get(tools.call(f"{either.name}.blocks").result_seq)
    said = json.loads(mixed.content)
    assert said[1]["media_type"] == "image/gif"
    assert log.get(said[1]["artifact"]).kind == "artifact"
    assert "R0lGOA" not in mixed.content


def test_large_results_are_values_too(log: EventLog, either: McpMount) -> None:
    outcome = box(log, either).call(f"{either.name}.long_text", (3_000,))
    assert outcome.value == "k" * 3_000 * 1024
    assert log.get(outcome.result_seq).content == "k" * 2_000


def test_a_tools_error_is_its_own_message(log: EventLog, either: McpMount) -> None:
    with pytest.raises(ToolFailed, match="the airport is closed"):
        box(log, either).call(f"{either.name}.fail", ("the airport is closed",))
    assert log.tail(1)[0].tool_state == "error"


def test_arguments_are_checked_on_both_sides(either: McpMount) -> None:
    with pytest.raises(BadInput, match="parameter 'days' must be int"):
        by_name(either).forecast("Graz", days="few")
    with pytest.raises(ToolFailed, match="greater than or equal to 1"):
        by_name(either).forecast("Graz", days=0)


def test_calls_run_at_once(log: EventLog, either: McpMount) -> None:
    tools = box(log, either)
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda _: tools.call(f"{either.name}.gather", (8,)), range(8)))
    assert [outcome.value for outcome in outcomes] == [8] * 8


def test_a_call_that_hangs_is_cancelled_and_the_server_goes_on(
    log: EventLog, either: McpMount
) -> None:
    tools = box(log, either, default_timeout=1.0)
    with pytest.raises(ToolFailed, match="was cancelled"):
        tools.call(f"{either.name}.hang")
    assert log.tail(1)[0].tool_state == "timeout"
    assert by_name(either).add(1, 1) == 2


def test_effects_are_confirmed(log: EventLog, mount: McpMount) -> None:
    asked: list[ToolUse] = []
    tools = box(log, mount, confirm=lambda use: bool(asked.append(use)))
    with pytest.raises(ToolFailed, match="the user refused it"):
        tools.call("Weather_more.die")
    assert [use.name for use in asked] == ["Weather_more.die"]
    assert tools.call("Weather_more.add", (1, 2)).value == 3


def test_headers_reach_the_server(web: McpMount) -> None:
    assert by_name(web).header("x-test") == "a header"


# death ----------------------------------------------------------------------------------------------------


def test_a_dead_server_is_an_error_and_the_next_call_connects_again(
    log: EventLog, mortal: McpMount
) -> None:
    tools = box(log, mortal)
    with pytest.raises(ToolFailed) as caught:
        tools.call("mortal.die")
    said = str(caught.value)
    assert "the MCP server 'mortal' was lost while mortal.die ran" in said
    assert "whether it took effect is not known" in said
    assert said.endswith("It last wrote: the disk is on fire")
    assert tools.call("mortal.add", (1, 2)).value == 3


def test_a_read_only_call_is_sent_again_once(tmp_path: Path, mortal: McpMount) -> None:
    assert by_name(mortal).die_once(str(tmp_path / "marker")) == "alive"


def test_all_calls_of_a_dead_server_fail(log: EventLog) -> None:
    with start(name="mortal", effects=True) as mount:
        tools = box(log, mount)
        failures: list[str] = []

        def wait_for_ever() -> None:
            try:
                tools.call("mortal.hang")
            except ToolFailed as error:
                failures.append(str(error))

        threads = [threading.Thread(target=wait_for_ever) for _ in range(4)]
        for thread in threads:
            thread.start()
        while by_name(mount).hanging_calls() < 4:
            pass
        with pytest.raises(ToolFailed):
            tools.call("mortal.die")
        for thread in threads:
            thread.join(timeout=60)
        assert len(failures) == 4
        assert tools.call("mortal.add", (1, 2)).value == 3


def test_an_http_server_that_is_gone_and_comes_back(log: EventLog) -> None:
    pytest.importorskip("uvicorn")
    server = HttpServer()
    with mount_http(server.url, name="web") as mount:
        tools = box(log, mount)
        assert tools.call("web.add", (1, 2)).value == 3
        server.stop()
        with pytest.raises(ToolFailed, match="cannot be reached"):
            tools.call("web.add", (1, 2))
        back = HttpServer(server.port)
        try:
            assert tools.call("web.add", (1, 2)).value == 3
        finally:
            back.stop()


def test_a_closed_mount_says_so_and_leaves_no_process() -> None:
    mount = start(name="brief")
    process = by_name(mount).process_id()
    mount.close()
    mount.close()
    with pytest.raises(ToolFailed, match="was closed; mount it again"):
        by_name(mount).add(1, 2)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
