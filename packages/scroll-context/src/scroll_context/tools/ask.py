"""`ask` and `ask_many`: a second model reads records on behalf of a cell, so that they need not be
printed.

Optional, budgeted, recorded and cached. A question and its answer are a tool call and its result in
the log, with the cell they were asked in, so that an answer's origin can be traced. The same
question about the same text is asked once: concurrent callers share the answer, and later ones get
it from the log. The name of the model is part of the question. A cell that has ended asks nothing
more; a question that was already sent is not stopped. The model is a function: this layer knows no
models.
"""

import hashlib
import queue
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from scroll_context.background import in_thread
from scroll_context.errors import BadInput, LimitReached
from scroll_context.events import Event, Kind
from scroll_context.kernel.protocol import Prelude
from scroll_context.kernel.results import CapabilityResult
from scroll_context.log.journal import Journal
from scroll_context.log.rows import number_at
from scroll_context.work import Work

# Characters of one context.
CONTEXT_LIMIT = 400_000

_PRELUDE = '''
"""A second model that reads what you do not want to print."""


def ask(prompt, context=""):
    """The answer of a second model that is given `prompt` and the text or value `context`."""
    return call("ask.one", prompt, _text(context))


def ask_many(prompt, contexts):
    """The answers to one prompt about each of several texts, in their order, asked at once."""
    return call("ask.many", prompt, [_text(context) for context in contexts])


def _text(value):
    return value if isinstance(value, str) else repr(value)
'''


class AskBudget(msgspec.Struct, frozen=True):
    """The most that `ask` may cost one session."""

    calls: int = 200
    tokens: int = 1_000_000
    """Input and output together."""
    parallel: int = 8


class AskReply(msgspec.Struct, frozen=True):
    """The answer of the second model, and its cost."""

    text: str
    tokens: int = 0


class AskModel(msgspec.Struct, frozen=True):
    """A second model: its name, and the function that asks it about a prompt and a context."""

    name: str
    answer: Callable[[str, str], AskReply]


