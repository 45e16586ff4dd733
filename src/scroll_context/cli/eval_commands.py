"""Commands under `scroll eval`. What they do is in the modules that they import when they run."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from scroll_context.cli.agent_commands import BaseUrl, Model, Window
from scroll_context.cli.options import AsJson

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Rerun the paper's benchmarks on your own model.

    Baselines and ablations are contexts to be compared: see --context of beam, longmemeval and loca.
    A run is a folder. The same command on the same folder goes on where the run stopped, and pays for nothing twice.

    \b
    Begin with:
      scroll eval generate longmemeval tryout
      scroll eval retrieval --data tryout
      scroll eval longmemeval --split s --data tryout --model anthropic:NAME --judge openai:NAME --limit 10
      scroll eval report scroll-runs
    """,
)

Data = Annotated[Path, typer.Option(metavar="DIR", help="The benchmark's own folder.")]
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
Steps = Annotated[int, typer.Option(min=1, help="Replies that a task may take.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Tokens that a task may take.", show_default="no limit")]
Seconds = Annotated[float, typer.Option(min=1, help="Time that a task may take.")]
Dollars = Annotated[float | None, typer.Option(min=0, help="What a task may cost.", show_default="no limit")]
Thinking = Annotated[
    str | None, typer.Option(metavar="on|off|low|medium|high", help="How much to think.", show_default="as it does")
]
Temperature = Annotated[
    float | None, typer.Option(min=0, max=2, help="Of the agent's model.", show_default="its provider's")
]
KeepStores = Annotated[bool, typer.Option("--keep-stores", help="Keep the store of every task, for looking into it.")]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or folders that hold them.")]


@app.command()
def beam(
    data: Data,
    split: Annotated[str, typer.Option(metavar="128K|500K|1M|10M", help="The length of the histories.")] = "128K",
    model: Model = "",
    judge: Judge = "",
    context: Contexts = None,
    backbone: Backbones = None,
    limit: Limit = None,
    jobs: Jobs = 4,
    out: Out = None,
    compat: Annotated[
        Literal["official"] | None, typer.Option(help="Score as the reference code does.", show_default="no")
    ] = None,
    base_url: BaseUrl = None,
    judge_url: JudgeUrl = None,
    window: Window = None,
    thinking: Thinking = None,
    temperature: Temperature = None,
    steps: Steps = 100,
    tokens: Tokens = None,
    seconds: Seconds = 3600,
    dollars: Dollars = None,
    keep_stores: KeepStores = False,
    as_json: AsJson = False,
) -> None:
    """Run BEAM: questions of ten abilities about long chats.

    Ctrl-C stops it; the same command goes on. Status 3: some tasks could not be finished, and the same command tries
    them again.

    \b
    Examples:
      scroll eval beam --split 10M --data beam --model anthropic:NAME --judge openai:NAME --jobs 8
      scroll eval beam --data beam --model openai:NAME --judge openai:NAME --context scroll --context scroll-no-index
      scroll eval beam --data beam --model openai:A --backbone openai:B --judge openai:A --limit 20
    """
    given = locals()
    from scroll_context.cli.evaluating import evaluate, plan_of
    from scroll_context.evals.beam import read
    from scroll_context.evals.memory import MemorySuite

    suite = MemorySuite(read(data, split), official=compat == "official")
    evaluate(suite, plan_of(given, data), as_json=as_json)


@app.command()
def longmemeval(
    data: Data,
    split: Annotated[str, typer.Option(metavar="oracle|s|m", help="How much history a question has.")] = "s",
    model: Model = "",
    judge: Judge = "",
    context: Contexts = None,
    backbone: Backbones = None,
    limit: Limit = None,
    jobs: Jobs = 4,
    out: Out = None,
    base_url: BaseUrl = None,
    judge_url: JudgeUrl = None,
    window: Window = None,
    thinking: Thinking = None,
    temperature: Temperature = None,
    steps: Steps = 100,
    tokens: Tokens = None,
    seconds: Seconds = 3600,
    dollars: Dollars = None,
    keep_stores: KeepStores = False,
    as_json: AsJson = False,
) -> None:
    """Run LongMemEval: questions of six types about many sessions.

    \b
    Examples:
      scroll eval longmemeval --split s --data longmemeval --model anthropic:NAME --judge openai:NAME
      scroll eval longmemeval --split m --data longmemeval --model openai:NAME --judge openai:NAME --jobs 16 --json
    """
    given = locals()
    from scroll_context.cli.evaluating import evaluate, plan_of
    from scroll_context.evals.longmemeval import read
    from scroll_context.evals.memory import MemorySuite

    evaluate(MemorySuite(read(data, split)), plan_of(given, data), as_json=as_json)


