"""The options of a benchmark run, from the command line."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from scroll_context.cli.agent_session import connected
from scroll_context.errors import BadInput

if TYPE_CHECKING:
    from scroll_context.agent.agent import Limits
    from scroll_context.models import Model, Settings

JUDGE_KEY = "SCROLL_JUDGE_API_KEY"
"""The variable with the key for a server at --judge-url."""


class EvalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that all benchmarks share."""

    model: str = ""
    judge: str = ""
    context: tuple[str, ...] = ()
    backbone: tuple[str, ...] = ()
    limit: int | None = None
    jobs: int = 4
    out: Path | None = None
    compat: str | None = None
    base_url: str | None = None
    judge_url: str | None = None
    window: int | None = None
    thinking: str | None = None
    temperature: float | None = None
    steps: int = 100
    tokens: int | None = None
    seconds: float = 3600.0
    dollars: float | None = None
    keep_stores: bool = False
    as_json: bool = False

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(model for model in (self.model, *self.backbone) if model))

    @property
    def contexts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.context or ("scroll",)))

    @property
    def limits(self) -> "Limits":
        from scroll_context.agent.agent import Limits

        return Limits(
            steps=self.steps, tokens=self.tokens, seconds=self.seconds, dollars=self.dollars
        )

    @property
    def settings(self) -> "Settings":
        from scroll_context.models import Settings

        thinking = (
            {"on": True, "off": False}.get(self.thinking, self.thinking) if self.thinking else None
        )
        return Settings(temperature=self.temperature, thinking=thinking)

    def check(self, benchmark: str) -> None:
        from scroll_evals.contexts import CONTEXTS

        if not self.models:
            raise BadInput(
                "no model is named; give --model, for example anthropic:NAME, or set SCROLL_MODEL"
            )
        if benchmark != "loca" and not self.judge:
            raise BadInput(
                "no judge is named; give --judge, for example openai:NAME, or set SCROLL_JUDGE"
            )
        for context in self.contexts:
            if context not in CONTEXTS:
                raise BadInput(
                    f"there is no context {context!r}; choose from {', '.join(CONTEXTS)}"
                )

    def connect_model(self, spec: str) -> "Model":
        return connected(spec, self.base_url, self.window)

    def connect_judge(self) -> "Model | None":
        return connected(self.judge, self.judge_url, key=JUDGE_KEY) if self.judge else None
