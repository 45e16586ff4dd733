"""From a command line to the command that it calls, with the settings of the configuration file `scroll.toml`.

Of the commands, only the one that is called is imported. Of the configuration files, the one in the current folder
comes before the one in the user's configuration folder; the command line and the environment come before both. A cloned
repository may bring a file along, and must not run code or send words away with it: of a file in the current folder,
only the settings in HARMLESS count until `scroll trust` was said to exactly these contents.
"""

import difflib
import importlib
import os
from pathlib import Path
from typing import Any

import click

from scroll_context import __version__
from scroll_context.cli.main import commands, overview
from scroll_context.cli.options import FILE, Place, parse_place
from scroll_context.cli.output import Command, echo, faults_in_one_line, note, one_line
from scroll_context.errors import BadInput
from scroll_context.store.shared.address import is_address

NAME = "scroll.toml"
SETTINGS: dict[str, tuple[type, ...]] = {  # each is an option of one or more commands
    "store": (str,), "model": (str,), "base_url": (str,), "window": (int,), "ask": (str,), "tools": (list,),
    "mcp": (list,), "reach": (str,), "context": (str,), "agent": (str,), "task": (str,), "system": (str,),
}  # fmt: skip
HARMLESS = ("store", "window", "context", "agent", "task")
AGENT_COMMANDS = ("chat", "run", "resume")
PATHS = ("store", "tools")  # relative to the folder of the file


def default_map(command: str) -> dict[str, Any]:
    """What the configuration files say for the options of a command."""
    here, mine = Path(NAME), user_file()
    settings = read(mine) if mine.is_file() else {}
    if here.is_file():
        found = read(here)
        withheld = [] if is_trusted(here) else [name for name in found if name not in HARMLESS]
        if "store" in found and is_address(found["store"]) and not is_trusted(here):
            withheld.append("store")  # a foreign server would be sent the whole history
        if withheld and command in AGENT_COMMANDS:
            note(
                f"{NAME} in this folder also sets {', '.join(withheld)}; that is not used until you have read the file "
                "and said `scroll trust`"
            )
        settings |= {name: value for name, value in found.items() if name not in withheld}
    if command not in AGENT_COMMANDS:  # an option such as --agent means something else there
        settings = {name: value for name, value in settings.items() if name == "store"}
    return settings


def user_file() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "scroll" / NAME


def read(file: Path) -> dict[str, Any]:
    """The settings in a file, with paths that hold from here. Raises BadInput that names what is wrong with it."""
    import tomllib

    try:
        found = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{file} cannot be read: {error}") from error
    for name, value in found.items():
        if name not in SETTINGS:
            raise BadInput(f"{file} sets {name!r}, which is no setting; there are {', '.join(SETTINGS)}")
        texts = value if isinstance(value, list) else ()
        if not isinstance(value, SETTINGS[name]) or not all(isinstance(one, str) for one in texts):
            wanted = "a list of texts" if SETTINGS[name] == (list,) else SETTINGS[name][0].__name__
            raise BadInput(f"{file} sets {name} to {value!r:.80}; it must be {wanted}")
    for name in PATHS:
        if name in found:
            value = found[name]
            found[name] = [_beside(file, one) for one in value] if isinstance(value, list) else _beside(file, value)
    return found


def _beside(file: Path, path: str) -> str:
    if is_address(path):
        return path
    return str(file.parent / Path(path).expanduser())


# trust ------------------------------------------------------------------------------------------------------


@click.command(cls=Command)
@click.argument("file", type=FILE, default=Path(NAME))
@click.option("--remove", is_flag=True, help="Trust it no longer.")
def trust(file: Path, remove: bool) -> None:
    """Let a configuration file choose models, tools and reach.

    Of a scroll.toml in the current folder, only harmless settings are used until then, since it may have come with
    a foreign repository. After another change of the file, it must be trusted again.

    \b
    Examples:
      scroll trust
      scroll trust --remove
    """
    if not file.is_file():
        raise BadInput(f"there is no file {file} to trust")
    settings = read(file)
    known = _trusted()
    key = str(file.resolve())
    if remove:
        known.pop(key, None)
    else:
        known[key] = _digest(file)
        for name, value in settings.items():
            echo(f"{name} = {one_line(str(value))}")
    _list_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _list_file().write_text("".join(f"{digest} {path}\n" for path, digest in sorted(known.items())), "utf-8")
    note(f"{file} is trusted {'no longer' if remove else 'as it is now'}")


def is_trusted(file: Path) -> bool:
    """Whether the user has trusted this file with these contents."""
    return _trusted().get(str(file.resolve())) == _digest(file)


def _digest(file: Path) -> str:
    import hashlib

    return hashlib.sha256(file.read_bytes()).hexdigest()


def _list_file() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "scroll" / "trusted"


def _trusted() -> dict[str, str]:
    """The files that are trusted, each with the hash of its contents then."""
    try:
        lines = _list_file().read_text("utf-8").splitlines()
    except OSError:
        return {}
    return {path: digest for digest, _, path in (line.partition(" ") for line in lines)}


PLAIN = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
"""Whether the user or the terminal wants no colours."""


class Commands(click.Group):
    """The commands of the table and of installed packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls it
        return list(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        known = commands().get(cmd_name)
        if known is None:
            return None
        module, _, attribute = known[0].partition(":")
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        with faults_in_one_line():  # of commands that are not ours
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing:
            ctx.default_map = {args[0]: default_map(args[0])}
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx))
            meant = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise click.UsageError(f"No such command {args[0]!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        formatter.write(overview())


@click.group(
    "scroll",
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "color": False if PLAIN else None},
)
@click.version_option(__version__, prog_name="scroll", message="%(prog)s %(version)s")
@click.option("--store", type=parse_place, metavar="DIR", help="The folder of the store; may also follow the command.")
def app(store: Place | None) -> None:
    """The command `scroll`; its help is the overview of main.py."""


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    Commands, options, and the names of the sessions in the store are completed with the Tab key.

    \b
    Examples:
      echo 'eval "$(scroll completion bash)"' >> ~/.bashrc
      echo 'eval "$(scroll completion zsh)"' >> ~/.zshrc
      scroll completion fish > ~/.config/fish/completions/scroll.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    echo(found(app, {}, "scroll", "_SCROLL_COMPLETE").source())
