"""The scenario that every framework adapter must pass, with the real framework and a fake model.

A `ScenarioHost` is a small program on one framework: it keeps the framework's own list of messages,
plays the model from a script, and notes each request in one common form (`Sent`). The functions
here drive it: 120 steps in a small window, with images, parallel calls, structured answers, edits,
rewinds, refusals, cancellation, a kill and a resume. `check` then compares the requests, the host's
list and the log. `ScenarioTests` are the tests, for a test file that names its host.

Started as a program with the name of a host module and a folder, it works until a tool kills it.
"""

import asyncio
import copy
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import pytest
from pydantic import BaseModel

from provider_rules import broken_rule
from scroll_context.contents import media_of, usage_of
from scroll_context.events import Event, Kind
from scroll_context.hosts import HostAdapter, HostMessage, Layout
from scroll_context.hosts.adapter import Adapter
from scroll_context.session.explain import explain
from scroll_context.session.session import Session
from scroll_context.view.tokens import estimate
from snippets import DOCS, run_snippet

WINDOW = 7_000
SESSION = "trip"
FATAL = -1
"""The number of the report whose reader is killed."""

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360"
    "606060000000050001a5f645400000000049454e44ae426082"
)
"""A picture of one point, as a PNG file."""

Mode = Literal["sync", "async", "stream"]


class Says(NamedTuple):
    """The model answers with a text."""

    text: str


class Calls(NamedTuple):
    """The model calls tools, as (name, arguments)."""

    calls: tuple[tuple[str, dict[str, Any]], ...]
    text: str = ""


class Answers(NamedTuple):
    """The model gives the structured answer that it was asked for."""

    number: int


class Refuses(NamedTuple):
    """The provider refuses the request as too long."""


Play = Says | Calls | Answers | Refuses


class Call(NamedTuple):
    """One call of a reply."""

    id: str
    name: str
    arguments: dict[str, Any]


class Played(NamedTuple):
    """A reply of the model, for a host to put into its framework's form."""

    text: str = ""
    calls: tuple[Call, ...] = ()


class Answer(BaseModel):
    """The number that was asked for."""

    number: int


class Sent(NamedTuple):
    """One message, or one part of it, as a model is sent it."""

    role: str
    text: str = ""
    calls: tuple[str, ...] = ()
    call_id: str = ""
    images: int = 0


def sent_of(message: HostMessage) -> Sent:
    """For hosts that read requests as their adapter does."""
    calls = tuple(call.id for call in message.calls)
    return Sent(message.role, message.text, calls, message.call_id, len(message.media))


def reading(*numbers: int) -> Calls:
    """Calls that read reports, side by side."""
    return Calls(tuple(("read_report", {"number": number}) for number in numbers))


def cell(source: str) -> Calls:
    return Calls((("exec", {"source": source, "headline": "task | state | next | status"}),))


def report(number: int) -> str:
    """What the tool of the scenario returns."""
    if number == FATAL:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"report {number} code 4711-{number} " + f"filler words of report {number} " * 30


def read_report(number: int) -> str:
    """Read one report."""
    return report(number)


