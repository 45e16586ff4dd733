"""The first agent: a tool whose rows stay in a variable, and a session that goes on in another
process.

python first_agent.py            # a scripted model, no key needed
SCROLL_MODEL=anthropic:claude-sonnet-4-5 python first_agent.py
"""

import os
import tempfile

from scroll_context import Agent, Model, ScriptedModel, Session, Store, connect, exec_cell, tool


@tool
def search_flights(origin: str, destination: str) -> list[dict]:
    """All flights between two cities, with flight, cabin and price."""
    cabins = ("economy", "business")
    return [
        {"flight": f"LX{n}", "cabin": cabins[n % 2], "price": 60 + 7 * n % 311}
        for n in range(2_000)
    ]


def model(*script: object) -> Model:
    named = os.environ.get("SCROLL_MODEL")
    return connect(named) if named else ScriptedModel(list(script))  # type: ignore[arg-type]


def main(folder: str) -> None:
    find = (
        "flights = search_flights('ZRH', 'LIS')\nbest = min(flights, key=lambda f: "
        "f['price'])\nprint(best['flight'])"
    )
    with (
        Store(folder, create=True) as store,
        Session.open(store, session_id="trip", tools=[search_flights]) as session,
    ):
        run = Agent(session, model(exec_cell(find), "LX0 is the cheapest.")).run(
            "Find me the cheapest flight to Lisbon."
        )
        print(run.state, "-", run.answer)

    # days later, in another process, after any crash: the variables are back
    count = "print(len(flights), 'flights are still bound')"
    with Store(folder) as store, Session.resume(store, "trip", tools=[search_flights]) as session:
        run = Agent(session, model(exec_cell(count), "I still have all 2000 of them.")).run(
            "How many did you look at?"
        )
        print(run.state, "-", run.answer)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
