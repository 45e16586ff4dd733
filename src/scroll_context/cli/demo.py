"""`scroll demo`: the main job from end to end, in a temporary folder, in a few seconds."""

import contextlib
import tempfile
from importlib import resources
from pathlib import Path

import typer

QUESTION = "toll roads route"


def demo() -> None:
    """See Scroll work on a small conversation that comes with it.

    \b
    Example:
      scroll demo
    """
    from scroll_context.cli.importing import import_
    from scroll_context.cli.options import DEFAULT_STORE, open_store
    from scroll_context.cli.reading import search, sessions, show

    trip = resources.files("scroll_context") / "bundled" / "trip.jsonl"
    with tempfile.TemporaryDirectory(prefix="scroll-demo-") as folder, contextlib.chdir(folder):
        Path("trip.jsonl").write_bytes(trip.read_bytes())
        _say("A conversation of three sessions about a trip to Portugal is imported into a new store.")
        _run("scroll import trip.jsonl")
        import_([Path("trip.jsonl")])
        _run("scroll sessions")
        sessions()
        _say("In the first session the traveller said how to drive. Two months later somebody needs to know.")
        _run(f"scroll search '{QUESTION}' -k 3")
        search(QUESTION, k=3)
        with open_store(DEFAULT_STORE) as opened:
            best = opened.index.search(QUESTION, k=1)[0].seq
        _say("Nothing was summarised away: each hit has an address, and the address gives the exact words.")
        _run(f"scroll show {best}-{best + 1}")
        show(f"{best}-{best + 1}")
    _say("That store was temporary. Make your own with: scroll import FILE")


def _say(text: str) -> None:
    typer.secho(f"\n{text}", fg=typer.colors.CYAN)


def _run(command: str) -> None:
    typer.secho(f"$ {command}", bold=True)
