"""A model that follows a script: deterministic, without a provider, for demonstrations and tests.

The script is a sequence with one entry a step, or one function of the request and the step number.
An entry is a `Reply`, a plain text (an answer), a function of the request, or an error, which is
raised: that is how a fault at step n is played. Usage is measured, not invented: prompt tokens by
`count`, and as cache reads the part of the prompt that repeats the beginning of the request before,
which is what a provider's prefix cache would give.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from scroll_context.contents import Usage
from scroll_context.errors import BadInput, ModelCancelled, ModelRefused
from scroll_context.messages import Message, ToolCall, canonical
from scroll_context.models.protocol import DEFAULT_WINDOW, OnText, Reply, Request

Answer = Reply | str
Entry = Answer | Callable[[Request], Answer] | Exception
Script = Sequence[Entry] | Callable[[Request, int], Answer]


def answer(text: str) -> Reply:
    """A final answer."""
    return Reply(text=text, finish_reason="stop")


def exec_cell(source: str, *, headline: str = "", text: str = "", tool: str = "exec") -> Reply:
    """A reply that runs one cell. The call gets its id when the script is played.

    >>> from scroll_context import exec_cell
    >>> exec_cell("print(1)").tool_calls[0].arguments
    {'source': 'print(1)'}
    """
    arguments = {"source": source, "headline": headline} if headline else {"source": source}
    return Reply(text=text, tool_calls=(ToolCall("", tool, arguments),), finish_reason="tool_call")


def load_script(path: Path) -> list[Answer]:
    """A script from a JSON file: a list of texts and of replies in their canonical form."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Reply | str])
    except OSError as error:
        raise BadInput(f"cannot read the script {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise BadInput(
            f"{path} is not a script (a JSON list of texts and replies): {error}"
        ) from error


def quarter_of_characters(text: str) -> int:
    """The usual rough token estimate, rounded up."""
    return (len(text) + 3) // 4


class ScriptedModel:
    """A model that plays a script. `pace` is the pause in seconds between pieces of streamed text.

    >>> from scroll_context import Agent, ScriptedModel, Session, Store
    >>> model = ScriptedModel(["Lisbon.", lambda request: f"{len(request.messages)} messages"])
    >>> with Store("trip.scroll", create=True) as store, Session.open(store) as session:
    ...     agent = Agent(session, model)
    ...     agent.run("Where do we go?").answer, agent.run("How long is this?").answer
    ('Lisbon.', '4 messages')
    """

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted",
        window: int = DEFAULT_WINDOW,
        count: Callable[[str], int] = quarter_of_characters,
        chunk: int = 24,
        pace: float = 0.0,
        keep: int = 100,
        takes_media: bool = True,
    ) -> None:
        self.name = name
        self.takes_media = takes_media
        self.window = window
        # The newest `keep` requests, oldest first.
        self.requests: deque[Request] = deque(maxlen=keep)
        self.steps = 0
        self._script = script
        self._count = count
        self._chunk = chunk
        self._pace = pace
        # The parts of the previous request, with their tokens.
        self._previous: list[tuple[bytes, int]] = []
        self._lock = threading.Lock()

    def reply(
        self,
        request: Request,
        *,
        on_text: OnText | None = None,
        cancel: threading.Event | None = None,
        timeout: float | None = None,  # noqa: ARG002 - a script is never slow enough to time out
    ) -> Reply:
        with self._lock:
            step = self.steps
            self.steps += 1
            self.requests.append(request)
        planned = self._planned(request, step)
        with self._lock:
            usage = self._usage(request, planned)
        calls = tuple(
            call if call.id else msgspec.structs.replace(call, id=f"call_{step}_{position}")
            for position, call in enumerate(planned.tool_calls)
        )
        self._stream(planned.text, on_text, cancel)
        return msgspec.structs.replace(
            planned,
            tool_calls=calls,
            usage=planned.usage if planned.usage.is_known else usage,
            model=planned.model or self.name,
        )

    def _planned(self, request: Request, step: int) -> Reply:
        if callable(self._script):
            entry: Entry = self._script(request, step)
        elif step < len(self._script):
            entry = self._script[step]
        else:
            raise ModelRefused(
                f"all {len(self._script)} entries of the script of {self.name} have been played"
            )
        if isinstance(entry, Exception):
            raise entry
        if callable(entry):
            entry = entry(request)
        return answer(entry) if isinstance(entry, str) else entry

    def _stream(self, text: str, on_text: OnText | None, cancel: threading.Event | None) -> None:
        for start in range(0, len(text), self._chunk):
            if cancel is not None and cancel.is_set():
                raise ModelCancelled("the reply was stopped by the caller", partial=text[:start])
            if on_text is not None:
                on_text(text[start : start + self._chunk])
            if self._pace:
                time.sleep(self._pace)

    def _usage(self, request: Request, reply: Reply) -> Usage:
        """Tokens of this exchange; text that repeats the start of the last request counts as read
        from cache."""
        units = [
            canonical(request.tools),
            *(canonical(_unmarked(message)) for message in request.messages),
        ]
        counted: list[tuple[bytes, int]] = []
        cached, intact = 0, True
        for position, unit in enumerate(units):
            before, tokens_before = (
                self._previous[position] if position < len(self._previous) else (b"", 0)
            )
            tokens = tokens_before if unit == before else self._count(unit.decode())
            counted.append((unit, tokens))
            if intact:
                intact = unit == before
                cached += tokens if intact else tokens * _shared(unit, before) // len(unit)
        self._previous = counted
        spoken = canonical(reply.message()).decode()
        return Usage(
            input_tokens=sum(tokens for _, tokens in counted),
            output_tokens=self._count(spoken),
            cache_read_tokens=cached,
        )


def _unmarked(message: Message) -> Message:
    """The message as a prefix cache compares it: a mark instructs the cache and is no part of the
    text.
    """
    return msgspec.structs.replace(message, cache_mark=False) if message.cache_mark else message


def _shared(first: bytes, second: bytes) -> int:
    """Length of the common beginning, by halving."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
