"""A host of its own: opens a session in a shared store and works in it until it is told otherwise.

session_driver.py URL stuck [NAME]  bind a variable, then wait inside a tool that has effects; print
"inside" session_driver.py URL again [NAME]  the same; when the tool returns, try another call, and
print how that ends session_driver.py URL hold NAME     have a session open until standard input
closes; print "held"
"""

import os
import sys
from pathlib import Path

from scroll_context import Store, tool
from scroll_context.errors import ScrollError, SessionFenced
from scroll_context.events import Scope
from scroll_context.log.journal import Journal
from scroll_context.session.session import Session


def main(url: str, what: str, name: str = "work") -> None:
    with Store(url) as store:
        if what == "hold":
            journal = Journal(store.log, Scope(name))
            os.write(1, b"held\n")
            sys.stdin.read()
            journal.close()
            return
        effects = Path(os.environ["EFFECTS"])

        @tool(effects=True)
        def launch(what: str) -> str:
            """Do something that cannot be undone."""
            with effects.open("a") as file:
                file.write(what + "\n")
            if what == "first":
                os.write(1, b"inside\n")
                sys.stdin.readline()
            return "done"

        session = Session.open(store, session_id=name, tools=[launch])
        session.say("launch it")
        session.run("found = {'answer': 42}", "c1")
        session.environment.variables.wait_for_save()
        try:
            session.run("launch('first')", "c2")
            session.run("launch('second')", "c3")
        except SessionFenced:
            os.write(1, b"fenced\n")
        except ScrollError as error:
            os.write(1, f"{type(error).__name__}: {error}\n".encode())
        else:
            os.write(1, b"went on\n")
        try:
            session.close()
        except ScrollError as error:
            os.write(1, f"closing: {type(error).__name__}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
