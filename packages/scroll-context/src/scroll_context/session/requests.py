"""The requests of a session: what is sent to a model for each reply.

Scroll's own agent has messages made from the view (`next_request`). A host has a list of its own
and is told which of its messages to send (`next_layout`). Both go through the same steps: record
the setup if it is new, bring the view within its budget, render it, and record the request with the
hash of what is sent.
"""

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypedDict

import msgspec
from msgspec.structs import asdict, replace

from scroll_context.errors import ContextOverflow
from scroll_context.events import Event, Kind
from scroll_context.log.journal import Journal
from scroll_context.messages import ToolSpec
from scroll_context.models import DEFAULT_WINDOW, Model, Request
from scroll_context.session.context import ContextSession, WindowedContext, make_context
from scroll_context.session.environment import Environment
from scroll_context.session.follow import SYSTEM, HostList, items_of, places_of, record_list
from scroll_context.session.host import HostMessage, Layout
from scroll_context.session.media import with_bytes
from scroll_context.session.past import lineage
from scroll_context.store import Store
from scroll_context.view.eviction import Budget, ViewBudget
from scroll_context.view.layout import lay_out
from scroll_context.view.tokens import estimate
from scroll_context.view.working import RENDERER_VERSION, frame_tokens

_logger = logging.getLogger("scroll_context.session")


class FollowOptions(TypedDict, total=False):
    """The arguments of `Session.follow` besides the messages."""

    system: str
    tools: Sequence[ToolSpec]
    window: int
    model_name: str
    overhead: int
    overflowed: bool
    is_cold: bool


