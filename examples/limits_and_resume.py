"""Limits end a run in a clear state, and nothing is lost: the same session goes on when there is
more to spend.
"""

import tempfile

from scroll_context import Agent, Limits, ScriptedModel, Session, Store, exec_cell

STEPS = [exec_cell(f"done = {n}\nprint('step', done)") for n in range(1, 5)]

with tempfile.TemporaryDirectory() as folder, Store(folder, create=True) as store:
    with Session.open(store, session_id="work") as session:
        run = Agent(
            session, ScriptedModel(STEPS), limits=Limits(steps=2, seconds=60, tokens=100_000)
        ).run("Do four steps.")
        print(run.state, run.totals.steps)
    with Session.resume(store, "work") as session:
        rest = ScriptedModel([*STEPS[2:], "All four steps are done."])
        run = Agent(session, rest).run()  # without a message: go on where it stopped
        print(run.state, run.answer)
