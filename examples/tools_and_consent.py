"""Tools with effects: the user is asked first, and a refusal is told to the model, not hidden from
it.
"""

import tempfile

from scroll_context import Agent, ScriptedModel, Session, Store, ToolUse, exec_cell, tool

sent: list[str] = []


@tool
def list_contacts(team: str) -> list[str]:
    """The addresses of a team."""
    return [f"{name}@{team}.example" for name in ("ada", "grace", "edsger")]


@tool(effects=True, max_calls=10, timeout=5)
def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    sent.append(to)
    return f"sent to {to}"


def confirm(use: ToolUse) -> bool:
    allowed = not str(use.arguments["to"]).startswith("edsger")
    print(f"may {use.name} run for {use.arguments['to']}? {'yes' if allowed else 'no'}")
    return allowed


CELL = """
for one in list_contacts("tools"):
    try:
        print(send_mail(one, "The meeting is at ten."))
    except ToolFailed as refused:
        print("not sent:", one)
"""

with (
    tempfile.TemporaryDirectory() as folder,
    Store(folder, create=True) as store,
    Session.open(store, tools=[list_contacts, send_mail], confirm=confirm) as session,
):
    run = Agent(
        session, ScriptedModel([exec_cell(CELL), "Two mails are out; one was refused."])
    ).run("Invite the team.")
    print(run.answer)
    print("really sent:", ", ".join(sent))
