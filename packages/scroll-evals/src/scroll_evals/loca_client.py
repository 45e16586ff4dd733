"""The five requests that LOCA-bench's sandbox server answers, and its answers as values.

The client connects only to 127.0.0.1, and uses no proxy. If an answer does not arrive whole (no
connection, no answer in time, a refusal, bytes that are not the expected JSON), it raises
`ToolFailed` with the server's own words. It never sends a request twice, and it does not know what
an answer means for a trial.
"""

import http.client
from typing import Any, TypeVar

import msgspec

from scroll_context.errors import ToolFailed

T = TypeVar("T")

HEALTH_SECONDS = 5.0
EXECUTE_SECONDS = 125.0  # the server itself gives a tool 120 s
EVALUATE_SECONDS = 300.0
CLEANUP_SECONDS = 30.0
MAX_ANSWER = 256 << 20  # bytes
SHOWN = 500  # characters of an answer that an error repeats


class Function(msgspec.Struct, frozen=True):
    """A tool as the server describes it; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )


class Offered(msgspec.Struct, frozen=True):
    """The wrapping that a function comes in."""

    function: Function


class Opened(msgspec.Struct, frozen=True):
    """An environment that the server says it has set up.

    `observation` is the task's official text.
    """

    session_id: str
    observation: str
    tools: tuple[Offered, ...]


class Executed(msgspec.Struct, frozen=True):
    """The answer of a tool.

    `success` is a guess from its words: a result that mentions an error counts as none.
    """

    content: str
    success: bool = True


class Evaluation(msgspec.Struct, frozen=True):
    """The verifier's word on the state of the environment."""

    reward: float
    observation: str = ""
    truncated: bool = False
    info: dict[str, Any] = {}


class _Health(msgspec.Struct, frozen=True):
    status: str


class _Refusal(msgspec.Struct, frozen=True):
    detail: str


class LocaClient:
    """Speaks to one server.

    Requests may be made from several threads; each has a connection of its own.
    """

    def __init__(self, port: int) -> None:
        self.port = port

    def is_healthy(self) -> bool:
        """Whether the server answers and calls itself well."""
        try:
            return self._get("health", _Health, HEALTH_SECONDS).status == "ok"
        except ToolFailed:
            return False

    def init(
        self,
        name: str,
        config: dict[str, Any],
        task_workspace: str,
        agent_workspace: str,
        seconds: float,
    ) -> Opened:
        """Set up an environment. An answer does not mean that its contents were generated."""
        body = {
            "task_name": name,
            "config": config,
            "task_workspace": task_workspace,
            "agent_workspace": agent_workspace,
        }
        return self._post("init", body, Opened, seconds)

    def execute(
        self, session_id: str, tool: str, arguments: dict[str, Any], call_id: str
    ) -> Executed:
        body = {
            "session_id": session_id,
            "tool_name": tool,
            "arguments": arguments,
            "tool_call_id": call_id,
        }
        return self._post("execute_tool", body, Executed, EXECUTE_SECONDS)

    def evaluate(self, session_id: str) -> Evaluation:
        """Have the environment verified as it is now. It cannot be used afterwards."""
        found = self._post(
            "evaluate",
            {"session_id": session_id, "action": "claim_done"},
            Evaluation,
            EVALUATE_SECONDS,
        )
        if not 0.0 <= found.reward <= 1.0:
            raise ToolFailed(
                f"the sandbox server's evaluate gave a reward of {found.reward}, which is not from 0 to 1"
            )
        return found

    def cleanup(self, session_id: str) -> None:
        """Have the environment taken down."""
        self._post("cleanup", {"session_id": session_id}, dict[str, Any], CLEANUP_SECONDS)

    def _get(self, endpoint: str, wanted: type[T], seconds: float) -> T:
        return self._request("GET", endpoint, None, wanted, seconds)

    def _post(self, endpoint: str, body: dict[str, Any], wanted: type[T], seconds: float) -> T:
        return self._request("POST", endpoint, msgspec.json.encode(body), wanted, seconds)

    def _request(
        self, method: str, endpoint: str, body: bytes | None, wanted: type[T], seconds: float
    ) -> T:
        where = f"the sandbox server's {endpoint}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(
                method, f"/api/v1/{endpoint}", body, {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            answer = response.read(MAX_ANSWER + 1)
        except TimeoutError:
            raise ToolFailed(
                f"{where} gave no answer in {seconds:g} s", kind="TimeoutError", state="timeout"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise ToolFailed(
                f"{where} cannot be reached: {reason}", kind="ConnectionError"
            ) from error
        finally:
            connection.close()
        if len(answer) > MAX_ANSWER:
            raise ToolFailed(f"{where} answered with more than {MAX_ANSWER:,} bytes")
        if response.status != http.client.OK:
            raise ToolFailed(f"{where} refused (status {response.status}): {_detail(answer)}")
        try:
            return msgspec.json.decode(answer, type=wanted)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ToolFailed(
                f"{where} gave an unexpected answer ({error}): {_shown(answer)}"
            ) from error


def _detail(answer: bytes) -> str:
    """The text of a refusal."""
    try:
        return msgspec.json.decode(answer, type=_Refusal).detail
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _shown(answer)


def _shown(answer: bytes) -> str:
    return answer[: 4 * SHOWN].decode(errors="replace")[:SHOWN]
