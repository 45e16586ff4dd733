"""A provider on loopback that follows a script, for Messages, Chat Completions and Responses.

It refuses with HTTP 400, in the provider's words, what a provider refuses: unpaired calls, empty
texts, more than four cache marks, thinking whose prefix has changed since it was issued, and a
request longer than the window. It records every request with what it repeats of the request before,
and reports usage accordingly. `upstream_wire` writes the replies in the three protocols.
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import msgspec

from provider_rules import Json, broken_rule, extends, normal_form
from upstream_wire import WIRES, Answer, Call, Issued

PATHS = {"/chat/completions": "chat", "/responses": "responses", "/messages": "messages"}


class Refusal(msgspec.Struct, frozen=True):
    """An HTTP error; `is_too_long` asks for the provider's words for a window that is full."""

    status: int = 400
    message: str = "Overloaded"
    headers: dict[str, str] = {}
    is_too_long: bool = False


OVERLOADED = Refusal(529, "Overloaded", {"retry-after": "0", "retry-after-ms": "1"})
RATE_LIMITED = Refusal(429, "Too many requests", {"retry-after": "0", "retry-after-ms": "1"})
TOO_LONG = Refusal(is_too_long=True)


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What a script decides by."""

    protocol: str
    body: Json
    # The number of this reply in its conversation, from 1; a retry has the same number.
    number: int
    # How often this reply has been asked for, from 1.
    attempt: int

    @property
    def tools(self) -> set[str]:
        listed = list(self.body.get("tools") or [])
        # Codex gives newer models their tools in the list, in a namespace.
        for item in self.body.get("input") or []:
            if isinstance(item, dict) and item.get("type") == "additional_tools":
                listed += item["tools"]
        for tool in list(listed):
            listed += tool.get("tools") or []
        return {tool.get("name") or tool.get("function", {}).get("name") or "" for tool in listed}

    @property
    def text(self) -> str:
        return json.dumps(self.body, ensure_ascii=False)


Script = Callable[[Turn], Answer | Refusal]


class Seen(msgspec.Struct, kw_only=True):
    """One request, and what became of it."""

    protocol: str
    conversation: str
    headers: dict[str, str]
    body: bytes
    is_streamed: bool
    # Estimated tokens, and how many of them the request before had at its beginning.
    tokens: int = 0
    repeated: int = 0
    # Whether the request before, cache marks aside, is the beginning of this one.
    extends: bool = True
    status: int = 0
    refusal: str = ""
    # Why a provider would refuse it; "" for a scripted refusal.
    broken_rule: str = ""


class ScriptedUpstream:
    """`with ScriptedUpstream(script, window=30_000) as upstream`: `upstream.url` is its address.

    `conversation` names the conversation of a request from its headers and body; by default there
    is only one. Without `binds_tools`, thinking is bound to the list alone.
    """

    def __init__(
        self,
        script: Script,
        *,
        window: int = 200_000,
        binds_thinking: bool = True,
        binds_tools: bool = True,
        conversation: Callable[[Mapping[str, str], Json], str] = lambda *_: "",
    ) -> None:
        self.requests: list[Seen] = []
        self._script = script
        self._window = window
        self._binds_thinking = binds_thinking
        self._binds_tools = binds_tools
        self._conversation = conversation
        self._lock = threading.Lock()
        self._previous: dict[str, list[bytes]] = {}
        self._replies: dict[str, int] = {}
        self._attempts: dict[str, int] = {}
        # The hash of the prefix that each signature is bound to, and the reasoning that an id needs.
        self._bound: dict[str, str] = {}
        self._needs: dict[str, str] = {}
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def accepted(self) -> list[Seen]:
        return [request for request in self.requests if request.status == 200]

    @property
    def broken_rules(self) -> list[str]:
        """Why requests were refused that the script would have answered."""
        return [request.broken_rule for request in self.requests if request.broken_rule]

    @property
    def prefix_changes(self) -> int:
        """How many accepted requests do not begin with the one before."""
        return sum(not request.extends for request in self.accepted)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def answer(self, protocol: str, headers: dict[str, str], raw: bytes) -> "Outcome":
        """Judge a request and follow the script."""
        body = json.loads(raw)
        with self._lock:
            name = self._conversation(headers, body)
            pieces = normal_form(protocol, body)
            seen = self._measured(protocol, name, headers, raw, body, pieces)
            self.requests.append(seen)
            number = self._replies.get(name, 0) + 1
            attempt = self._attempts[name] = self._attempts.get(name, 0) + 1
            rule = broken_rule(protocol, body) or self._broken_binding(protocol, body, pieces)
            if rule:
                seen.broken_rule = rule
                return self._refused(seen, Refusal(message=rule))
            if seen.tokens > self._window:
                return self._refused(seen, TOO_LONG)
            turn = Turn(protocol=protocol, body=body, number=number, attempt=attempt)
            answer = self._script(turn)
            if isinstance(answer, Refusal):
                return self._refused(seen, answer)
            seen.status = 200
            # A provider has read the request, and has its prefix in the cache, also if the reply is
            # cut: the client's second attempt repeats it.
            self._previous[name] = pieces
            issued = Issued(f"{name}{number}", answer, seen.tokens, seen.repeated, body)
            if not answer.cut:
                self._replies[name] = number
                self._attempts[name] = 0
                self._bind(issued, pieces)
            return Outcome(protocol, seen, issued=issued)

    def _measured(
        self,
        protocol: str,
        name: str,
        headers: dict[str, str],
        raw: bytes,
        body: Json,
        pieces: list[bytes],
    ) -> Seen:
        previous = self._previous.get(name)
        complete, before = b"".join(pieces), b"".join(previous or [])
        repeated = _common(before, complete)
        return Seen(
            protocol=protocol,
            conversation=name,
            headers=headers,
            body=raw,
            is_streamed=bool(body.get("stream")),
            tokens=len(complete) * 2 // 7,
            repeated=repeated * 2 // 7,
            extends=previous is None or extends(pieces, previous),
        )

    def _refused(self, seen: Seen, refusal: Refusal) -> "Outcome":
        message = refusal.message
        if refusal.is_too_long:
            message = WIRES[seen.protocol].too_long(seen.tokens, self._window)
        seen.status, seen.refusal = refusal.status, message
        return Outcome(seen.protocol, seen, refusal=refusal)

    def _bind(self, issued: Issued, pieces: list[bytes]) -> None:
        if issued.answer.thinking:
            self._bound[issued.signature] = self._digest(pieces)
            self._needs |= dict.fromkeys(issued.item_ids, issued.reasoning_id)

    def _broken_binding(self, protocol: str, body: Json, pieces: list[bytes]) -> str:
        """Why thinking in the request is not valid any more."""
        if not self._binds_thinking:
            return ""
        wire = WIRES[protocol]
        for position, signature in wire.signatures(body):
            if self._bound.get(signature) != self._digest(pieces[: position + 1]):
                return wire.invalid_thinking(position)
        ids = wire.item_ids(body)
        for item_id in sorted(ids):
            if self._needs.get(item_id, item_id) not in ids:
                return (
                    f"Item '{item_id}' was provided without its required 'reasoning' item: "
                    f"'{self._needs[item_id]}'."
                )
        return ""

    def _digest(self, pieces: Sequence[bytes]) -> str:
        bound = pieces if self._binds_tools else pieces[1:]
        return hashlib.sha256(b"\n".join(bound)).hexdigest()


class Outcome(msgspec.Struct, frozen=True):
    """What a request is answered with: a refusal, or a reply."""

    protocol: str
    seen: Seen
    refusal: Refusal | None = None
    issued: Issued | None = None


def _common(first: bytes, second: bytes) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


# scripts ----------------------------------------------------------------------------------------


def reading(
    turns: int,
    *,
    tool: str = "read_file",
    parallel_every: int = 5,
    thinking: bool = True,
    recall_every: int = 0,
    events: Mapping[int, Refusal | str] | None = None,
) -> Script:
    """Read one file per turn, then say that it is done.

    Every few turns two files are read at once, or something that was folded is recalled by its
    seq. `events` are refusals, or "cut", for the first attempt at a turn.
    """
    events = events or {}

    def script(turn: Turn) -> Answer | Refusal:
        event = events.get(turn.number)
        if isinstance(event, Refusal) and turn.attempt == 1:
            return event
        cut = event == "cut" and turn.attempt == 1
        number = turn.number
        if number > turns:
            return Answer(f"All {turns} files are read.", thinking=thinking, cut=cut)
        if recall_every and number % recall_every == 0:
            recall = _recall(turn)
            if recall is not None:
                return Answer("I look it up.", (recall,), thinking, cut)
        calls = [Call(tool, {"path": f"part-{number:04d}"})]
        if parallel_every and number % parallel_every == 0:
            calls.append(Call(tool, {"path": f"part-{number:04d}-b"}))
        return Answer(f"Step {number}: I read the next file.", tuple(calls), thinking, cut)

    return script


def _recall(turn: Turn) -> Call | None:
    """A call of the client's recall tool for the first seq that the request names."""
    tools = sorted(name for name in turn.tools if name.endswith("expand"))
    seqs = re.findall(r"seq (\d+)", turn.text)
    return Call(tools[0], {"seq": int(seqs[0])}) if tools and seqs else None


