"""A run as a stream of typed happenings: pieces of text, cells, calls, results, evictions, and at
last the answer.
"""

import tempfile

from scroll_context import Agent, ScriptedModel, Session, Store, exec_cell, tool


@tool
def weather(city: str) -> dict:
    """The weather in a city."""
    return {"city": city, "sky": "clear", "celsius": 21}


with (
    tempfile.TemporaryDirectory() as folder,
    Store(folder, create=True) as store,
    Session.open(store, tools=[weather]) as session,
):
    model = ScriptedModel(
        [exec_cell("print(weather('Graz')['sky'])"), "The sky over Graz is clear."]
    )
    for happening in Agent(session, model).stream("What is the weather in Graz?"):
        match happening.kind:
            case "text":
                print("text:", happening.text)
            case "cell" | "call" | "result" | "observation":
                print(f"{happening.kind}:", happening.text.splitlines()[0])
            case "answer":
                print("answer:", happening.text)
