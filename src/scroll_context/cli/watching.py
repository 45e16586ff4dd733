"""`scroll watch`: the command line of it. What it does is in scroll_context.importers.watch."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scroll_context.cli.options import FILE, json_option, user_store_option
from scroll_context.cli.output import Command, echo, note, print_line, visible
from scroll_context.errors import BadInput

if TYPE_CHECKING:
    from scroll_context.importers.run import ImportReport


@click.command(cls=Command)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=FILE)
@click.option("--every", type=click.FloatRange(min=0.1), default=2.0, show_default=True, metavar="SECONDS",
              help="How often to look where the system does not report changes.")  # fmt: skip
@click.option("--once", is_flag=True, help="Record what is new and end.")
@click.option("--keep-secrets", is_flag=True, help="Do not replace keys and tokens by markers.")
@user_store_option
@json_option
def watch(files: tuple[Path, ...], every: float, once: bool, keep_secrets: bool, store: Path, as_json: bool) -> None:
    """Follow the histories of coding assistants as they grow.

    Records what Claude Code, Codex, the Gemini CLI, opencode, Cursor and QwenPaw write, or what is added to the FILEs,
    until it is stopped with Ctrl-C. Each file is read from where it stood, so it may be killed and started again at any
    time: nothing is lost or recorded twice. With `scroll-context[watch]` the system reports changes; without, the files
    are looked at every two seconds. Assistants that have hooks (`scroll install`) need no watching.

    \b
    Examples:
      scroll watch
      scroll watch --once --store ./all
      scroll watch session.jsonl --json
    """
    from scroll_context.importers.formats import detect
    from scroll_context.importers.installed import installed, places
    from scroll_context.importers.watch import watch as follow
    from scroll_context.store.store import Store

    missing = [file for file in files if not file.is_file()]
    if missing:
        raise click.BadParameter(f"{missing[0]} is no file", param_hint="FILE")
    named = [str(file.absolute()) for file in files]
    for file in named:
        if not detect(Path(file), Path(file).suffix).is_redacted:
            raise BadInput(
                f"{file} is no history of an assistant that can be followed; `scroll import {file}` reads it"
            )

    def listing() -> list[str]:
        return named or [file for history in installed() for file in history.files]

    folders = sorted({file.absolute().parent for file in files}) or [folder for _, folder, _ in places()]
    stop = threading.Event()

    noted: dict[str, str] = {}

    def tell(report: "ImportReport") -> None:
        trouble = report.error or report.left
        if trouble and noted.get(report.file) != trouble:
            note(visible(f"{report.file}: {trouble}; it is tried again"))
        noted[report.file] = trouble
        if report.added or report.bad:
            if as_json:
                print_line(report)
            else:
                bad = f", {report.bad:,} lines cannot be read" if report.bad else ""
                echo(visible(f"{report.file}: {report.added:,} events{bad}"))

    with Store(store, create=True) as opened:
        if once:
            stop.set()
        else:
            note(f"following {len(listing()):,} files into {store}; Ctrl-C ends it")
        follow(opened, listing, stop=stop, told=tell, folders=folders, every=every, redact=not keep_secrets)