class Ask:
    """The sub-model calls of one session. Safe to use from several threads.

    A bare function does not say which model it asks, so only this object reuses its answers.
    """

    def __init__(
        self,
        model: AskModel | Callable[[str, str], AskReply],
        journal: Journal,
        budget: AskBudget | None = None,
    ) -> None:
        self.budget = budget or AskBudget()
        self._model = model if isinstance(model, AskModel) else AskModel("", model)
        self._cached_under = self._model.name or uuid.uuid4().hex
        self._journal = journal
        self._lock = threading.Lock()
        # Questions that wait for their answer, by source key.
        self._pending: dict[str, Future[CapabilityResult]] = {}
        self._calls, self._tokens = _spent(journal)

    def prelude(self) -> Prelude:
        return Prelude("asking", _PRELUDE, ("ask", "ask_many"))

    def methods(
        self, cell_seq: int, work: Work, given: Mapping[str, Any] | None = None
    ) -> Mapping[str, Callable[..., CapabilityResult]]:
        """The calls that the cell at a seq may make.

        `work` is over when the cell has ended; `given` names the events that it has read so far.
        """
        facts = {"inside_cell": cell_seq, **(given or {})}
        return {
            "ask.one": lambda prompt, context="": self._one(prompt, context, facts, work),
            "ask.many": lambda prompt, contexts: self._many(prompt, contexts, facts, work),
        }

    def _one(
        self, prompt: str, context: str, facts: dict[str, Any], work: Work
    ) -> CapabilityResult:
        if not isinstance(prompt, str) or not isinstance(context, str):
            raise BadInput("ask takes a prompt and a context, both as text")
        if len(context) > CONTEXT_LIMIT:
            raise BadInput(
                f"the context has {len(context):,} characters; ask reads at most "
                f"{CONTEXT_LIMIT:,}. Split it and use ask_many."
            )
        if work.is_over:
            raise LimitReached("the cell that asked this has ended; nothing was asked")
        question = [self._journal.scope.agent_id, self._cached_under, prompt, context]
        key = "ask:" + hashlib.sha256(msgspec.json.encode(question)).hexdigest()
        mine: Future[CapabilityResult] = Future()
        with self._lock:
            first = self._pending.setdefault(key, mine)
        if first is not mine:
            return first.result()
        # An error is for all who wait for the same answer, and is raised below.
        try:
            earlier = self._journal.log.find_source(key)
            if earlier is not None:
                mine.set_result(CapabilityResult(self._journal.log.text(earlier), (earlier.seq,)))
            else:
                mine.set_result(self._ask_model(key, prompt, context, facts))
        except BaseException as error:  # noqa: BLE001
            mine.set_exception(error)
        finally:
            with self._lock:
                del self._pending[key]
        return mine.result()

    def _ask_model(
        self, key: str, prompt: str, context: str, facts: dict[str, Any]
    ) -> CapabilityResult:
        self._spend()
        # It is an echo, because a search must find the text itself and not a question about it.
        metadata: dict[str, Any] = {**facts, "echo": True, "model": self._model.name}
        question = msgspec.json.encode({"prompt": prompt, "context": context}).decode()
        call = self._append(
            Kind.TOOL_CALL, role="assistant", content=question, metadata=metadata
        ).seq
        try:
            reply = self._model.answer(prompt, context)
        except Exception as error:
            # The model's function is foreign code.
            self._append(
                Kind.TOOL_RESULT,
                role="tool",
                content=f"{type(error).__name__}: {error}",
                reply_to=call,
                tool_state="error",
                metadata=metadata,
            )
            raise
        with self._lock:
            self._tokens += reply.tokens
        fields: dict[str, Any] = {
            "role": "tool",
            "content": reply.text,
            "reply_to": call,
            "tool_state": "ok",
            "metadata": {**metadata, "tokens": reply.tokens},
        }
        event, is_new = self._journal.append_once(
            key, self._journal.draft(Kind.TOOL_RESULT, name="ask", **fields)
        )
        if not is_new:
            # Another process asked the same question, and was first.
            event = self._append(Kind.TOOL_RESULT, **fields)
        return CapabilityResult(reply.text, (event.seq,))

    def _append(self, kind: str, **fields: Any) -> Event:
        return self._journal.append(self._journal.draft(kind, name="ask", **fields))

    def _many(
        self, prompt: str, contexts: Sequence[Any], facts: dict[str, Any], work: Work
    ) -> CapabilityResult:
        if not isinstance(contexts, list | tuple):
            raise BadInput("ask_many takes a prompt and a list of contexts")
        futures: list[Future[CapabilityResult]] = [Future() for _ in contexts]
        waiting: queue.SimpleQueue[tuple[Future[CapabilityResult], Any]] = queue.SimpleQueue()
        for pair in zip(futures, contexts, strict=True):
            waiting.put(pair)

        def answer_waiting() -> None:
            while True:
                try:
                    future, context = waiting.get_nowait()
                except queue.Empty:
                    return
                # An error is raised where the answers are collected.
                try:
                    future.set_result(self._one(prompt, context, facts, work))
                except BaseException as error:  # noqa: BLE001
                    future.set_exception(error)

        for number in range(min(self.budget.parallel, len(futures))):
            # Daemon threads let the process end while a model does not answer.
            in_thread(answer_waiting, f"ask-{number}")
        answers = [future.result() for future in futures]
        seqs: list[int] = []
        for answer in answers:
            seqs += answer.seqs
        return CapabilityResult([answer.value for answer in answers], tuple(seqs))

    def _spend(self) -> None:
        self._journal.require_room()
        with self._lock:
            if self._calls >= self.budget.calls or self._tokens >= self.budget.tokens:
                raise LimitReached(
                    f"the session has used up its budget for ask ({self._calls} calls, "
                    f"{self._tokens:,} tokens). Read the rest yourself, in parts."
                )
            self._calls += 1


def _spent(journal: Journal) -> tuple[int, int]:
    """Calls and tokens that `ask` has cost this session so far, before a resume too."""
    ((calls, tokens),) = journal.log.query(
        f"""SELECT coalesce(sum(kind = :call), 0), coalesce(sum({number_at("tokens")}), 0)
        FROM event WHERE session_id = :session AND name = 'ask'
        AND {number_at("inside_cell")} IS NOT NULL""",
        {"session": journal.session_id, "call": str(Kind.TOOL_CALL)},
    )
    return int(calls), int(tokens)
