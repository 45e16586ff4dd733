"""The commands under `scroll eval`, and the options shared by all commands that run a benchmark.

A command imports the module that does its work when it runs, so that `scroll --help` stays quick.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scroll_context.cli.agent_session import OPTIONS as AGENT_OPTIONS
from scroll_context.cli.options import FILE, json_option, open_store, store_option
from scroll_evals.run_options import EvalOptions

if TYPE_CHECKING:
    pass

Function = Callable[..., None]
Option = Callable[[Function], Function]


# options ------------------------------------------------------------------------------------------


_POSITIVE = click.IntRange(min=1)
_AMOUNT = click.FloatRange(min=0)


def _what_is_run(jobs: int) -> dict[str, Option]:
    return {
        "model": AGENT_OPTIONS["model"],
        "judge": click.option(
            "--judge",
            envvar="SCROLL_JUDGE",
            metavar="SPEC",
            default="",
            help="The model that scores answers, at temperature 0.",
        ),
        "context": click.option(
            "--context",
            multiple=True,
            metavar="NAME",
            show_default="scroll",
            help="A context to compare; repeatable.",
        ),
        "backbone": click.option(
            "--backbone",
            multiple=True,
            metavar="SPEC",
            help="Another model to compare; repeatable.",
        ),
        "limit": click.option(
            "--limit",
            type=_POSITIVE,
            metavar="N",
            show_default="all",
            help="Only the first N tasks.",
        ),
        "jobs": click.option(
            "--jobs",
            type=click.IntRange(1, 256),
            metavar="N",
            default=jobs,
            show_default=True,
            help="The number of tasks to run at once.",
        ),
        "out": click.option(
            "--out",
            type=FILE,
            metavar="DIR",
            show_default="scroll-runs/BENCHMARK-SPLIT",
            help="The folder for the runs.",
        ),
        "compat": click.option(
            "--compat",
            type=click.Choice(["official"]),
            show_default="no",
            help="Score as the reference code does.",
        ),
    }


def _how_models_are_asked() -> dict[str, Option]:
    return {
        "base_url": AGENT_OPTIONS["base_url"],
        "judge_url": click.option(
            "--judge-url",
            metavar="URL",
            show_default="its provider's",
            help="The judge's server.",
        ),
        "window": AGENT_OPTIONS["window"],
        "thinking": click.option(
            "--thinking",
            type=click.Choice(["on", "off", "low", "medium", "high"]),
            show_default="the model's own",
            help="The reasoning effort.",
        ),
        "temperature": click.option(
            "--temperature",
            type=click.FloatRange(0, 2),
            metavar="N",
            show_default="its provider's",
            help="The temperature of the agent's model.",
        ),
    }


def _what_a_task_may_take(steps: int, seconds: float) -> dict[str, Option]:
    return {
        "steps": click.option(
            "--steps",
            type=_POSITIVE,
            metavar="N",
            default=steps,
            show_default=True,
            help="The maximum number of replies per task.",
        ),
        "tokens": click.option(
            "--tokens",
            type=_POSITIVE,
            metavar="N",
            show_default="no limit",
            help="The maximum number of tokens per task.",
        ),
        "seconds": click.option(
            "--seconds",
            type=click.FloatRange(min=1),
            metavar="N",
            default=seconds,
            show_default=True,
            help="The maximum time per task, in seconds.",
        ),
        "dollars": click.option(
            "--dollars",
            type=_AMOUNT,
            metavar="N",
            show_default="no limit",
            help="The maximum cost per task, in US dollars.",
        ),
    }


def options_of_a_run(
    *, without: tuple[str, ...] = (), jobs: int = 4, steps: int = 100, seconds: float = 3600.0
) -> Callable[[Function], Function]:
    """Give a command the options of a run, as one argument `options`."""
    keep_stores = click.option("--keep-stores", is_flag=True, help="Keep the store of every task.")
    offered: dict[str, Option] = {
        **_what_is_run(jobs),
        **_how_models_are_asked(),
        **_what_a_task_may_take(steps, seconds),
        "keep_stores": keep_stores,
        "as_json": json_option,
    }
    names = [name for name in offered if name not in without]

    def decorate(command: Function) -> Function:
        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(options=EvalOptions(**{name: given.pop(name) for name in names}), **given)

        decorated: Function = called
        for name in reversed(names):
            decorated = offered[name](decorated)
        return decorated

    return decorate


data_option = click.option(
    "--data", type=FILE, metavar="DIR", required=True, help="The folder with the benchmark's data."
)
runs_argument = click.argument("runs", type=FILE, nargs=-1, required=True, metavar="RUN...")


# running ------------------------------------------------------------------------------------------


@click.group("eval", no_args_is_help=True)
def app() -> None:
    """Rerun the paper's benchmarks on your own model.

    Use --context with beam, longmemeval, locomo or loca to compare Scroll with baselines and
    ablations. Each run has its own folder. Repeating the command with the same folder continues the
    run without repeating paid requests.

    \b
    Begin with:
      scroll eval generate longmemeval tryout
      scroll eval retrieval --data tryout
      scroll eval longmemeval --split s --data tryout --model anthropic:NAME --judge openai:NAME --limit 10
      scroll eval report scroll-runs
    """


@app.command()
@data_option
@click.option(
    "--split",
    metavar="128K|500K|1M|10M",
    default="128K",
    show_default=True,
    help="The length of the histories.",
)
@options_of_a_run()
def beam(data: Path, split: str, options: EvalOptions) -> None:
    """Run BEAM: questions about long chats that test ten abilities.

    Ctrl-C stops the run, and the same command continues it. Exits 3 if some tasks could not be
    finished; the same command tries them again.

    \b
    Examples:
      scroll eval beam --split 10M --data beam --model anthropic:NAME --judge openai:NAME --jobs 8
      scroll eval beam --data beam --model openai:NAME --judge openai:NAME --context scroll --context scroll-no-index
      scroll eval beam --data beam --model openai:A --backbone openai:B --judge openai:A --limit 20
    """
    from scroll_evals.beam import Beam
    from scroll_evals.console import evaluate
    from scroll_evals.memory import MemorySuite

    evaluate(MemorySuite(Beam(data, split), official=options.compat == "official"), options, data)


@app.command()
@data_option
@click.option(
    "--split",
    metavar="oracle|s|m",
    default="s",
    show_default=True,
    help="The amount of history per question.",
)
@options_of_a_run(without=("compat",))
def longmemeval(data: Path, split: str, options: EvalOptions) -> None:
    """Run LongMemEval: six types of questions about many sessions.

    \b
    Examples:
      scroll eval longmemeval --split s --data longmemeval --model anthropic:NAME --judge openai:NAME
      scroll eval longmemeval --split m --data longmemeval --model openai:NAME --judge openai:NAME --jobs 16 --json
    """
    from scroll_evals.console import evaluate
    from scroll_evals.longmemeval import LongMemEval
    from scroll_evals.memory import MemorySuite

    evaluate(MemorySuite(LongMemEval(data, split)), options, data)


@app.command()
@data_option
@click.option(
    "--split",
    metavar="people|assistant",
    default="people",
    show_default=True,
    help="The role of the second speaker.",
)
@options_of_a_run(without=("compat",))
def locomo(data: Path, split: str, options: EvalOptions) -> None:
    """Run LoCoMo: questions about conversations between two people.

    Adversarial questions, whose right answer is to abstain, are asked and scored too. If the folder
    has an errors.json, its corrections replace the published answers.

    \b
    Examples:
      scroll eval locomo --data locomo --model anthropic:NAME --judge openai:NAME
      scroll eval locomo --data locomo --split assistant --model openai:NAME --judge openai:NAME --limit 20
    """
    from scroll_evals.console import evaluate
    from scroll_evals.locomo import Locomo
    from scroll_evals.memory import MemorySuite

    evaluate(MemorySuite(Locomo(data, split)), options, data)


@app.command()
@click.option(
    "--checkout",
    type=FILE,
    metavar="DIR",
    required=True,
    help="A checkout of LOCA-bench, branch loca-sandbox.",
)
@click.option(
    "--sizes",
    metavar="8k,…,256k",
    default="128k,256k",
    show_default=True,
    help="Sizes of the environment.",
)
@click.option(
    "--limit",
    type=_POSITIVE,
    metavar="N",
    show_default="all",
    help="Only the first N tasks of a size.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    show_default="all",
    help="Only tasks of this family; repeatable.",
)
@click.option(
    "--generation-seconds",
    type=click.FloatRange(min=1),
    metavar="N",
    default=1800.0,
    show_default=True,
    help="Time limit for generating an environment.",
)
@click.option(
    "--server-python",
    type=FILE,
    metavar="FILE",
    show_default="one is made for it",
    help="The Python that runs the benchmark's server.",
)
@options_of_a_run(
    without=("judge", "judge_url", "compat", "limit"), jobs=2, steps=300, seconds=7200.0
)
def loca(
    checkout: Path,
    sizes: str,
    limit: int | None,
    only: tuple[str, ...],
    generation_seconds: float,
    server_python: Path | None,
    options: EvalOptions,
) -> None:
    """Run LOCA: tasks in an environment, scored by rules.

    The benchmark's server is started and stopped for you, in its own environment, and listens only
    on 127.0.0.1. Its tools run model-written code with your permissions, outside Scroll's jail, so use a
    container. The first task of each family runs first, then the second of each.

    \b
    Examples:
      scroll eval loca --checkout LOCA-bench --sizes 128k,256k --model anthropic:NAME
      scroll eval loca --checkout LOCA-bench --sizes 8k --model openai:NAME --context codeact --context scroll
      scroll eval loca --checkout LOCA-bench --sizes 256k --only ABTesting --limit 1 --model openai:NAME
    """
    from scroll_context.cli.output import note
    from scroll_evals.console import evaluate
    from scroll_evals.loca import LocaSuite

    suite = LocaSuite(
        checkout=checkout,
        sizes=tuple(size.strip() for size in sizes.split(",") if size.strip()),
        limit=limit,
        only=only,
        python=server_python,
        progress=note,
        generation_seconds=generation_seconds,
    )
    evaluate(suite, options, checkout)


# without a model ----------------------------------------------------------------------------------


@app.command()
@data_option
@click.option(
    "--split",
    multiple=True,
    metavar="NAME",
    show_default="all",
    help="Only this split; repeatable.",
)
@json_option
def retrieval(data: Path, split: tuple[str, ...], as_json: bool) -> None:
    """Measure, without a model, how well search finds evidence.

    \b
    Examples:
      scroll eval retrieval --data beam
      scroll eval retrieval --data beam --split 10M --json
      scroll eval retrieval --data locomo --split people
    """
    from scroll_evals.console import measure_retrieval

    measure_retrieval(data, split, as_json)


@app.command()
@click.argument("before", type=FILE)
@click.argument("after", type=FILE, nargs=-1, required=True, metavar="AFTER...")
@json_option
def compare(before: Path, after: tuple[Path, ...], as_json: bool) -> None:
    """Compare reports of `scroll eval retrieval --json`.

    Abilities are compared one by one, with 95% bootstrap intervals over chats. With several
    reports, for example of several settings, the choice among them is cross-validated: each chat is
    scored with the report that is best on the other chats.

    \b
    Examples:
      scroll eval retrieval --data beam --json > before.json
      scroll eval compare before.json after.json
      scroll eval compare flow-0.5.json flow-0.25.json flow-0.1.json --json
    """
    from scroll_evals.console import compare_retrieval

    compare_retrieval(before, after, as_json)


@app.command()
@click.argument("benchmark", type=click.Choice(["longmemeval"]))
@click.argument("folder", type=FILE, metavar="DIR")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Each seed gives a different data set."
)
def generate(benchmark: str, folder: Path, seed: int) -> None:
    """Write a small synthetic data set for trying other commands.

    \b
    Examples:
      scroll eval generate longmemeval tryout --seed 7
    """
    from scroll_context.cli.output import note
    from scroll_evals.lme_generator import generate as write

    del benchmark  # there is one so far
    for file in write(folder, seed=seed):
        click.echo(file)
    note(f"try it: scroll eval retrieval --data {folder}")


@app.command()
@runs_argument
@click.option(
    "--figures",
    type=FILE,
    metavar="DIR",
    show_default="none",
    help="Write figures to this folder, as SVG and PNG.",
)
@json_option
def report(runs: tuple[Path, ...], figures: Path | None, as_json: bool) -> None:
    """Print the paper's tables for runs, and draw its figures.

    A RUN is the folder of a run, or a folder of such folders.

    \b
    Examples:
      scroll eval report scroll-runs/beam-10M
      scroll eval report scroll-runs --figures figures
      scroll eval report scroll-runs --json
    """
    from scroll_evals.console import print_report

    print_report(runs, figures, as_json)


@app.command("export-sft")
@runs_argument
@click.option(
    "--out", type=FILE, metavar="FILE", required=True, help="A new file of JSON Lines; - is stdout."
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    metavar="N",
    default=1.0,
    show_default=True,
    help="Export only trajectories with at least this score.",
)
@json_option
def export_sft(runs: tuple[Path, ...], out: Path, threshold: float, as_json: bool) -> None:
    """Write successful trajectories as examples for fine-tuning.

    Each line is one training example: `retrieval` (input: the context; target: the cell) or
    `injection` (input: the retrieved records; target: the printed output).

    \b
    Examples:
      scroll eval export-sft scroll-runs/beam-10M --out train.jsonl
      scroll eval export-sft scroll-runs --out - --threshold 0.75 | head -1
    """
    from scroll_evals.console import write_sft

    write_sft(runs, out, threshold, as_json)


@app.command()
@runs_argument
@json_option
def rescore(runs: tuple[Path, ...], as_json: bool) -> None:
    """Score runs again from stored replies, without a model.

    \b
    Examples:
      scroll eval rescore scroll-runs/beam-10M
    """
    from scroll_evals.console import score_again

    score_again(runs, as_json)


@app.command()
@click.argument("seq", type=click.IntRange(min=1), metavar="SEQ")
@click.option("--full", is_flag=True, help="Print every message in full.")
@store_option
@json_option
def explain(seq: int, full: bool, store: Path, as_json: bool) -> None:
    """Show what the model saw in a request of a trial.

    This needs a store that was kept with --keep-stores. Use it instead of `scroll explain`, which
    does not know the history that a trial started with.

    \b
    Examples:
      scroll eval explain 1200 --store scroll-runs/beam-10M/openai-NAME/scroll/stores/trials/TASK
    """
    from scroll_context.cli.history import print_explanation
    from scroll_context.cli.output import print_document
    from scroll_context.session.explain import explain as explained
    from scroll_evals.ingested_view import inherited_by

    with open_store(store) as opened:
        found = explained(opened, seq, inherited_by(opened, seq))
    if as_json:
        print_document(found)
    else:
        print_explanation(found, full)