@app.command()
def loca(
    checkout: Annotated[Path, typer.Option(metavar="DIR", help="A checkout of LOCA-bench, branch loca-sandbox.")],
    sizes: Annotated[str, typer.Option(metavar="8k,…,256k", help="Sizes of the environment.")] = "128k,256k",
    server_python: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A Python that can run its server.", show_default="one is made for it"),
    ] = None,
    model: Model = "",
    context: Contexts = None,
    backbone: Backbones = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N tasks of a size.", show_default="all")
    ] = None,
    jobs: Jobs = 2,
    out: Out = None,
    base_url: BaseUrl = None,
    window: Window = None,
    thinking: Thinking = None,
    temperature: Temperature = None,
    steps: Steps = 300,
    tokens: Tokens = None,
    seconds: Seconds = 7200,
    dollars: Dollars = None,
    keep_stores: KeepStores = False,
    as_json: AsJson = False,
) -> None:
    """Run LOCA: tasks in an environment, scored by rules.

    The benchmark's server is started and stopped for you, in an environment of its own, and listens on 127.0.0.1 only.
    Its own tools run model-written code with your rights, outside Scroll's jail: use a container.

    \b
    Examples:
      scroll eval loca --checkout LOCA-bench --sizes 128k,256k --model anthropic:NAME
      scroll eval loca --checkout LOCA-bench --sizes 8k --model openai:NAME --context codeact --context scroll
    """
    given = locals()
    from scroll_context.cli.evaluating import evaluate, loca_suite, plan_of

    suite = loca_suite(checkout, sizes, limit, server_python)
    evaluate(suite, plan_of({**given, "limit": None}, checkout), as_json=as_json)


@app.command()
def retrieval(
    data: Data,
    split: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this split; repeatable.", show_default="all")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how much evidence search finds, without a model.

    \b
    Examples:
      scroll eval retrieval --data beam
      scroll eval retrieval --data beam --split 10M --json
    """
    from scroll_context.cli.evaluating import measure_retrieval

    measure_retrieval(data, tuple(split or ()), as_json)


@app.command()
def generate(
    benchmark: Annotated[Literal["longmemeval"], typer.Argument(help="Whose schema to write.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it.")],
    seed: Annotated[int, typer.Option(help="Another number makes another set.")] = 0,
) -> None:
    """Write a small made-up data set, for trying things out.

    \b
    Examples:
      scroll eval generate longmemeval tryout --seed 7
    """
    from scroll_context.cli.output import note
    from scroll_context.evals.lme_generator import generate as write

    del benchmark  # there is one so far
    for file in write(folder, seed=seed):
        typer.echo(file)
    note(f"try it: scroll eval retrieval --data {folder}")


@app.command()
def report(
    runs: Runs,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw figures here, as SVG and PNG.", show_default="none")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the paper's tables for runs, and draw its figures.

    \b
    Examples:
      scroll eval report scroll-runs/beam-10M
      scroll eval report scroll-runs --figures figures
      scroll eval report scroll-runs --json
    """
    from scroll_context.cli.evaluating import print_report

    print_report(runs, figures, as_json)


@app.command("export-sft")
def export_sft(
    runs: Runs,
    out: Annotated[Path, typer.Option(metavar="FILE", help="A new file of JSON Lines; - is stdout.")],
    threshold: Annotated[float, typer.Option(min=0, max=1, help="The least score of a trajectory.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Write successful trajectories as examples for fine-tuning.

    One line for each decision: `retrieval` (context in, cell out) and `injection` (records in, what was printed out).

    \b
    Examples:
      scroll eval export-sft scroll-runs/beam-10M --out train.jsonl
      scroll eval export-sft scroll-runs --out - --threshold 0.75 | head -1
    """
    from scroll_context.cli.evaluating import write_sft

    write_sft(runs, out, threshold, as_json)


@app.command()
def rescore(runs: Runs, as_json: AsJson = False) -> None:
    """Score runs anew from what the judge said; asks no model.

    \b
    Examples:
      scroll eval rescore scroll-runs/beam-10M
    """
    from scroll_context.cli.evaluating import score_again

    score_again(runs, as_json)
