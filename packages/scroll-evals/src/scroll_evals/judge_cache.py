"""Asks the judge, and keeps its replies: each raw reply is written to disk before it is
interpreted.

Every reply has a key. After a crash, judging therefore goes on where it stopped, and scores can be
computed again from the stored replies without a call. judge.py decides what a reply means.
"""

import threading

from msgspec.structs import replace

from scroll_context.errors import BadInput
from scroll_context.messages import Message
from scroll_context.models import Model, Request, Settings
from scroll_evals.protocols import Judged
from scroll_evals.results import Judgement, JudgeReply, RunFolder, Spending

SETTINGS = Settings(temperature=0.0)
SECONDS = 300.0  # to wait for one reply, retries included


class StoredJudge:
    """The judge of one trial."""

    def __init__(
        self,
        folder: RunFolder,
        judgement: Judgement,
        model: Model | None,
        cancel: threading.Event | None = None,
    ) -> None:
        self.spent = Spending()
        self._folder = folder
        self._judgement = judgement
        self._model = model
        self._cancel = cancel

    def ask(self, key: str, prompt: str) -> str:
        """The reply to this prompt: the stored one, or one that is stored now."""
        for known in self._judgement.replies:
            if known.key == key and known.prompt == prompt:
                return known.reply
        if self._model is None:
            raise BadInput(
                "this benchmark is scored by a judge model, and none was named; give --judge"
            )
        request = Request((Message(role="user", text=prompt),), settings=SETTINGS)
        reply = self._model.reply(request, cancel=self._cancel, timeout=SECONDS)
        self.spent.add(reply.usage.input_tokens, reply.usage.output_tokens, reply.cost or 0.0)
        kept = JudgeReply(
            key=key,
            prompt=prompt,
            reply=reply.text,
            model=reply.model,
            usage=reply.usage,
            cost=reply.cost,
        )
        others = tuple(one for one in self._judgement.replies if one.key != key)
        self._keep(replace(self._judgement, replies=(*others, kept)))
        return reply.text

    def conclude(self, judged: Judged) -> None:
        self._keep(replace(self._judgement, judged=judged))

    def _keep(self, judgement: Judgement) -> None:
        self._folder.save_judgement(judgement)
        self._judgement = judgement


class UnaskedJudge:
    """The judge of a trial as it spoke then: answers from what is stored, by key alone, and asks
    nothing.
    """

    def __init__(self, judgement: Judgement) -> None:
        self._replies = {reply.key: reply.reply for reply in judgement.replies}

    def ask(self, key: str, prompt: str) -> str:  # noqa: ARG002
        if key not in self._replies:
            raise BadInput(
                f"the judge was not asked {key!r} when the run was made; resume the run to ask it"
            )
        return self._replies[key]