class Setup(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The constant part of requests that follow each other: everything but the messages."""

    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    window: int = DEFAULT_WINDOW
    model_name: str = ""

    @cached_property
    def tokens(self) -> int:
        """Estimated tokens of the system prompt."""
        return estimate(self.system)

    @cached_property
    def tool_tokens(self) -> int:
        """Estimated tokens of the tools."""
        return sum(estimate(msgspec.json.encode(spec).decode()) for spec in self.tools)


class Requests:
    """Makes and records the requests of one session, from a context that follows its journal."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        context: WindowedContext,
        environment: Environment,
        budget: ViewBudget,
    ) -> None:
        self.context = context
        self._store = store
        self._journal = journal
        self._environment = environment
        self.budget = budget
        # The newest erasure that the view knows of.
        self._erasure = store.log.newest_erasure()
        # Made when a host first hands over its list.
        self._host: HostList | None = None
        # The setup that was recorded last.
        self._setup: Setup | None = None

    def add(self, event: Event) -> None:
        """Follow the journal: every event of the session goes through here once."""
        self.context.add(event)
        if self._host is not None:
            self._host.add(event)

    def next_request(
        self,
        session: ContextSession,
        setup: Setup,
        *,
        extra_tokens: int = 0,
        overflowed: bool = False,
        model: Model | None = None,
    ) -> Request:
        """The next request as messages made from the view."""
        # Outside the lock: this may wait for the kernel.
        variable_list = self._environment.variable_list()
        with self._journal.hold():
            self._forget_erased()
            setup = self._record_setup(setup)
            schema_tokens = extra_tokens + setup.tool_tokens
            overhead = frame_tokens(setup.system, variable_list) + schema_tokens
            budget = _budget_for(setup.window, self.budget, overhead)
            self._fit(session, budget, model, overflowed)
            rendered = self.context.render(setup.system, variable_list)
            tokens = rendered.tokens + schema_tokens
            self._record_request(setup, rendered.metadata(), tokens, variable_list)
        log = self._store.log
        messages = [
            replace(message, media=with_bytes(log, message.media)) if message.media else message
            for message in rendered.messages
        ]
        return Request(tuple(messages), setup.tools)

    def next_layout(
        self,
        session: ContextSession,
        messages: Sequence[HostMessage],
        setup: Setup,
        *,
        extra_tokens: int = 0,
        overflowed: bool = False,
        is_cold: bool = False,
    ) -> Layout:
        """The next request as a layout of a host's own list."""
        variable_list = self._environment.variable_list()
        with self._journal.hold():
            self._forget_erased()
            rewritten_at = self.context.view.rewritten_at
            if self._host is None:
                past = lineage(self._store, self._journal.session_id)
                self._host = HostList(self._store.log.text_or_preview, past)
            index_tokens = self._index_tokens(setup.window)
            seqs = record_list(self._journal, self._host, messages, index_tokens)
            view_budget = self.budget
            if is_cold:
                view_budget = replace(view_budget, high=(view_budget.high + view_budget.low) / 2)
            setup = self._record_setup(setup)
            schema_tokens = extra_tokens + setup.tool_tokens
            schema_tokens += sum(
                _system_tokens(messages[place], setup.system) for place in places_of(SYSTEM, seqs)
            )
            overhead = setup.tokens + estimate(variable_list) + schema_tokens
            budget = _budget_for(setup.window, view_budget, overhead)
            self._fit(session, budget, None, overflowed)
            view = self.context.view
            layout = lay_out(view)
            self.context.visible = layout.visible
            metadata = {
                "hash": layout.hash,
                "layout": True,
                "upto": view.last_seq,
                "renderer": RENDERER_VERSION,
            }
            tokens = view.tokens + overhead
            request = self._record_request(setup, metadata, tokens, variable_list)
        return Layout(
            items=items_of(layout, seqs),
            tail=variable_list,
            seqs=_addresses(seqs),
            request=request.seq,
            hash=layout.hash,
            tokens=tokens,
            evicted=self.context.view.rewritten_at != rewritten_at,
        )

    def _index_tokens(self, window: int) -> int:
        """Raw tokens that the index may have in a window."""
        return int(window * self.budget.index_share / self.context.view.gauge.ratio)

    def _fit(
        self, session: ContextSession, budget: Budget, model: Model | None, overflowed: bool
    ) -> None:
        """Bring the view within its budget, or raise ContextOverflow."""
        if budget.overhead >= budget.window:
            raise ContextOverflow(
                f"the system prompt, the tools and the list of variables need about "
                f"{budget.overhead:,} tokens, and the window has {budget.window:,}. Nothing was "
                "sent. Use a model with a larger window, a shorter prompt or fewer tools.",
                tokens=budget.overhead,
                limit=budget.window,
            )
        shrank = self.context.fit(session, budget, model, overflowed)
        if overflowed and not shrank:
            raise ContextOverflow(
                "the provider refused the request as too long, and nothing more can leave the "
                "view. Use a model with a larger window, or shorten the newest message."
            )

    def _record_setup(self, setup: Setup) -> Setup:
        """Record a setup that is not the one recorded last; returns the recorded one.

        The recorded one has counted its tokens already.
        """
        if setup == self._setup:
            return self._setup
        metadata = {
            "context": self.context.name,
            "window": setup.window,
            "tools": msgspec.to_builtins(setup.tools),
        }
        self._record(Kind.SESSION, content=setup.system, name=setup.model_name, metadata=metadata)
        self._setup = setup
        return setup

    def _record_request(
        self, setup: Setup, metadata: dict[str, Any], tokens: int, variable_list: str
    ) -> Event:
        if tokens > setup.window:
            _logger.warning(
                "session %r sends about %d tokens to a window of %d: "
                "nothing more can leave the view",
                self._journal.session_id,
                tokens,
                setup.window,
            )
        # The variable list was called a digest when this field got its name.
        metadata |= {"tokens": tokens, "digest": variable_list}
        if variable_list:
            metadata |= self._environment.origin_of_variable_list()
        return self._record(Kind.REQUEST, name=setup.model_name, metadata=metadata)

    def _record(self, kind: str, **fields: Any) -> Event:
        return self._journal.append(self._journal.draft(kind, **fields))

    def _forget_erased(self) -> None:
        """Rebuild the view if something was erased since it was made: it may hold the words."""
        newest = self._store.log.newest_erasure()
        if newest == self._erasure:
            return
        self._erasure = newest
        self.context = make_context(self.context.name, self._store.log.excerpt)
        self._host = None
        for event in lineage(self._store, self._journal.session_id):
            self.context.add(event)


def _budget_for(window: int, view_budget: ViewBudget, overhead: int) -> Budget:
    """The room that the view has beside the system prompt and everything else, its overhead."""
    return Budget(window=window, overhead=overhead, **asdict(view_budget))


def _addresses(seqs: Sequence[int]) -> tuple[int, ...]:
    """The seqs as a host gets them: 0 for system messages."""
    if SYSTEM not in seqs:
        return tuple(seqs)
    return tuple([0 if seq == SYSTEM else seq for seq in seqs])


def _system_tokens(message: HostMessage, system: str) -> int:
    """Tokens of a message of the system prompt that `system` does not hold."""
    if message.text in system:
        return 0
    return estimate(message.text)
