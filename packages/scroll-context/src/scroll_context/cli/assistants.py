"""Commands for people who use coding assistants.

`brief` shows what a prompt hook would offer for a prompt. `project` shows the project whose history
an assistant may read in a folder, and joins two clones.
"""

from pathlib import Path

import click

from scroll_context.cli.options import (
    FILE,
    Narrowing,
    Place,
    json_option,
    narrowing_options,
    open_store,
    store_option,
)
from scroll_context.cli.output import (
    Command,
    confirm,
    echo,
    note,
    print_document,
    utf8,
    visible,
    yes_option,
)
from scroll_context.errors import BadInput


@click.command(cls=Command)
@click.argument("prompt")
@click.option(
    "--tokens",
    type=click.IntRange(100, 20_000),
    default=600,
    show_default=True,
    help="The maximum size of the brief, in tokens.",
)
@narrowing_options()
@store_option
@json_option
def brief(prompt: str, tokens: int, narrowing: Narrowing, store: Place, as_json: bool) -> None:
    """Show the few earlier events that are relevant to a prompt.

    After `scroll install`, Claude Code, Codex and the Gemini CLI receive these events with a
    prompt, from the history of their project. For most prompts no earlier event is relevant, and
    nothing is added or printed. Files, commands and errors that the prompt names are looked up in
    earlier tool calls. No model is called.

    \b
    Examples:
      scroll brief 'Which port did we choose for the staging server?'
      scroll brief 'Fix the login test in tests/test_login.py' --json
    """
    from scroll_context.brief.brief import brief as brief_of
    from scroll_context.events import Grant

    with open_store(store) as opened:
        place = narrowing.resolve(opened.log)
        grant = Grant(place.session, place.task, place.agent)
        offer = brief_of(opened, utf8(prompt), tokens, grant=grant)
    if as_json:
        print_document(
            {
                "quotations": [quotation._asdict() for quotation in offer.quotations],
                "deeds": [deed._asdict() for deed in offer.deeds],
                "text": offer.text,
            }
        )
        return
    if not offer.text:
        note("nothing in this store is relevant to that prompt")
        return
    echo(visible(offer.text))


@click.command(cls=Command)
@click.argument("folder", type=FILE, default=Path())
@click.option("--join", type=FILE, metavar="DIR", help="Make FOLDER part of the project of DIR.")
@yes_option
@json_option
def project(folder: Path, join: Path | None, yes: bool, as_json: bool) -> None:
    """Show the project that a folder belongs to, or join two clones.

    Subfolders and worktrees of a git repository belong to its project, and so does a folder that
    you renamed. A second clone is a separate project until you join it, because a remote URL proves
    nothing: any repository can be configured with any remote. An assistant in a joined clone can
    read the project's history.

    \b
    Examples:
      scroll project
      scroll project ./copy --join ./original
    """
    from scroll_context.projects import join_projects, project_of, projects_with_remote_of

    for place in filter(None, (folder, join)):
        if not place.is_dir():
            raise BadInput(f"{place} is not a folder; name the folder of a project")
    if join is not None:
        target = project_of(join)
        confirm(
            visible(f"Let {folder.absolute()} share the history of {target.task}?"),
            yes=yes,
        )
        join_projects(folder, join)
    found = project_of(folder)
    same_remote = [member.folder for member in projects_with_remote_of(folder)]
    if as_json:
        print_document({**found._asdict(), "same_remote": same_remote})
        return
    echo(visible(f"task:    {found.task}\nfolder:  {found.folder}"))
    for task in found.earlier:
        echo(visible(f"earlier: {task}"))
    for path in same_remote:
        note(visible(f"{path} has the same remote; to share its history, use --join"))
