"""The options of the commands that run a benchmark, declared once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from scroll_context.cli.agent import connected
from scroll_context.errors import BadInput
from scroll_evals.typer_options import AsJson, BaseUrl, ModelSpec, Window

if TYPE_CHECKING:
    from scroll_context.agent.agent import Limits
    from scroll_context.models import Model, Settings

JUDGE_KEY = "SCROLL_JUDGE_API_KEY"
"""The variable with the key for a server at --judge-url."""

Judge = Annotated[
    str, typer.Option(envvar="SCROLL_JUDGE", metavar="SPEC", help="The model that scores answers, at temperature 0.")
]
JudgeUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="The judge's server.", show_default="that of its provider")
]
Contexts = Annotated[
    list[str] | None,
    typer.Option("--context", metavar="NAME", help="A context to compare; repeatable.", show_default="scroll"),
]
Backbones = Annotated[
    list[str] | None, typer.Option("--backbone", metavar="SPEC", help="A further model to compare; repeatable.")
]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N tasks.", show_default="all")]
Jobs = Annotated[int, typer.Option(min=1, max=256, metavar="N", help="Tasks at work at once.")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where runs go.", show_default="scroll-runs/BENCHMARK-SPLIT"),
]
Steps = Annotated[int, typer.Option(min=1, metavar="N", help="Replies that a task may take.")]
Tokens = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Tokens that a task may take.", show_default="no limit")
]
Seconds = Annotated[float, typer.Option(min=1, metavar="N", help="Time that a task may take.")]
Dollars = Annotated[
    float | None, typer.Option(min=0, metavar="N", help="What a task may cost.", show_default="no limit")
]
Thinking = Annotated[
    Literal["on", "off", "low", "medium", "high"] | None,
    typer.Option(help="How much to think.", show_default="as it does"),
]
Temperature = Annotated[
    float | None, typer.Option(min=0, max=2, metavar="N", help="Of the agent's model.", show_default="its provider's")
]
KeepStores = Annotated[bool, typer.Option("--keep-stores", help="Keep the store of every task, for looking into it.")]
Compat = Annotated[
    Literal["official"] | None, typer.Option(help="Score as the reference code does.", show_default="no")
]


class EvalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for on the command line. Each field is an option."""

    model: ModelSpec = ""
    judge: Judge = ""
    context: Contexts = None
    backbone: Backbones = None
    limit: Limit = None
    jobs: Jobs = 4
    out: Out = None
    compat: Compat = None
    base_url: BaseUrl = None
    judge_url: JudgeUrl = None
    window: Window = None
    thinking: Thinking = None
    temperature: Temperature = None
    steps: Steps = 100
    tokens: Tokens = None
    seconds: Seconds = 3600.0
    dollars: Dollars = None
    keep_stores: KeepStores = False
    as_json: AsJson = False

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(model for model in (self.model, *(self.backbone or ())) if model))

    @property
    def contexts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.context or ("scroll",)))

    @property
    def limits(self) -> "Limits":
        from scroll_context.agent.agent import Limits

        return Limits(steps=self.steps, tokens=self.tokens, seconds=self.seconds, dollars=self.dollars)

    @property
    def settings(self) -> "Settings":
        from scroll_context.models import Settings

        thinking = {"on": True, "off": False}.get(self.thinking, self.thinking) if self.thinking else None
        return Settings(temperature=self.temperature, thinking=thinking)

    def check(self, benchmark: str) -> None:
        from scroll_evals.contexts import CONTEXTS

        if not self.models:
            raise BadInput("no model is named; give --model, for example anthropic:NAME, or set SCROLL_MODEL")
        if benchmark != "loca" and not self.judge:
            raise BadInput("no judge is named; give --judge, for example openai:NAME, or set SCROLL_JUDGE")
        for context in self.contexts:
            if context not in CONTEXTS:
                raise BadInput(f"there is no context {context!r}; choose from {', '.join(CONTEXTS)}")

    def connect_model(self, spec: str) -> "Model":
        return connected(spec, self.base_url, self.window)

    def connect_judge(self) -> "Model | None":
        return connected(self.judge, self.judge_url, key=JUDGE_KEY) if self.judge else None
