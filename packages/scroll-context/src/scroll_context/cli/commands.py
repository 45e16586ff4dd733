"""The list of the commands of `scroll`, its own and those of installed packages, and the exit
statuses that they share.

`scroll --help` is answered from this table, with next to nothing imported. To add a command, write
it with click, with its docstring as its help, and name it in COMMANDS. Any installed package can
add commands: an entry point in the group `scroll_context.commands` names a command and says
`module:object`, where the object is a click command. plugins.py says where its summary and the
group in which the help lists it come from.
"""

from scroll_context.plugins import entry_points

# Exit statuses. Status 0 means done, 1 an error, and 2 a usage error.
STOPPED_BY_LIMIT = 3
INTERRUPTED = 130
TERMINATED = 143

ENTRY_POINTS = "scroll_context.commands"

GROUPS = ("Start", "Agent", "Assistants", "Gateway", "Store", "Privacy", "Shared", "Other")
"""The headings of `scroll --help`, in order. Commands that name none of them are under the last."""
HIDDEN = "Hidden"
"""The group of commands that other programs call, which the help does not list."""

PACKAGES = {
    "watch": "scroll-assistants",
    "install": "scroll-assistants",
    "hook": "scroll-assistants",
    "mcp": "scroll-assistants",
    "shared": "scroll-shared",
    "serve": "scroll-inspector",
    "eval": "scroll-evals",
    "gateway": "scroll-gateway",
    "wrap": "scroll-gateway",
}
"""The packages that add well-known commands, for an error message when one is not installed."""


class Entry:
    """A command of the list."""

    def __init__(self, target: str, summary: str, group: str) -> None:
        self.target = target
        """`module:object`."""
        self.summary = summary
        self.group = group


# The module and object below scroll_context.cli, and the first line of the help, by group and name.
COMMANDS = {
    "Start": {
        "demo": ("demo:demo", "Watch an agent work in a context window that is far too small."),
        "doctor": ("kernel:doctor", "Check the jail and the connected assistants."),
        "import": ("importing:import_", "Add messages from files to a store."),
        "search": ("reading:search", "Find events by their words, best first."),
        "sessions": ("reading:sessions", "List the sessions, oldest first."),
        "read": ("history:read", "Read a session as a conversation."),
        "show": ("reading:show", "Show an event or a range of events."),
    },
    "Agent": {
        "chat": ("agent:chat", "Talk to an agent whose memory is the store."),
        "run": ("agent:run", "Give an agent one prompt, in a new session."),
        "resume": ("agent:resume", "Resume a session."),
        "fork": ("agent:fork", "Start a new session from an earlier point in another one."),
        "explain": (
            "history:explain",
            "Show what the model saw in a request, and what it no longer saw.",
        ),
        "repl": ("kernel:repl", "Run Python in the jailed kernel yourself."),
    },
    "Assistants": {
        "brief": ("assistants:brief", "Show the few earlier events that are relevant to a prompt."),
        "project": (
            "assistants:project",
            "Show the project that a folder belongs to, or join two clones.",
        ),
    },
    "Store": {
        "stats": ("reading:stats", "Show the size and contents of the store."),
        "sql": ("reading:sql", "Run a read-only SQL query on the history."),
        "verify": (
            "upkeep:verify",
            "Check events, payloads and the search index against their hashes.",
        ),
        "repair": ("upkeep:repair", "Rebuild a damaged log or a damaged search index."),
        "backup": ("upkeep:backup", "Copy the store to a new folder."),
        "export": ("upkeep:export", "Write events, hashes and payloads as JSON Lines."),
    },
    "Privacy": {
        "scan": ("forgetting:scan", "Find keys, tokens and private keys in recorded events."),
        "erase": ("forgetting:erase", "Erase the content of events from every file of the store."),
        "retention": ("forgetting:retention", "Erase events that are older than a given age."),
    },
    HIDDEN: {
        "completion": ("app:completion", "Print the completion script for a shell."),
    },
}

OVERVIEW = """\
Usage: scroll [OPTIONS] COMMAND [OPTIONS] [ARGS]...

  Scroll keeps the full history of your agents, word for word, and lets you
  search it.

  A store is a directory or a shared Postgres database. Commands use the store
  named by --store or SCROLL_STORE, or else ~/.scroll or ~/.local/share/scroll.
  A .scroll in the current folder is used only if you name it.

  Begin with:
    scroll demo --keep trip
    scroll search 'walnut allergy' --store trip
    scroll read trip-2 --store trip

  `scroll COMMAND --help` explains a command, with examples. Most examples work
  in the demo's store: run `export SCROLL_STORE=trip` first.

Options:
  --store DIR  The store; the option may also follow the command.
  --version    Show the version and exit.
  -h, --help   Show this message and exit.
"""


def overview() -> str:
    """The text of `scroll --help`."""
    lines: dict[str, list[str]] = {group: [] for group in GROUPS}
    for name, entry in commands().items():
        if entry.group != HIDDEN:
            heading = entry.group if entry.group in GROUPS else GROUPS[-1]
            lines[heading].append(f"  {name:<12}{entry.summary}\n")
    sections = [f"\n{group}:\n{''.join(rows)}" for group, rows in lines.items() if rows]
    return OVERVIEW + "".join(sections)


def commands() -> dict[str, Entry]:
    """COMMANDS, then the commands that installed packages add, by name."""
    table = {
        name: Entry(f"scroll_context.cli.{target}", summary, group)
        for group, members in COMMANDS.items()
        for name, (target, summary) in members.items()
    }
    for point in entry_points(ENTRY_POINTS):
        if point.name not in table:
            summary, group = point.description()
            table[point.name] = Entry(point.target, summary, group)
    return table
