"""An answer of a type: the model calls `answer`, what it gives is checked, and what does not fit is
sent back to it.
"""

import dataclasses
import tempfile

from scroll_context import Agent, ScriptedModel, Session, Store
from scroll_context.hosts import Reply, ToolCall


@dataclasses.dataclass
class Offer:
    """A flight and its price in whole francs."""

    flight: str
    price: int


def giving(answer: object) -> Reply:
    return Reply(tool_calls=(ToolCall("a", "answer", {"answer": answer}),))


with (
    tempfile.TemporaryDirectory() as folder,
    Store(folder, create=True) as store,
    Session.open(store) as session,
):
    model = ScriptedModel([giving({"flight": "LX707"}), giving({"flight": "LX707", "price": 62})])
    run = Agent(session, model, answer=Offer).run("Which flight do I take?")
    assert run.value is not None
    print(run.value.flight, "for", run.value.price, "after", run.totals.steps, "tries")
