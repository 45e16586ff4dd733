"""The command reference in docs/CLI.md, made from the `--help` of every command.

`python testing/cli_reference.py` writes it. A test compares the file with this text, so a command
whose help has changed cannot leave an old reference behind.
"""

from pathlib import Path

import click

from scroll_context.cli.app import app
from scroll_context.cli.commands import GROUPS, HIDDEN, commands

FILE = Path(__file__).parents[1] / "docs" / "CLI.md"
MARK = "<!-- Everything below is generated from --help by testing/cli_reference.py. -->\n"
# The commands of this package have their own page.
ELSEWHERE = ("eval",)
HEADINGS = {HIDDEN: "Called by other programs"}


def reference() -> str:
    """The generated part of the page."""
    sections = []
    for group in (*GROUPS, HIDDEN):
        names = [
            name
            for name, entry in commands().items()
            if entry.group == group and name not in ELSEWHERE
        ]
        if names:
            heading = f"## {HEADINGS.get(group, group)}\n"
            sections.append("\n".join([heading, *map(_command, names)]))
    return MARK + "\n" + "\n".join(sections)


def _command(name: str) -> str:
    context = click.Context(app, info_name="scroll")
    command = app.get_command(context, name)
    assert command is not None
    blocks = [_block(command, f"scroll {name}")]
    if isinstance(command, click.Group):
        for member, subcommand in command.commands.items():
            blocks.append(_block(subcommand, f"scroll {name} {member}"))
    return "\n".join(blocks)


def _block(command: click.Command, title: str) -> str:
    # The width is fixed, so that the text does not depend on a terminal.
    context = click.Context(
        command,
        info_name=title,
        terminal_width=90,
        max_content_width=90,
        help_option_names=["-h", "--help"],
    )
    return f"### {title}\n\n```\n{command.get_help(context)}\n```\n"


def page() -> str:
    """The complete page: its written part as it is, and the generated part."""
    written = FILE.read_text("utf-8").partition(MARK)[0]
    return written + reference()


if __name__ == "__main__":
    FILE.write_text(page(), "utf-8")