# HTTP -------------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, upstream: ScriptedUpstream) -> None:
        super().__init__(("127.0.0.1", 0), _Exchange)
        self.upstream = upstream

    def handle_error(self, *_: Any) -> None:
        """A client that was killed is no fault of the server's."""


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body leave in one packet, and without waiting for the client's acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server

    def do_HEAD(self) -> None:
        self._respond(200, b"")

    def do_GET(self) -> None:
        is_socket = self.headers.get("upgrade", "").lower() == "websocket"
        self._respond(426 if is_socket else 404, b"{}")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        path = self.path.partition("?")[0]
        if path.endswith("/count_tokens"):
            self._respond(200, json.dumps({"input_tokens": len(raw) * 2 // 7}).encode())
            return
        protocol = next((name for end, name in PATHS.items() if path.endswith(end)), None)
        if protocol is None:
            self._respond(404, b"{}")
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        outcome = self.server.upstream.answer(protocol, headers, raw)
        try:
            self._play(outcome)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _play(self, outcome: Outcome) -> None:
        wire = WIRES[outcome.protocol]
        if outcome.refusal is not None:
            body = wire.error(outcome.seen.status, outcome.seen.refusal)
            self._respond(outcome.seen.status, json.dumps(body).encode(), outcome.refusal.headers)
            return
        issued = outcome.issued
        assert issued is not None
        if outcome.seen.is_streamed:
            self._stream(wire.events(issued), cut=issued.answer.cut)
        elif issued.answer.cut:
            self.close_connection = True
        else:
            self._respond(200, json.dumps(wire.reply(issued)).encode())

    def _respond(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _stream(self, events: Iterator[Json | str], *, cut: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        listed = list(events)
        for event in listed[: len(listed) // 2] if cut else listed:
            data = event if isinstance(event, str) else json.dumps(event)
            kind = event.get("type") if isinstance(event, dict) else None
            text = (f"event: {kind}\n" if kind else "") + f"data: {data}\n\n"
            content = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
            self.wfile.flush()
        if cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Keep the test output clean."""
