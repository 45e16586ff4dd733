"""The command that shows the project of a folder, and joins clones: project."""

from pathlib import Path

import click

from scroll_context.cli.confirmation import confirm, yes_option
from scroll_context.cli.options import FILE, json_option
from scroll_context.cli.output import Command, echo, note, print_document, visible
from scroll_context.errors import BadInput


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
