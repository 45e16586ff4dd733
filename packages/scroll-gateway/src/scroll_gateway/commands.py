"""The commands `scroll gateway` and `scroll wrap`."""

import ipaddress
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from scroll_context.cli.options import Place, json_option, store_option
from scroll_context.cli.output import Command, echo, note, print_document, print_table

if TYPE_CHECKING:
    from scroll_gateway.sums import Sums

WINDOW = 120_000
ASSISTANTS = ("claude", "codex", "opencode")
# The names under which the MCP server knows the assistants.
_RECORDED_AS = {"claude": "claude-code", "codex": "codex", "opencode": ""}

window_option = click.option(
    "--window",
    type=click.IntRange(4_000),
    default=WINDOW,
    show_default=True,
    help="The maximum request size, in tokens.",
)


def _upstream(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """The address of an upstream: a provider's, or a URL."""
    from scroll_gateway.running import UPSTREAMS

    if value is None or value in UPSTREAMS:
        return UPSTREAMS.get(value or "")
    if not value.startswith(("http://", "https://")) or not urlsplit(value).hostname:
        raise click.BadParameter(f"{value!r} is not anthropic, openai or a URL")
    _warn_if_readable(value)
    return value


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _warn_if_readable(url: str) -> None:
    """Say so when keys and conversations would cross a network unencrypted."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "http" and not _is_this_machine(host):
        note(
            f"keys and conversations will travel to {host} unencrypted; "
            "use https:// unless you trust the network"
        )


@click.command(cls=Command)
@click.argument("action", metavar="[status]", type=click.Choice(["status"]), required=False)
@click.option(
    "--upstream",
    metavar="anthropic|openai|URL",
    callback=_upstream,
    help="The provider that gets the requests. Keys are sent nowhere else.",
)
@window_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="a free one",
    help="The port on 127.0.0.1.",
)
@click.option("--task", metavar="ID", help="The task that sessions belong to.")
@store_option
@json_option
def gateway(
    action: str | None,
    upstream: str | None,
    window: int,
    port: int,
    task: str | None,
    store: Place,
    as_json: bool,
) -> None:
    """Keep the requests of any program within a token window.

    The gateway listens on 127.0.0.1 and forwards requests to one provider. Messages that no longer
    fit the window are shortened to one line or moved to an index, and everything is recorded in the
    store. `status` lists your running gateways.

    \b
    Examples:
      scroll gateway --upstream anthropic
      scroll gateway --upstream http://127.0.0.1:11434 --window 30000 --store ./work.scroll
      scroll gateway status
    """
    if action == "status":
        _print_status(as_json=as_json)
        return
    if upstream is None:
        raise click.UsageError("Name the --upstream: anthropic, openai or a URL.")
    from scroll_context.projects import Project, project_of
    from scroll_gateway.running import collect_garbage_rarely, opened

    logging.basicConfig(level=logging.WARNING, format="scroll: %(message)s")
    project = Project("", task) if task else project_of(Path.cwd())
    with opened(
        store,
        upstream,
        window=window,
        task_id=project.task,
        earlier_tasks=project.earlier,
        port=port,
    ) as running:
        if as_json:
            print_document({"url": running.url, "pid": os.getpid(), "window": window})
        else:
            _print_usage(running.url, upstream)
        collect_garbage_rarely()
        try:
            running.serve()
        finally:
            # Only a signal ends it, which is raised again when the server is down.
            note(_summary(running.sums()))


def _print_usage(url: str, upstream: str) -> None:
    echo(f"base URL: {url}")
    echo(f"requests go to {upstream}. Point a client at the base URL:")
    echo(f"  Claude Code, Anthropic SDK   ANTHROPIC_BASE_URL={url}")
    echo(f"  OpenAI SDK                   OPENAI_BASE_URL={url}/v1")
    echo(f"  other OpenAI clients         base_url = {url}/v1")
    echo("Press Ctrl-C to stop. `scroll serve` shows the requests.")


def _print_status(*, as_json: bool) -> None:
    from scroll_gateway.running import running

    rows = running()
    if as_json:
        print_document({"gateways": rows})
        return
    if not rows:
        note("no gateway is running")
        return
    columns = (
        ("pid", "pid"),
        ("window", "window"),
        ("requests", "requests"),
        ("evictions", "evictions"),
        ("tokens sent", "tokens_sent"),
        ("direct", "tokens_direct"),
        ("cost sent", "cost_sent"),
        ("direct", "cost_direct"),
        ("upstream", "upstream"),
    )
    rows = [row | {"pid": str(row["pid"])} for row in rows]
    lines = [tuple(_shown(row.get(key, "")) for _, key in columns) for row in rows]
    print_table(tuple(title for title, _ in columns), lines)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _summary(sums: "Sums") -> str:
    """One line about a run."""
    requests = "1 request" if sums.requests == 1 else f"{sums.requests:,} requests"
    evictions = "1 eviction" if sums.evictions == 1 else f"{sums.evictions:,} evictions"
    text = (
        f"{requests}: about {sums.sent.tokens:,} tokens sent, {sums.direct.tokens:,} without the "
        f"gateway, {evictions}."
    )
    if sums.faults:
        text += f" {sums.faults:,} were forwarded unchanged because of an error."
    return text + " `scroll serve` shows the conversation."


@click.command(
    cls=Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--upstream",
    metavar="anthropic|openai|URL",
    callback=_upstream,
    help="The provider that gets the requests.",
    show_default="where the assistant sends them",
)
@window_option
@store_option
@click.argument("assistant", type=click.Choice(ASSISTANTS))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def wrap(
    assistant: str, arguments: tuple[str, ...], upstream: str | None, window: int, store: Place
) -> None:
    """Run a coding assistant behind its own gateway.

    Put options of this command before the assistant's name, and the assistant's own options after
    it. The gateway stops when the assistant exits. The assistant's files are not changed: the
    address and the recall tools are passed for this run only.

    \b
    Examples:
      scroll wrap claude
      scroll wrap --window 60000 claude --resume
      scroll wrap codex exec "fix the tests"
    """
    from scroll_context.projects import project_of
    from scroll_gateway import assistants
    from scroll_gateway.running import collect_garbage_rarely, opened
    from scroll_gateway.wrapping import status_of

    path = assistants.program(assistant)
    environment = dict(os.environ)
    target = upstream or assistants.upstream_of(assistant, environment)
    place = store if isinstance(store, str) else store.expanduser().absolute()
    project = project_of(Path.cwd())
    _log_to_file()
    with opened(
        place, target, window=window, task_id=project.task, earlier_tasks=project.earlier
    ) as running:
        recall = assistants.Recall.of(str(place), project.task, _RECORDED_AS[assistant])
        run = assistants.run_of(assistant, path, arguments, running.url, recall, environment)
        collect_garbage_rarely()
        with running.serving():
            status = status_of(run)
        note(_summary(running.sums()))
    raise click.exceptions.Exit(status)


def _log_to_file() -> None:
    """Log to a file, because the terminal belongs to the assistant."""
    from scroll_context.files import state_folder

    file = Path(state_folder()) / "gateway.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=file, level=logging.WARNING, format="%(asctime)s %(process)d %(message)s"
    )


def checks(_: Path) -> list[Any]:
    """The running gateways, and the assistants that can be wrapped, for `scroll doctor`."""
    import shutil

    import msgspec

    from scroll_gateway.running import running

    row = msgspec.defstruct(
        "Row",
        [
            ("title", str),
            ("state", str),
            ("missing", list[str], msgspec.field(default_factory=list)),
        ],
    )
    rows = [
        row(
            f"gateway {facts['pid']}",
            f"running, {facts['requests']:,} requests to {facts['upstream']}",
        )
        for facts in running()
    ]
    names = [name for name in ASSISTANTS if shutil.which(name)]
    rows.append(
        row("scroll wrap", f"can run {', '.join(names) or 'none of ' + ', '.join(ASSISTANTS)}")
    )
    return rows
