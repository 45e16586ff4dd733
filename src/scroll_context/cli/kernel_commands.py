"""Commands of the kernel: what its jail enforces on this machine."""

from typing import Annotated, Literal

import typer

from scroll_context.cli.options import AsJson
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
            state = f"works, {len(found.canaries)} canaries refused" if found.available else found.refusal
            typer.echo(f"tier {found.tier}: {state}")
        typer.echo(f"a kernel here runs in tier: {report.tier or 'none at all, it would not start'}\n")
        rows = [
            ("yes" if row.enforced else "NO", row.name, row.mechanism + (f". {row.remedy}" if row.remedy else ""))
            for row in report.guarantees
        ]
        print_table(("enforced", "guarantee", "by"), rows)
    if not report.ok:
        note(f"tier {tier!r} cannot be had on this machine; no kernel would start")
        raise typer.Exit(1)
