"""`ask` and `ask_many`: a second model reads records on behalf of a cell, so that they need not be printed.

Optional, budgeted, recorded and cached. A question and its answer are a tool call and its result in the log, with the
cell they were asked in, so that an answer's origin can be traced. The same question about the same text is answered
from the log. The model itself is given as a function: this layer knows no models.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from scroll_context.errors import BadInput, LimitReached
from scroll_context.events import Kind
from scroll_context.kernel.messages import Prelude
from scroll_context.kernel.results import CapabilityResult
from scroll_context.store.store import Store
from scroll_context.surface.scope import Scope

CONTEXT_LIMIT = 400_000  # characters of one context

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
    """What the asking of one session may cost."""

    calls: int = 200
    tokens: int = 1_000_000  # input and output together
    parallel: int = 8


class AskReply(msgspec.Struct, frozen=True):
    """What the second model said, and what it cost."""

    text: str
    tokens: int = 0


class Ask:
    """The sub-model calls of one session. Safe to use from several threads."""

    def __init__(
        self,
        answer: Callable[[str, str], AskReply],
        store: Store,
        scope: Scope,
        budget: AskBudget | None = None,
        on_event: Callable[[int], None] | None = None,
    ) -> None:
        self.budget = budget or AskBudget()
        self._on_event = on_event
        self._answer = answer
        self._store = store
        self._scope = scope
        self._lock = threading.Lock()
        self._calls, self._tokens = _spent(store, scope)

    def prelude(self) -> Prelude:
        return Prelude("asking", _PRELUDE, ("ask", "ask_many"))

    def methods(self, cell_seq: int) -> Mapping[str, Callable[..., CapabilityResult]]:
        return {
            "ask.one": lambda prompt, context="": self._one(prompt, context, cell_seq),
            "ask.many": lambda prompt, contexts: self._many(prompt, contexts, cell_seq),
        }

    def _one(self, prompt: str, context: str, cell_seq: int) -> CapabilityResult:
        if not isinstance(prompt, str) or not isinstance(context, str):
            raise BadInput("ask takes a prompt and a context, both as text")
        if len(context) > CONTEXT_LIMIT:
            raise BadInput(
                f"the context has {len(context):,} characters; ask reads at most {CONTEXT_LIMIT:,}. "
                "Split it and use ask_many."
            )
        key = "ask:" + hashlib.sha256("\0".join((self._scope.agent_id, prompt, context)).encode()).hexdigest()
        known = self._store.log.find_source(key)
        if known is not None:
            return CapabilityResult(self._store.log.text(known), (known.seq,))
        self._spend()
        # an echo, because a search must find the text itself and not a question about it
        metadata = {"inside_cell": cell_seq, "echo": True}
        question = msgspec.json.encode({"prompt": prompt, "context": context}).decode()
        call = self._append(Kind.TOOL_CALL, role="assistant", content=question, metadata=metadata)
        try:
            reply = self._answer(prompt, context)
        except Exception as error:  # whatever the function that was given raises
            said = f"{type(error).__name__}: {error}"
            self._append(
                Kind.TOOL_RESULT, role="tool", content=said, reply_to=call, tool_state="error", metadata=metadata
            )
            raise
        with self._lock:
            self._tokens += reply.tokens
        seq = self._append(
            Kind.TOOL_RESULT, role="tool", content=reply.text, reply_to=call, tool_state="ok", source_key=key,
            metadata={**metadata, "tokens": reply.tokens},
        )  # fmt: skip
        return CapabilityResult(reply.text, (seq,))

    def _append(self, kind: str, **fields: Any) -> int:
        seq = self._store.log.append(self._scope.draft(kind, name="ask", **fields))
        if self._on_event is not None:
            self._on_event(seq)
        return seq

    def _many(self, prompt: str, contexts: Sequence[Any], cell_seq: int) -> CapabilityResult:
        if not isinstance(contexts, list | tuple):
            raise BadInput("ask_many takes a prompt and a list of contexts")
        with ThreadPoolExecutor(self.budget.parallel, thread_name_prefix="scroll-ask") as pool:
            answers = list(pool.map(lambda context: self._one(prompt, context, cell_seq), contexts))
        return CapabilityResult([one.value for one in answers], tuple(seq for one in answers for seq in one.seqs))

    def _spend(self) -> None:
        with self._lock:
            if self._calls >= self.budget.calls or self._tokens >= self.budget.tokens:
                raise LimitReached(
                    f"the session has used up its budget for ask ({self._calls} calls, {self._tokens:,} tokens). "
                    "Read the rest yourself, in parts."
                )
            self._calls += 1


def _spent(store: Store, scope: Scope) -> tuple[int, int]:
    """Calls and tokens that the asking of a session has cost so far, before a resume too."""
    ((calls, tokens),) = store.log.query(
        """SELECT coalesce(sum(kind = ?2), 0), coalesce(sum(json_extract(metadata, '$.tokens')), 0) FROM event
        WHERE session_id = ?1 AND name = 'ask' AND json_extract(metadata, '$.inside_cell') IS NOT NULL""",
        (scope.session_id, str(Kind.TOOL_CALL)),
    )
    return int(calls), int(tokens)
