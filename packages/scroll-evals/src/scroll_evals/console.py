"""The work of the `scroll eval` commands: run suites with a display on stderr, and print results."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from scroll_context.cli.commands import INTERRUPTED
from scroll_context.cli.output import (
    live,
    new_file,
    note,
    print_document,
    print_table,
    progress,
    visible,
)
from scroll_context.errors import BadInput
from scroll_context.log.schema import utc_now
from scroll_context.models import Model
from scroll_evals.protocols import Setup, Suite, slug
from scroll_evals.report import ReportedRun, Table, percent, read_runs, tables
from scroll_evals.results import RunConfig, RunFolder, Start, Summary, runs_below, versions
from scroll_evals.run_options import EvalOptions
from scroll_evals.runner import Runner, RunProgress
from scroll_evals.sft import Exported, examples
from scroll_evals.summary import rescored
from scroll_evals.tasks import DataFault

if TYPE_CHECKING:
    from scroll_evals.retrieval import RetrievalReport

UNFINISHED = 3
QUIET_SECONDS = 15.0  # between two lines of progress where there is no terminal


def evaluate(suite: Suite, options: EvalOptions, source: Path) -> None:
    """One run for each model and context, one after another.

    `source` is where the benchmark's data is.
    """
    options.check(suite.name)
    out = options.out or Path("scroll-runs") / f"{suite.name}-{suite.split}"
    judge = options.connect_judge()
    done: list[tuple[RunFolder, Summary]] = []
    stopped = False
    for spec in options.models:
        model = options.connect_model(spec)
        for context in options.contexts:
            folder = RunFolder(out / slug(spec) / context)
            try:
                with folder.locked():
                    summary, stopped = _run(suite, options, source, model, context, judge, folder)
            except (
                KeyboardInterrupt
            ):  # the second one: trials at work are left as they are, which loses nothing
                note("not waiting any longer; the same command continues the run")
                raise
            done.append((folder, summary))
            if stopped:
                break
        if stopped:
            break
    _report_on(done, options.as_json, stopped)


def _run(
    suite: Suite,
    options: EvalOptions,
    source: Path,
    model: Model,
    context: str,
    judge: Model | None,
    folder: RunFolder,
) -> tuple[Summary, bool]:
    config = RunConfig(
        benchmark=suite.name,
        split=suite.split,
        model=model.name,
        context=context,
        judge=judge.name if judge else "",
        compat=options.compat or "",
        window=model.window,
        limits=msgspec.to_builtins(options.limits),
        settings=msgspec.to_builtins(options.settings),
        source=str(source),
        starts=(Start(utc_now(), versions()),),
    )
    folder.begin(config)
    setup = Setup(model=model, context=context, limits=options.limits, settings=options.settings)
    with display(f"{model.name} {context}") as shown:
        runner = Runner(
            suite,
            setup,
            folder,
            judge,
            jobs=options.jobs,
            keep_stores=options.keep_stores,
            on_progress=shown,
        )
        summary = runner.run(options.limit)
    return summary, runner.stopped


def _report_on(done: Sequence[tuple[RunFolder, Summary]], as_json: bool, stopped: bool) -> None:
    if as_json:
        print_document([{"run": str(folder.path), "summary": summary} for folder, summary in done])
    elif any(summary.scored for _, summary in done):
        _print_tables(read_runs([folder.path for folder, _ in done]))
    for folder, summary in done:
        faults = folder.faults()
        _print_faults(faults[:5])
        if len(faults) > 5:
            note(f"{len(faults) - 5} more in {folder.path / 'faults.json'}")
        note(f"{summary.scored} of {summary.trials} tasks scored; the run is in {folder.path}")
    if stopped:
        note("stopped; the same command continues the run")
        raise click.exceptions.Exit(INTERRUPTED)
    if not any(summary.trials for _, summary in done):
        raise BadInput("there was nothing to run; the errors in the data are listed above")
    if any(summary.unfinished for _, summary in done):
        note("some tasks could not be finished; the same command tries them again")
        raise click.exceptions.Exit(UNFINISHED)


# what other commands print ------------------------------------------------------------------------


def measure_retrieval(data: Path, splits: Sequence[str], as_json: bool) -> None:
    from scroll_evals.retrieval import benchmarks_in, measure

    with progress("searching") as shown:
        report = measure(benchmarks_in(data, splits), progress=shown)
    if as_json:
        print_document(report)
    elif report.overall.questions:
        _print_retrieval(msgspec.to_builtins(report))
    _print_faults(report.faults)
    if not report.overall.questions:
        raise BadInput("there was nothing to measure; the errors in the data are listed above")


def _print_retrieval(found: dict[str, Any]) -> None:
    columns = list(found["overall"])
    rows = [
        (name, *(_measured(scores[column]) for column in columns))
        for name, scores in (*found["by_ability"].items(), ("overall", found["overall"]))
    ]
    print_table(("ability", *columns), rows, numeric=columns)


def compare_retrieval(before: Path, after: Sequence[Path], as_json: bool) -> None:
    from scroll_evals.retrieval import choose, compare

    first, *others = reports = [_read_report(file) for file in (before, *after)]
    comparisons = [compare(first, report) for report in others]
    choice = choose(reports) if len(others) > 1 else None
    if as_json:
        print_document({"comparisons": comparisons, "choice": choice})
        return
    for file, comparison in zip(after, comparisons, strict=True):
        click.secho(f"{before} → {file}", bold=True)
        rows = [
            (
                name,
                measure,
                str(change.questions),
                _measured(change.before),
                _measured(change.after),
                f"{change.after - change.before:+.3f} [{change.low:+.3f}, {change.high:+.3f}]",
            )
            for name, changes in comparison.changes.items()
            for measure, change in changes.items()
        ]
        columns = ("ability", "measure", "questions", "before", "after", "change")
        print_table(columns, rows, numeric=columns[2:])
    if choice is not None:
        click.secho(
            f"cross-validated by {choice.measure}: {choice.held_out:.3f} held out", bold=True
        )
        settings = zip((before, *after), choice.means, choice.chosen, strict=True)
        print_table(
            ("report", "mean", "chats that choose it"),
            [(str(file), _measured(mean), str(chats)) for file, mean, chats in settings],
            numeric=("mean", "chats that choose it"),
        )


def _read_report(file: Path) -> "RetrievalReport":
    from scroll_evals.retrieval import RetrievalReport

    try:
        return msgspec.json.decode(file.read_bytes(), type=RetrievalReport)
    except msgspec.MsgspecError as error:
        raise BadInput(
            f"{file} is not a report of `scroll eval retrieval --json` ({error})"
        ) from error


def _print_faults(faults: Sequence[DataFault]) -> None:
    for fault in faults:
        note(f"{fault.outcome}: {visible(fault.where)}: {visible(fault.text)[:300]}")


def _measured(value: float) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def print_report(paths: Sequence[Path], figures: Path | None, as_json: bool) -> None:
    runs = read_runs(paths)
    if as_json:
        print_document(
            [{"run": str(run.path), "config": run.config, "summary": run.summary} for run in runs]
        )
    else:
        _print_tables(runs)
    if figures is not None:
        from scroll_evals.figures import draw

        for file in draw(runs, figures):
            note(f"drew {file}")


def _print_tables(runs: Sequence[ReportedRun]) -> None:
    for number, table in enumerate(tables(runs)):
        _print_table(table, first=number == 0)


def _print_table(table: Table, *, first: bool) -> None:
    click.secho(("" if first else "\n") + table.title, bold=True)
    print_table(table.columns, table.rows, numeric=table.columns[1:])


def write_sft(paths: Sequence[Path], out: Path, threshold: float, as_json: bool) -> None:
    exported = Exported()
    folders = runs_below(list(paths))
    with new_file(out) if str(out) != "-" else contextlib.nullcontext(sys.stdout.buffer) as file:
        for folder in folders:
            for example in examples(folder, threshold, exported):
                file.write(msgspec.json.encode(example) + b"\n")
    if as_json and str(out) != "-":
        print_document(exported)
    note(
        f"{exported.retrieval} retrieval and {exported.injection} injection examples from {exported.trajectories} "
        f"trajectories; {exported.below_threshold} were below {threshold:g}, {exported.skipped_steps} steps left out"
    )


def score_again(paths: Sequence[Path], as_json: bool) -> None:
    found = []
    for folder in runs_below(list(paths)):
        with folder.locked():
            before = folder.summary()
            summary, _ = rescored(folder)
        found.append({"run": str(folder.path), "summary": summary})
        was = percent(before.scores.overall) if before else "–"
        if not as_json:
            click.echo(
                f"{folder.path}: {was} → {percent(summary.scores.overall)} ({summary.scored} of {summary.trials})"
            )
    if as_json:
        print_document(found)


# progress -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def display(label: str) -> Iterator[Callable[[RunProgress], None]]:
    """Where a run stands, on stderr: one line that is kept up to date, or now and then a new one in
    a file.
    """
    if not sys.stderr.isatty():
        last = time.monotonic()

        def tell(now: RunProgress) -> None:
            nonlocal last
            if time.monotonic() - last >= QUIET_SECONDS:
                last = time.monotonic()
                note(f"{label}: {progress_line(now)}")

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[status]}"),
    )
    with live(
        Bars(*columns, console=Console(stderr=True, highlight=False, markup=False), transient=True)
    ) as bars:
        task = bars.add_task(label, total=None, status="reading the data")
        yield lambda now: bars.update(
            task, completed=now.done, total=now.total, status=progress_line(now)
        )


def progress_line(now: RunProgress) -> str:
    """Progress in one line."""
    spent = now.spending
    parts = [f"{now.done}/{now.total} done"]
    if now.failed:
        parts.append(f"{now.failed} failed")
    if now.score is not None:
        parts.append(f"score {percent(now.score)}")
    parts.append(f"{_short(spent.tokens_in)} in, {_short(spent.tokens_out)} out")
    if spent.dollars:
        parts.append(f"${spent.dollars:,.2f}")
    if now.seconds_left is not None and now.done < now.total:
        minutes, seconds = divmod(int(now.seconds_left), 60)
        parts.append(f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left")
    return " · ".join(parts)


def _short(count: int) -> str:
    return (
        f"{count / 1e6:.1f}M"
        if count >= 1e6
        else f"{count / 1e3:.0f}k"
        if count >= 1e4
        else f"{count:,}"
    )
