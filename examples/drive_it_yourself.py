"""Scroll under a loop that is not ours: observe the host's history, take the view, record the
reply, run the cells.

Any framework with a hook before its model request can do this; `scroll_context.hosts.pydantic_ai`
is one, ready made.
"""

import tempfile

from scroll_context import Session, Store
from scroll_context.hosts import Message, Reply, ToolCall

WINDOW = 3_000

with (
    tempfile.TemporaryDirectory() as folder,
    Store(folder, create=True) as store,
    Session.open(store) as session,
):
    history: list[Message] = []  # the host's own, which stays whole
    largest = 0
    for number in range(30):
        history.append(Message(role="user", text=f"Question {number}. " + "Some context. " * 20))
        session.observe(history)  # records what is new; the rest is known
        request = session.view("You are helpful.", window=WINDOW, model_name="host")
        largest = max(largest, sum(len(message.text) for message in request.messages) // 4)
        reply = Reply(text=f"Answer {number}.")  # the host's model is asked with request.messages
        session.replied(reply)
        history.append(reply.message())
    print(
        len(history),
        "messages in the host's history; about",
        largest <= WINDOW,
        "that each request fitted",
    )

    session.observe([*history, Message(role="user", text="What was question 3?")])
    session.view("You are helpful.", window=WINDOW)
    session.replied(Reply(tool_calls=(ToolCall("c1", "exec", {"source": "..."}),)))
    print(session.run("print(ms.search('Question 3', k=1)[0]['content'][:11])", "c1").content)