class ScenarioHost:
    """A program on a framework. Subclasses know the framework; the model's script is here."""

    # The adapter for the framework.
    adapter_type: ClassVar[Any]
    # The heading of the framework's section in the documentation.
    heading: ClassVar[str]
    # The ways to run an agent that the framework has.
    modes: ClassVar[tuple[Mode, ...]] = ("async",)
    # The tool by which the framework asks for a structured answer, if it is not asked for as text.
    answer_tool: ClassVar[str] = ""

    def __init__(self, adapter: HostAdapter | None) -> None:
        self.adapter = adapter
        self.requests: list[list[Sent]] = []
        # The newest list that the adapter described to its session, and the layout of it.
        self.followed: tuple[Sequence[HostMessage], Layout] | None = None
        if adapter is not None:
            self._watch(adapter)
        # The framework's own messages.
        self.messages: list[Any] = []
        self._before: list[list[Any]] = []
        self._plays: deque[Play] = deque()
        self._calls = 0
        self.prompts = 0

    def _watch(self, adapter: HostAdapter) -> None:
        follow = adapter.follow

        def watched(messages: Sequence[HostMessage], **options: Any) -> Layout:
            layout = follow(messages, **options)
            self.followed = messages, layout
            return layout

        adapter.follow = watched

    # what a subclass defines --------------------------------------------------------------------

    async def aturn(self, prompt: str, image: bytes, mode: Mode, structured: bool) -> str:
        """Run the agent on a prompt, and keep its messages."""
        raise NotImplementedError

    def turn(self, prompt: str, image: bytes, structured: bool) -> str:
        """Like `aturn`, for frameworks that have a synchronous way."""
        raise NotImplementedError

    def sent(self, messages: Sequence[Any]) -> list[Sent]:
        """Messages of the framework in the common form."""
        raise NotImplementedError

    def snippet_plays(self) -> list[Play]:
        """How the model answers in the snippet of the documentation."""
        return [Says("To Lisbon.")]

    def snippet_names(self) -> dict[str, Any]:
        """The names that the snippet of the documentation needs."""
        raise NotImplementedError

    def snippet_answer(self, names: dict[str, Any]) -> str:
        """The answer of the agent, from the names that the snippet leaves."""
        raise NotImplementedError

    def parts(self) -> list[Any]:
        """The framework's own messages, in parts that it only ever adds to."""
        return list(self.messages)

    def check_prefixes(self, events: Sequence[Event]) -> None:
        """Whether requests begin like those before them, except after an eviction."""
        check_prefixes(self, events)

    def overflow(self) -> Exception:
        """The error of a provider that refuses a request as too long."""
        return RuntimeError("This model's maximum context length is 7000 tokens.")

    # what the tests use -------------------------------------------------------------------------

    @classmethod
    def open(cls, place: Any, **parts: Any) -> Self:
        """The program with Scroll, in the session of the scenario."""
        return cls(cls.adapter_type(place, SESSION, window=WINDOW, **parts))

    def run(
        self,
        prompt: str,
        plays: Sequence[Play],
        *,
        mode: Mode | None = None,
        image: bytes = b"",
        structured: bool = False,
    ) -> str:
        """Run one turn; the model plays this part in it."""
        self._plays = deque(plays)
        self._before.append(list(self.messages))
        own = copy.deepcopy(self.parts()) if self.adapter else []
        self.prompts += 1
        mode = mode or self.modes[self.prompts % len(self.modes)]
        if mode == "sync":
            answer = self.turn(prompt, image, structured)
        else:
            answer = asyncio.run(self.aturn(prompt, image, mode, structured))
        assert not self._plays, f"not played: {self._plays}"
        assert self.parts()[: len(own)] == own, "the framework's own history was changed"
        return answer

    def cancel(self, prompt: str, plays: Sequence[Play], begun: threading.Event) -> None:
        """Begin a turn, and cancel its task once `begun` is set."""
        self._plays = deque(plays)
        self.prompts += 1

        async def cancelled() -> None:
            task = asyncio.create_task(self.aturn(prompt, b"", "async", False))
            assert await asyncio.to_thread(begun.wait, 60), "the cell did not begin"
            task.cancel()
            await asyncio.wait([task])

        asyncio.run(cancelled())
        self._plays.clear()

    def rewind(self, turns: int) -> None:
        """Take the last turns back, as a user does who edits a prompt or goes back."""
        for _ in range(turns):
            self.messages = self._before.pop()

    @property
    def session(self) -> Session:
        assert self.adapter is not None
        session: Session = self.adapter.session
        return session

    def save(self, file: Path) -> None:
        file.with_suffix(".new").write_bytes(pickle.dumps(self.messages))
        file.with_suffix(".new").rename(file)

    def load(self, file: Path) -> None:
        self.messages = pickle.loads(file.read_bytes())

    def work_for(self, steps: int) -> None:
        """Work for so many steps."""
        work(self, steps // 4)

    # what the fake model uses -------------------------------------------------------------------

    def play(self, request: list[Sent]) -> Played:
        """Note a request, and say how the model answers it."""
        self.requests.append(request)
        if rule := broken_rule("chat", {"messages": [_as_chat(message) for message in request]}):
            raise AssertionError(f"request {len(self.requests)}: {rule}")
        match self._plays.popleft():
            case Says(text):
                return Played(text)
            case Calls(calls, text):
                return Played(text, tuple(self._call(*call) for call in calls))
            case Answers(number) if self.answer_tool:
                return Played(calls=(self._call(self.answer_tool, {"number": number}),))
            case Answers(number):
                return Played(Answer(number=number).model_dump_json())
            case Refuses():
                raise self.overflow()
        raise AssertionError("there is no such play")

    def _call(self, name: str, arguments: dict[str, Any]) -> Call:
        self._calls += 1
        return Call(f"call-{os.getpid()}-{self._calls}", name, arguments)


def _as_chat(message: Sent) -> dict[str, Any]:
    """For the rules on pairs; several parts of one reply are several messages here."""
    chat: dict[str, Any] = {"role": message.role, "content": message.text or "(image)"}
    if message.calls:
        chat["tool_calls"] = [{"id": call_id} for call_id in message.calls]
    if message.role == "tool":
        chat["tool_call_id"] = message.call_id
    return chat


# the scenario -----------------------------------------------------------------------------------


def work(host: ScenarioHost, turns: int, first: int = 0) -> None:
    """Turns of four steps: two single reports, two side by side, an answer."""
    for turn in range(first, first + turns):
        number = 10 * turn
        plays = (
            reading(number),
            reading(number + 1),
            reading(number + 2, number + 3),
            Says(f"Turn {turn} is done: 4711-{number}."),
        )
        image = PIXEL if turn % 7 == 3 else b""
        host.run(f"Turn {turn}: read the reports from {number} on.", plays, image=image)
        if image:
            assert any(message.images for message in host.requests[-4]), "the image was sent"


def change_history(host: ScenarioHost) -> None:
    """An edited prompt, a rewind of three turns, and the same prompt twice."""
    host.run("A prompt with a tpyo.", [Says("What is a tpyo?")])
    host.rewind(1)
    host.run("A prompt without a typo.", [Says("Good.")])
    assert "tpyo" not in shown(host.requests[-1])
    for number in range(3):
        host.run(f"This is taken back: {number}.", [Says(f"Taken back {number}.")])
    host.rewind(3)
    host.run("Continue.", [Says("Once.")])
    assert "aken back" not in shown(host.requests[-1])
    host.run("Continue.", [Says("Twice.")])


def refusal(host: ScenarioHost, mode: Mode | None = None) -> None:
    """The provider refuses a request as too long; it is sent again, shorter."""
    answer = host.run("Is this too long?", [Refuses(), Says("Not any more.")], mode=mode)
    assert answer == "Not any more."
    refused, accepted = host.requests[-2:]
    assert text_tokens(accepted) < text_tokens(refused)


def structured_answers(host: ScenarioHost) -> None:
    for number in range(4):
        answer = host.run(f"How many? {number}", [Answers(number)], structured=True)
        assert answer == str(number)


def cells(host: ScenarioHost) -> None:
    """A report that left the view is read again by a cell."""
    assert "code 4711-11 " not in shown(host.requests[-1])
    source = "hit = ms.search('code 4711-11')[0]\nprint(hit['content'][:24])"
    host.run("What is the code of report 11?", [cell(source), Says("4711-11")])
    assert "code 4711-11 " in shown(host.requests[-1])


def recall_tool(host: ScenarioHost) -> None:
    """A report that left the view is read again with a plain recall tool."""
    assert "code 4711-11 " not in shown(host.requests[-1])
    search = Calls((("search", {"query": "code 4711-11", "k": 1}),))
    host.run("What is the code of report 11?", [search, Says("4711-11")])
    assert "code 4711-11 " in shown(host.requests[-1])


def shown(request: Sequence[Sent]) -> str:
    return "\n".join(message.text for message in request)


def text_tokens(request: Sequence[Sent]) -> int:
    """Estimated tokens of a request's texts."""
    return sum(estimate(message.text) for message in request)


# what must hold ---------------------------------------------------------------------------------


def check(host: ScenarioHost) -> None:
    """Compare the requests of a host, its own list, and the log, as its adapter declares."""
    adapter = host.adapter
    assert adapter is not None
    events = list(host.session.events())
    if adapter.bounds:
        _check_requests(host, host.session, events)
        host.check_prefixes(events)
        _check_bytes(host, host.session)
    if adapter.stores:
        _check_texts(host, host.session, events)
    calls = [event.tool_call_id for event in events if event.kind == Kind.TOOL_RESULT]
    assert len(calls) == len(set(calls)), "a result was recorded twice"


def _check_requests(host: ScenarioHost, session: Session, events: Sequence[Event]) -> None:
    """Every request is within the window, and its record says what was sent."""
    requests = [event for event in events if event.kind == Kind.REQUEST]
    # The window holds by the count of the model, if it has one, and by our own estimate.
    counted = [usage_of(event).input_tokens for event in events if event.role == "assistant"]
    assert max(counted) <= WINDOW, f"the model counted {max(counted)} tokens"
    largest = max(text_tokens(request) for request in host.requests)
    assert largest <= WINDOW, f"{largest} tokens were sent"
    assert max(event.metadata["tokens"] for event in requests) <= WINDOW
    assert sum(event.kind == Kind.EVICTION for event in events) >= 2, "the window was never full"
    for event in requests:
        assert explain(session.store, event.seq).verified, event.seq


def _check_bytes(host: ScenarioHost, session: Session) -> None:
    """Each message of the newest list has an address, which gives back exactly that message."""
    assert host.followed is not None
    messages, layout = host.followed
    log = session.store.log
    addresses = [seq for seq in layout.seqs if seq]
    assert len(addresses) == len(set(addresses)), "two messages have one address"
    images = 0
    for message, seq in zip(messages, layout.seqs, strict=True):
        if message.role == "system":
            continue
        event = log.get(seq)
        assert log.text_or_preview(event) == message.text, seq
        calls = [call["id"] for call in event.metadata.get("tool_calls", ())]
        assert calls == [call.id for call in message.calls], seq
        bodies = [log.payloads.read(item.digest) for item in media_of(event)]
        assert bodies == [item.data for item in message.media], seq
        images += bodies.count(PIXEL)
    assert images >= 2, "the list has images"


def _check_texts(host: ScenarioHost, session: Session, events: Sequence[Event]) -> None:
    """Every text of the host's list has its event; no message was recorded twice."""
    recorded: Counter[tuple[str, str]] = Counter()
    # Reminders of the framework, which it may repeat.
    notices: Counter[tuple[str, str]] = Counter()
    for event in events:
        text = session.store.log.text_or_preview(session.store.log.get(event.seq))
        if event.kind in (Kind.CONVERSATION, Kind.TOOL_RESULT, Kind.OBSERVATION):
            recorded[event.role, text] += 1
        elif event.kind == Kind.NOTICE:
            notices[event.role, text] += 1
    own = [message for message in host.sent(host.messages) if message.role != "system"]
    counts = Counter((part.role, part.text) for part in own)
    for (role, text), count in counts.items():
        events_of_text = recorded[role, text] + notices[role, text]
        assert events_of_text >= count, f"{role}: {text[:80]!r}"
    repeated = {key: count for key, count in recorded.items() if count > max(1, counts[key])}
    assert not any(text for _, text in repeated), f"recorded too often: {repeated}"
    users = [event for event in events if event.is_from_user]
    assert len(users) == host.prompts
    assert len(shown(own)) > 4 * WINDOW, "the host's own list is complete"


def check_prefixes(host: ScenarioHost, events: Sequence[Event]) -> None:
    """Between evictions, a request is the one before it and what is new."""
    requests = [event for event in events if event.kind == Kind.REQUEST][-len(host.requests) :]
    rewriting = [
        event.seq
        for event in events
        if event.kind in (Kind.EVICTION, Kind.RETRACTION)
        or (event.kind == Kind.SESSION and "window" in event.metadata)
    ]
    pairs = list(zip(requests, host.requests, strict=True))
    kept = 0
    for (event, request), (later, after) in pairwise(pairs):
        if not any(event.seq < seq < later.seq for seq in rewriting):
            # The list of variables comes last, in its own request only.
            before = request[:-1] if event.metadata["digest"] else request
            assert after[: len(before)] == before, f"the prefix changed at request {later.seq}"
            kept += 1
    assert kept > len(pairs) / 2


def documented_jobs(kind: type[Adapter]) -> list[bool]:
    """What the table of the documentation says about an adapter: bounds, stores, executes."""
    name = f"`{kind.__module__.removeprefix('scroll_context.')}.{kind.__name__}`"
    page = (DOCS / "FRAMEWORKS.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if f" | {name} | " in line]
    assert len(rows) == 1, f"{name} has {len(rows)} rows"
    return [cell == "yes" for cell in rows[0][2:5]]


def documented_modes(heading: str) -> set[Mode]:
    """The ways to run an agent that the documentation's second table names for a framework."""
    page = (DOCS / "FRAMEWORKS.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith(f"| {heading} | ")]
    (row,) = [line.split(" | ") for line in lines if line.count("|") == 7]
    modes: tuple[Mode, ...] = ("sync", "async", "stream")
    return {mode for mode, cell in zip(modes, row[1:4], strict=True) if cell.startswith("yes")}


# the complete tests -----------------------------------------------------------------------------

TURNS_BEFORE_KILL = 10


def long_run(kind: type[ScenarioHost], folder: Path) -> None:
    """120 steps in a small window, with everything that users and providers do."""
    host = kind.open(folder)
    assert host.adapter is not None
    with host.adapter as adapter:
        work(host, 20)
        if adapter.executes:
            cells(host)
        else:
            recall_tool(host)
        structured_answers(host)
        change_history(host)
        refusal(host)
        work(host, 8, first=20)
        assert len(host.requests) >= 120
        assert documented_jobs(type(adapter)) == [adapter.bounds, adapter.stores, adapter.executes]
        assert documented_modes(host.heading) == set(host.modes)
        check(host)


def cancellation(kind: type[ScenarioHost], folder: Path) -> None:
    """A cancelled run interrupts its cell, and the variables stay."""
    begun = threading.Event()

    def begin() -> None:
        """Say that the cell is at work."""
        begun.set()

    host = kind.open(folder, tools=[begin])
    assert host.adapter is not None
    with host.adapter:
        host.cancel("Work.", [cell("kept = 7\nbegin()\nwhile True:\n    pass")], begun)
        host.run("Go on.", [cell("print('kept', kept)"), Says("7")])
        assert "kept 7" in shown(host.requests[-1])


def refused_requests(kind: type[ScenarioHost], folder: Path) -> None:
    """In every mode of the framework, a request that is refused is sent again, shorter."""
    for mode in kind.modes:
        host = kind.open(folder / mode)
        assert host.adapter is not None
        with host.adapter:
            work(host, 3)
            refusal(host, mode)


def kill_and_resume(kind: type[ScenarioHost], folder: Path) -> None:
    """A killed process is resumed with the messages that the host had saved."""
    module = kind.__module__
    done = subprocess.run(
        [sys.executable, __file__, module, str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    host = kind.open(folder / "store")
    assert host.adapter is not None
    with host.adapter:
        host.load(folder / "messages")
        host.prompts = TURNS_BEFORE_KILL + 1
        work(host, 10, first=TURNS_BEFORE_KILL)
        assert "fatal" not in shown(host.requests[-1])
        check(host)


def work_until_killed(module: str, folder: Path) -> None:
    """What the other process does."""
    host = importlib.import_module(module).Host.open(folder / "store")
    for turn in range(TURNS_BEFORE_KILL):
        work(host, 1, first=turn)
        host.save(folder / "messages")
    host.run("Read the fatal report.", [reading(FATAL)])


class ScenarioTests:
    """The tests of an adapter that bounds. A test file names its host in a subclass."""

    host: ClassVar[type[ScenarioHost]]

    def test_120_steps_in_a_small_window(self, folder: Path) -> None:
        long_run(self.host, folder)

    def test_a_cancelled_run_interrupts_its_cell_and_the_variables_stay(self, folder: Path) -> None:
        cancellation(self.host, folder)

    def test_a_refused_request_is_sent_again_in_every_mode(self, tmp_path: Path) -> None:
        refused_requests(self.host, tmp_path)

    def test_a_killed_process_is_resumed_with_the_history_of_the_host(self, tmp_path: Path) -> None:
        kill_and_resume(self.host, tmp_path)

    def test_the_snippet_of_the_documentation(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        host = self.host(None)
        host._plays.extend(host.snippet_plays())
        names = run_snippet("FRAMEWORKS.md", host.heading, host.snippet_names())
        assert host.snippet_answer(names) == "To Lisbon."
        assert (tmp_path / "work.scroll" / "log.db").is_file()


# cost -------------------------------------------------------------------------------------------


def tokens_sent(host: ScenarioHost, steps: int = 200) -> int:
    """Estimated tokens of all requests of a run with so many steps."""
    host.work_for(steps)
    assert len(host.requests) == steps
    return sum(text_tokens(request) for request in host.requests)


if __name__ == "__main__":
    # The host module imports this one by its name, and must get the same classes.
    importlib.import_module("host_scenario").work_until_killed(sys.argv[1], Path(sys.argv[2]))
