"""Scroll under a loop that is not ours: follow the host's list, apply the layout, record the reply.

Any program with a hook before its model request can do this. `scroll_adapters.pydantic_ai` is
such an adapter, ready to use.
"""

import tempfile

from scroll_context import Session, Store
from scroll_context.hosts import HostMessage, Insert, Keep, Replace, Reply, ToolCall

WINDOW = 3_000

with (
    tempfile.TemporaryDirectory() as folder,
    Store(folder, create=True) as store,
    Session.open(store) as session,
):
    history: list[HostMessage] = []  # the host's own list, which stays complete
    largest = 0
    for number in range(30):
        text = f"Question {number}. " + "Some context. " * 20
        history.append(HostMessage(role="user", text=text))
        layout = session.follow(history, system="You are helpful.", window=WINDOW)
        request = []
        for item in layout:
            if isinstance(item, Keep):
                request.append(history[item.index].text)
            elif isinstance(item, Insert | Replace):
                request.append(item.text)
        largest = max(largest, layout.tokens)
        reply = Reply(text=f"Answer {number}.")  # the host asks its model with this request
        session.replied(reply)
        history.append(HostMessage(role="assistant", text=reply.text))
    print(len(history), "messages in the host's list; each request fits:", largest <= WINDOW)

    history.append(HostMessage(role="user", text="What was question 3?"))
    session.follow(history, system="You are helpful.", window=WINDOW)
    session.replied(Reply(tool_calls=(ToolCall("c1", "exec", {"source": "..."}),)))
    print(
        session.run(
            "print(ms.search('Question 3', role='user', k=1)[0]['content'][:11])", "c1"
        ).content
    )
