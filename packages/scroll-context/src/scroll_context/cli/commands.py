"""The list of the commands of `scroll`, its own and those of installed packages.

`scroll --help` is answered from this table, with next to nothing imported. To add a command, write
it with click, with its docstring as its help, and name it in COMMANDS. Any installed package can
add commands: an entry point in the group `scroll_context.commands` names a command and says
`module:object`, where the object is a click command. plugins.py says where its summary comes from.
"""

from scroll_context.plugins import entry_points

GROUP = "scroll_context.commands"

PACKAGES = dict.fromkeys(("watch", "install", "uninstall", "hook", "mcp"), "scroll-assistants")
PACKAGES |= dict.fromkeys(("push", "pull", "admin"), "scroll-shared")
PACKAGES["serve"] = "scroll-inspector"
PACKAGES |= dict.fromkeys(("gateway", "wrap"), "scroll-gateway")
"""The packages that add well-known commands, for an error message when one is not installed."""

# The module and object below scroll_context.cli, and the first line of the help, by name.
COMMANDS = {
    "import": ("importing:import_", "Add messages to a store; creates the store if there is none."),
    "search": ("reading:search", "Find events by their words, best first."),
    "show": ("reading:show", "Show an event, or a range of events."),
    "get": ("reading:get", "Write the payload or the text of an event to a file or stdout."),
    "sessions": ("reading:sessions", "List the sessions, oldest first."),
    "read": ("history:read", "Read a session as a conversation."),
    "stats": ("reading:stats", "Show the size and the contents of the store."),
    "sql": ("reading:sql", "Run a read-only SQL query on the history."),
    "verify": (
        "upkeep:verify",
        "Check events, payloads and the search index against their hashes.",
    ),
    "salvage": ("upkeep:salvage", "Build a new log from the readable parts of a damaged one."),
    "reindex": ("upkeep:reindex", "Rebuild the search index from the log."),
    "erase": ("forgetting:erase", "Erase the content of events from every file of the store."),
    "retention": ("forgetting:retention", "Erase events that are older than a given age."),
    "scan": ("forgetting:scan", "Find keys, tokens and private keys in recorded events."),
    "backup": ("upkeep:backup", "Copy the store to a new folder."),
    "export": ("upkeep:export", "Write everything as JSON Lines: events, hashes and payloads."),
    "doctor": ("kernel:doctor", "Check the sandbox and the connected assistants."),
    "repl": ("kernel:repl", "Run Python in the jailed kernel yourself."),
    "chat": ("agent:chat", "Talk to an agent whose memory is the store."),
    "run": ("agent:run", "Give an agent one task, in a new session."),
    "resume": ("agent:resume", "Resume a session."),
    "fork": ("agent:fork", "Start a new session from another one's past, up to a seq."),
    "explain": (
        "history:explain",
        "Show what a model saw at a request, and what had left its view.",
    ),
    "trajectory": (
        "history:trajectory",
        "Show the steps of a session: reasoning, action, observation.",
    ),
    "completion": ("app:completion", "Print the completion script for a shell."),
    "demo": ("demo:demo", "Watch an agent work in a context window that is far too small."),
}

OVERVIEW = """\
Usage: scroll [OPTIONS] COMMAND [OPTIONS] [ARGS]...

  Scroll keeps the full history of your agents. Nothing is summarised away, and
  everything can be searched.

  A store is a directory or a shared Postgres database. Commands use the store
  named by --store or by SCROLL_STORE, or else your own: ~/.scroll, or a folder
  for application data. A .scroll in the current folder is used only if you
  name it.

  Begin with:
    scroll import chat.jsonl
    scroll search 'toll-free route'
    scroll show 12

  `scroll COMMAND --help` explains a command, with examples.

Options:
  --store DIR  The store; the option may also follow the command.
  --version    Show the version and exit.
  -h, --help   Show this message and exit.

Commands:
"""


def overview() -> str:
    """What `scroll --help` prints."""
    return OVERVIEW + "".join(f"  {name:<12}{line}\n" for name, (_, line) in commands().items())


def commands() -> dict[str, tuple[str, str]]:
    """COMMANDS, then the commands that installed packages add: target and summary by name."""
    table = {
        name: (f"scroll_context.cli.{target}", summary)
        for name, (target, summary) in COMMANDS.items()
    }
    for point in entry_points(GROUP):
        if point.name not in table:
            table[point.name] = (point.target, point.summary())
    return table
