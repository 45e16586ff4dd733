"""Commands of the kernel: what its jail enforces on this machine, and a prompt on it for a person."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from scroll_context.cli.options import DEFAULT_STORE, AsJson, StoreFolder, open_store
from scroll_context.cli.output import note, print_document, print_table


def doctor(
    tier: Annotated[
        Literal["auto", "full", "kernel-only", "seatbelt", "none"],
        typer.Option(help="The tier that must be there; auto is the best one."),
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Show what the kernel's sandbox enforces here, and how.

    Each tier is built for real in a throwaway process. Status 1 when the required one cannot be had.

    \b
    Examples:
      scroll doctor
      scroll doctor --tier full --json
    """
    from scroll_context.kernel.doctor import examine

    report = examine(tier)
    if as_json:
        print_document(report)
    else:
        typer.echo(f"{report.system}, landlock ABI {report.landlock_abi or '–'}")
        for found in report.tiers:
            state = f"works, {len(found.probes)} canaries refused" if found.available else found.refusal
            typer.echo(f"tier {found.tier}: {state}")
        typer.echo(f"a kernel here runs in tier: {report.tier or 'none at all, it would not start'}\n")
        rows = [("yes" if row.enforced else "NO", row.name, row.mechanism) for row in report.guarantees]
        print_table(("enforced", "guarantee", "by"), rows)
        for row in report.guarantees:
            if row.remedy:
                typer.echo(f"\n{row.name}: {row.remedy}")
    if not report.ok:
        note(f"tier {tier!r} cannot be had on this machine; no kernel would start")
        raise typer.Exit(1)


def repl(
    store: StoreFolder = DEFAULT_STORE,
    tier: Annotated[
        Literal["auto", "full", "kernel-only", "seatbelt", "none"], typer.Option(help="The jail to run in.")
    ] = "auto",
) -> None:
    """Write Python in the jailed kernel yourself.

    The same kernel that a model gets, with `ms` on the store if there is one: files, network and processes are out of
    reach, variables stay. Nothing that you do here is recorded.

    \b
    Examples:
      scroll repl
      scroll repl --store trip.scroll
      echo 'print(len(ms.search("toll")))' | scroll repl
    """
    from scroll_context.cli.repl import run
    from scroll_context.kernel.jail import JailSpec, default_read_only, site_packages
    from scroll_context.kernel.kernel import Kernel
    from scroll_context.kernel.protocol import Prelude
    from scroll_context.kernel.results import CapabilityResult
    from scroll_context.surface.memory import handles_prelude, memory_prelude, reading_surface

    with contextlib.ExitStack() as opened:
        methods: dict[str, Callable[..., CapabilityResult]] = {}
        preludes: tuple[Prelude, ...] = ()
        if store.exists():
            memory = reading_surface(opened.enter_context(open_store(store)))
            opened.callback(memory.close)
            methods = {**memory.methods(), "payload.read": memory.read_payload}
            preludes = (handles_prelude(), memory_prelude())
        else:
            note(f"no store in {store}: ms is not bound")
        spec = JailSpec(tier=tier, read_only=(*default_read_only(), *site_packages()), scratch="")
        kernel = opened.enter_context(contextlib.closing(Kernel(methods, preludes=preludes, spec=spec)))
        status = run(kernel, Path.home() / ".scroll_history")
    raise typer.Exit(status)
