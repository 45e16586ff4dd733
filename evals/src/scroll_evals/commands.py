"""Commands under `scroll eval`. What they do is in the modules that they import when they run."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from scroll_context.cli.options import open_store
from scroll_evals.options import EvalOptions
from scroll_evals.typer_options import DEFAULT_STORE, AsJson, StoreFolder, spread

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
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
Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or folders that hold them.")]


@app.command()
@spread()
def beam(
    *,
    data: Data,
    split: Annotated[str, typer.Option(metavar="128K|500K|1M|10M", help="The length of the histories.")] = "128K",
    options: EvalOptions,
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
    from scroll_evals.beam import Beam
    from scroll_evals.console import evaluate
    from scroll_evals.memory import MemorySuite

    evaluate(MemorySuite(Beam(data, split), official=options.compat == "official"), options, data)


@app.command()
@spread(without=("compat",))
def longmemeval(
    *,
    data: Data,
    split: Annotated[str, typer.Option(metavar="oracle|s|m", help="How much history a question has.")] = "s",
    options: EvalOptions,
) -> None:
    """Run LongMemEval: questions of six types about many sessions.

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
@spread(without=("judge", "judge_url", "compat", "limit"), jobs=2, steps=300, seconds=7200.0)
def loca(
    *,
    checkout: Annotated[Path, typer.Option(metavar="DIR", help="A checkout of LOCA-bench, branch loca-sandbox.")],
    sizes: Annotated[str, typer.Option(metavar="8k,…,256k", help="Sizes of the environment.")] = "128k,256k",
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N tasks of a size.", show_default="all")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only tasks of this family; repeatable.", show_default="all"),
    ] = None,
    generation_seconds: Annotated[
        float, typer.Option(min=1, metavar="N", help="Time that generating an environment may take.")
    ] = 1800.0,
    server_python: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A Python that can run its server.", show_default="one is made for it"),
    ] = None,
    options: EvalOptions,
) -> None:
    """Run LOCA: tasks in an environment, scored by rules.

    The benchmark's server is started and stopped for you, in an environment of its own, and listens on 127.0.0.1 only.
    Its own tools run model-written code with your rights, outside Scroll's jail: use a container. One task of each
    family comes first, then the next of each.

    \b
    Examples:
      scroll eval loca --checkout LOCA-bench --sizes 128k,256k --model anthropic:NAME
      scroll eval loca --checkout LOCA-bench --sizes 8k --model openai:NAME --context codeact --context scroll
      scroll eval loca --checkout LOCA-bench --sizes 256k --only ABTesting --limit 1 --model openai:NAME
    """
    from scroll_context.cli.output import note
    from scroll_evals.console import evaluate
    from scroll_evals.loca import LocaSuite

    names = tuple(size.strip() for size in sizes.split(",") if size.strip())
    suite = LocaSuite(
        checkout=checkout,
        sizes=names,
        limit=limit,
        only=only or (),
        python=server_python,
        progress=note,
        generation_seconds=generation_seconds,
    )
    evaluate(suite, options, checkout)


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
    from scroll_evals.console import measure_retrieval

    measure_retrieval(data, tuple(split or ()), as_json)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A report of `scroll eval retrieval --json`.")],
    after: Annotated[list[Path], typer.Argument(metavar="AFTER...", help="Reports to compare with it.")],
    as_json: AsJson = False,
) -> None:
    """Compare reports of retrieval, ability by ability.

    Intervals are 95 % of a bootstrap over chats. With several reports, for example of several settings, the choice
    among all of them is cross-validated: each chat is measured under the report that is best on the other chats.

    \b
    Examples:
      scroll eval retrieval --data beam --json > before.json
      scroll eval compare before.json after.json
      scroll eval compare flow-0.5.json flow-0.25.json flow-0.1.json --json
    """
    from scroll_evals.console import compare_retrieval

    compare_retrieval(before, after, as_json)


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
    from scroll_evals.lme_generator import generate as write

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
    from scroll_evals.console import print_report

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
    from scroll_evals.console import write_sft

    write_sft(runs, out, threshold, as_json)


@app.command()
def rescore(runs: Runs, as_json: AsJson = False) -> None:
    """Score runs anew from what the judge said; asks no model.

    \b
    Examples:
      scroll eval rescore scroll-runs/beam-10M
    """
    from scroll_evals.console import score_again

    score_again(runs, as_json)


@app.command()
def explain(
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="A request, or anything after one.")],
    full: Annotated[bool, typer.Option("--full", help="Print every message whole.")] = False,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show what a model saw at a request of a trial.

    For the stores that --keep-stores keeps. `scroll explain` does not know the history that a trial began with.

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
