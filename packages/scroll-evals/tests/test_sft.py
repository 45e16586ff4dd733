"""The export for fine-tuning: exact contexts, one decision a line, successful trajectories only."""

from pathlib import Path

from scroll_context.models import Reply, Request, exec_cell
from scroll_evals.results import RunFolder
from scroll_evals.sft import Exported, examples
from small import FACTS, agent_model, diligent, runner


def test_contexts_are_what_was_sent(tmp_path: Path) -> None:
    agent = agent_model()
    runner(tmp_path / "run", agent).run()
    exported = Exported()
    found = list(examples(RunFolder(tmp_path / "run"), 1.0, exported))
    assert (exported.trajectories, exported.retrieval, exported.injection) == (4, 4, 4)
    sent = [
        [(message.role, message.text) for message in request.messages] for request in agent.requests
    ]
    for one in found:
        fact = FACTS[one.task_id.split("/")[1]][one.task_id.split("/")[2]]
        assert one.score == 1.0 and one.model == "agent" and one.step_index == 0
        if one.decision == "retrieval":
            shown = [
                (message["role"], message.get("text", "")) for message in one.input["messages"]
            ]
            assert shown in sent and shown[0][0] == "system"
            assert one.output["tool"] == "recall_history_python" and one.output[
                "source"
            ].startswith("hits = ms.search(")
            assert one.output["reasoning"] == "I look it up."
        else:
            assert one.decision == "injection"
            assert (
                fact in one.input["rows"][0]["content"]
                and one.input["rows_total"] >= len(one.input["rows"]) >= 1
            )
            assert one.input["source"].startswith("hits = ms.search(")
            assert fact in one.output["printed"]


def test_what_is_left_out(tmp_path: Path) -> None:
    def clumsy(request: Request, step: int) -> Reply:
        if not any(message.role == "tool" for message in request.messages):
            return exec_cell("print(1 / 0)", tool="recall_history_python")
        if sum(message.role == "tool" for message in request.messages) == 1:
            return diligent(Request(request.messages[:2]), step)
        return diligent(request, step)

    runner(tmp_path / "run", agent_model(clumsy)).run()
    exported = Exported()
    found = list(examples(RunFolder(tmp_path / "run"), 1.0, exported))
    assert exported.skipped_steps == 4 and exported.retrieval == 4
    assert {one.step_index for one in found} == {
        1
    }  # the cell that failed is no example; the one after it is
    assert any(
        "ZeroDivisionError" in message.get("text", "") for message in found[0].input["messages"]
    )

    nothing = Exported()
    assert list(examples(RunFolder(tmp_path / "run"), 1.01, nothing)) == []
    assert nothing.below_threshold == 4 and nothing.trajectories == 0
