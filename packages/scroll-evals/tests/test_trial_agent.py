"""The agent of a trial: the paper's tool names, and a tool that ends the run."""

from collections.abc import Callable

from scroll_context.events import Kind
from scroll_context.messages import ToolCall, ToolSpec
from scroll_context.models import Reply, ScriptedModel, exec_cell
from scroll_context.session.session import Session
from scroll_evals.trial_agent import TrialAgent

Opened = Callable[..., Session]


def test_the_papers_tool_names_share_one_kernel(opened: Opened) -> None:
    session = opened()
    model = ScriptedModel(
        [
            exec_cell("x = 20", tool="repl_exec"),
            exec_cell("print(x + 1, ms.search('hello')[0]['role'])", tool="recall_history_python"),
            Reply(tool_calls=(ToolCall("", "submit_answer", {"answer": "21"}),)),
        ]
    )
    finish = ToolSpec(
        "submit_answer", "Give the answer.", {"type": "object", "properties": {"answer": {}}}
    )
    agent = TrialAgent(
        session, model, cell_tools=("repl_exec", "recall_history_python"), finish_tool=finish
    )
    session.store.append(
        session.scope.draft(Kind.CONVERSATION, role="user", content="hello from before")
    )
    assert agent.run("what is x?").answer == "21"
    assert [spec.name for spec in model.requests[0].tools] == [
        "repl_exec",
        "recall_history_python",
        "submit_answer",
    ]
    assert model.requests[2].messages[-1].text == "21 user"
