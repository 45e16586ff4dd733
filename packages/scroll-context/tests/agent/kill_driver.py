"""Run by test_kill.py in a process of its own, and killed: one agent that works through a list of
effects.

The tool writes to a ledger outside the store, as a real effect would. The script goes on to the
next number only when it has seen the result of the one before, so a step that was cut off is tried
again, after the model was told. A result may have been folded since: then what the script itself
noted of it, in the headlines of its later calls, tells.
"""

import os
import re
import sys
import time
from pathlib import Path

from scroll_context.agent.agent import Agent
from scroll_context.errors import UnknownSession
from scroll_context.models import Reply, Request, ScriptedModel, answer, exec_cell
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.tools.tools import tool

LAST = 120


def shown(request: Request) -> str:
    return "\n".join(f"{message.text} {message.tool_calls}" for message in request.messages)


def main(folder: Path, ledger: Path, patience: int | None = None) -> None:
    """Work to the end, or, given a patience, for so many steps at most; then wait to be killed."""

    @tool(effects=True)
    def transfer(number: int) -> dict[str, int]:
        """Move one unit."""
        with ledger.open("ab", buffering=0) as out:
            out.write(f"{number}\n".encode())
        return {"number": number}

    def script(request: Request, steps: int) -> Reply:
        if patience is not None and steps >= patience:
            time.sleep(3600)
        number = max(map(int, re.findall(r"done (\d+)", shown(request))), default=0) + 1
        if number > LAST:
            return answer("all done")
        source = (
            f"r{number % 7} = transfer({number})\nprint('done', r{number % 7}['number'], 'x' * 600)"
        )
        return exec_cell(
            source, headline=f"transfer | done {number - 1} | transfer {number} | running"
        )

    with Store(folder, create=True) as store:
        try:
            session = Session.resume(store, "work", tools=[transfer])
            message = None
        except UnknownSession:
            session, message = (
                Session.open(store, session_id="work", tools=[transfer]),
                "Make all transfers.",
            )
        agent = Agent(session, ScriptedModel(script, window=6_000))
        if message is None and not any(event.role == "user" for event in session.events()):
            message = "Make all transfers."
        print(agent.run(message).state, flush=True)
        session.close()


if __name__ == "__main__":
    os.setpgid(0, 0)
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
