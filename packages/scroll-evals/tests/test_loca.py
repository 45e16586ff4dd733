"""LOCA trials, played by a scripted model against a server that speaks the benchmark's protocol."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loca_checkout import CLAIM, SUM, entry, make_checkout, make_trial, native, requests_made
from loca_stub import INSTRUCTIONS
from scroll_context.agent.agent import Limits
from scroll_context.errors import BadInput, ContextOverflow, ModelUnavailable
from scroll_context.models import Reply, Request
from scroll_context.models.scripted import Entry, ScriptedModel, exec_cell
from scroll_evals import loca_client, loca_sandbox
from scroll_evals.contexts import CONTEXTS
from scroll_evals.loca import LocaSuite, LocaTrial
from scroll_evals.loca_supervisor import descendants
from scroll_evals.protocols import (
    Attempt,
    Result,
    Setup,
    Stop,
    Stopped,
    TrialOutcome,
    VerifierScoring,
)
from scroll_evals.results import RunConfig, RunFolder, Summary
from scroll_evals.runner import Runner
from scroll_evals.tasks import DataFault


def played(
    trial: LocaTrial, folder: Path, *script: Entry, **setup: object
) -> tuple[Attempt, ScriptedModel]:
    model = ScriptedModel(script)
    attempt = trial.run(Setup(model=model, **setup), folder / "work", Stop())  # type: ignore[arg-type]
    assert not descendants(os.getpid()) & servers(), "a server was left behind"
    return attempt, model


def servers() -> set[int]:
    """Processes that run the stub."""
    found = set()
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"http_server.py" in line.read_bytes():
                found.add(int(line.parent.name))
        except OSError:
            continue
    return found


# a task that goes well ------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", CONTEXTS)
def test_every_context_can_do_the_task_and_is_scored_by_the_verifier(
    tmp_path: Path, context: str
) -> None:
    in_cells = CONTEXTS[context].actions.exec
    cells = [exec_cell(SUM, tool="repl_exec")]
    calls = [native("shop_list_orders"), native("files_write", path="total.txt", text="42")]
    attempt, model = played(
        make_trial(tmp_path),
        tmp_path,
        *(cells if in_cells else calls),
        native(CLAIM),
        context=context,
    )
    assert (attempt.outcome, attempt.score, attempt.detail) == (TrialOutcome.ANSWERED, 1.0, "")
    assert attempt.prompt == INSTRUCTIONS
    assert attempt.task["verifier"]["info"] == {"success": True, "error": None}
    assert attempt.metrics.step_count == (2 if in_cells else 3)
    assert "42" in attempt.steps[0]["observation"] or not in_cells
    assert requests_made(tmp_path / "work") == [
        "init",
        "execute_tool",
        "execute_tool",
        "evaluate",
        "cleanup",
    ]
    offered = {spec.name for spec in model.requests[0].tools}
    assert CLAIM in offered
    assert ("shop_list_orders" in offered) != in_cells


def test_the_official_text_is_the_request_and_the_metadata_is_in_the_system_prompt(
    tmp_path: Path,
) -> None:
    _, model = played(make_trial(tmp_path), tmp_path, native(CLAIM))
    system, request = model.requests[0].messages[:2]
    assert request.text == INSTRUCTIONS
    assert str(tmp_path / "work") in system.text and "agent_workspace" in system.text
    assert "`shop`, `files`, `claim_done`" in system.text and "disabled" not in system.text
    assert "def shop_list_orders(page: int = 1)" in system.text


def test_the_path_of_the_workspace_is_a_variable_of_the_kernel(tmp_path: Path) -> None:
    cell = exec_cell("print(workspace)", tool="repl_exec")
    attempt, model = played(make_trial(tmp_path), tmp_path, cell, native(CLAIM))
    assert "agent_workspace" in attempt.steps[0]["observation"]
    assert "The variable `workspace` holds" in model.requests[0].messages[0].text


def test_the_tool_that_ends_the_task_is_native_only(tmp_path: Path) -> None:
    cell = exec_cell(f"{SUM}\n{CLAIM}()", tool="repl_exec")
    attempt, model = played(make_trial(tmp_path), tmp_path, cell, native(CLAIM), "never asked")
    assert (attempt.outcome, attempt.score) == (TrialOutcome.ANSWERED, 1.0)
    assert f"NameError: name '{CLAIM}' is not defined" in attempt.steps[0]["observation"]
    assert model.steps == 2


def test_cells_get_values_and_native_calls_the_text(tmp_path: Path) -> None:
    cell = "orders = shop_list_orders(page=2)\nprint(type(orders), shop_note(), type(shop_environment()))"
    attempt, _ = played(
        make_trial(tmp_path), tmp_path, exec_cell(cell, tool="repl_exec"), native(CLAIM)
    )
    assert (
        "<class 'list'> No error was found in the orders. <class 'dict'>"
        in attempt.steps[0]["observation"]
    )
    attempt, _ = played(
        make_trial(tmp_path / "native"),
        tmp_path,
        native("shop_list_orders"),
        native(CLAIM),
        context="react",
    )
    assert attempt.steps[0]["observation"].startswith('[\n  {\n    "id": 1,')


@pytest.mark.parametrize("context", ["scroll", "react"])
def test_an_integer_stays_one_where_the_schema_says_number(tmp_path: Path, context: str) -> None:
    cell = exec_cell(
        "print(shop_get_order(1, rate=2), shop_get_order(id=1.5, rate=None))", tool="repl_exec"
    )
    calls = [native("shop_get_order", id=1, rate=2), native("shop_get_order", id=1.5, rate=None)]
    script = [cell] if context == "scroll" else calls
    attempt, _ = played(make_trial(tmp_path), tmp_path, *script, native(CLAIM), context=context)
    said = " ".join(step["observation"] for step in attempt.steps)
    assert (
        'asked for {"id": 1, "rate": 2}' in said and 'asked for {"id": 1.5, "rate": null}' in said
    )


def test_the_server_gets_no_variables_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    cell = "found = shop_environment()\nprint('OPENAI_API_KEY' in found, found['HOME'])"
    attempt, _ = played(
        make_trial(tmp_path), tmp_path, exec_cell(cell, tool="repl_exec"), native(CLAIM)
    )
    assert attempt.steps[0]["observation"].startswith(f"False {tmp_path / 'work'}")


def test_a_failed_tool_is_an_error_in_the_cell_and_the_run_goes_on(tmp_path: Path) -> None:
    cell = (
        "try:\n    shop_break(class_='y')\nexcept ToolFailed as error:\n    print('said:', error)"
    )
    attempt, _ = played(
        make_trial(tmp_path), tmp_path, exec_cell(cell, tool="repl_exec"), native(CLAIM)
    )
    assert (
        "said: [Tool execution error: the shop is closed to ['class']]"
        in attempt.steps[0]["observation"]
    )
    assert attempt.score == 0.0
    assert attempt.task["verifier"]["info"]["error"] == "total.txt is wrong"


def test_a_slow_tool_times_out_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loca_sandbox, "CALL_SECONDS", 0.5)
    attempt, _ = played(
        make_trial(tmp_path),
        tmp_path,
        native("shop_slow", seconds=5),
        native(CLAIM),
        context="react",
    )
    assert "shop_slow gave no answer in 0." in attempt.steps[0]["observation"]
    assert attempt.outcome == TrialOutcome.ANSWERED


# models that do not end the task --------------------------------------------------------------------------


def test_a_model_that_only_talks_is_reminded_and_then_scores_nothing(tmp_path: Path) -> None:
    script = (
        exec_cell(SUM, tool="repl_exec"),
        "It is 42.",
        "Really, 42.",
        "I am done.",
        "never asked",
    )
    attempt, model = played(make_trial(tmp_path), tmp_path, *script)
    assert (attempt.outcome, attempt.score) == (TrialOutcome.NO_ANSWER, 0.0)
    assert "never called" in attempt.detail
    assert attempt.task["verifier"]["reward"] == 1.0, "what the verifier says is kept"
    assert model.steps == 4
    assert f"call `{CLAIM}`" in model.requests[-1].messages[-1].text


def test_a_reminded_model_can_still_claim(tmp_path: Path) -> None:
    attempt, _ = played(
        make_trial(tmp_path), tmp_path, exec_cell(SUM, tool="repl_exec"), "42.", native(CLAIM)
    )
    assert (attempt.outcome, attempt.score) == (TrialOutcome.ANSWERED, 1.0)


def test_limits_are_kept_over_reminders(tmp_path: Path) -> None:
    attempt, model = played(make_trial(tmp_path), tmp_path, *["Hm."] * 9, limits=Limits(steps=2))
    assert (attempt.outcome, attempt.detail, attempt.score) == (TrialOutcome.LIMIT, "steps", 0.0)
    assert model.steps == 2


def test_empty_replies_end_without_an_answer(tmp_path: Path) -> None:
    attempt, _ = played(make_trial(tmp_path), tmp_path, "", "", "", "")
    assert (attempt.outcome, attempt.score) == (TrialOutcome.NO_ANSWER, 0.0)


def test_overflow_is_named_and_other_faults_of_the_provider_are_raised(tmp_path: Path) -> None:
    attempt, _ = played(
        make_trial(tmp_path / "a"),
        tmp_path,
        ContextOverflow("too long"),
        ContextOverflow("too long"),
    )
    assert attempt.outcome == TrialOutcome.OVERFLOW
    trial = make_trial(tmp_path / "b")
    with pytest.raises(ModelUnavailable):
        played(trial, tmp_path / "b", ModelUnavailable("busy"))
    assert requests_made(tmp_path / "b" / "work") == ["init", "cleanup"]
    assert not servers() & descendants(os.getpid())


# faults of the benchmark's side ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "generation",
            "environment-failed: the environment was not generated. Its log says:\n2026-01-01",
        ),
        ("import", "Could not import preprocessing module: no pandas"),
        ("no-log", "It left no log to tell"),
        ("tools-missing", "these tool servers of the task did not start: shop"),
        ("refuse-init", "status 500): Failed to init: No tools available from MCP server(s)"),
        ("die-on-init", "server-died: "),
    ],
)
def test_an_environment_that_was_not_generated_is_named(
    tmp_path: Path, fault: str, said: str
) -> None:
    attempt, model = played(make_trial(tmp_path, fault), tmp_path, "never asked")
    assert attempt.outcome == TrialOutcome.ENVIRONMENT
    assert said in attempt.detail
    assert attempt.score is None and not attempt.is_final
    assert model.steps == 0
    opened = fault not in ("refuse-init", "die-on-init")
    assert requests_made(tmp_path / "work") == (["init", "cleanup"] if opened else ["init"])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "refuse-evaluate",
            "evaluation-failed: the sandbox server's evaluate refused (status 500)",
        ),
        ("evaluate", "evaluation-failed: the sandbox server's evaluate gave an unexpected answer"),
        ("absurd-reward", "a reward of 7.0"),
        ("die-on-evaluate", "server-died: "),
    ],
)
def test_a_verifier_that_gives_no_verdict_is_named_and_the_work_is_kept(
    tmp_path: Path, fault: str, said: str
) -> None:
    attempt, _ = played(
        make_trial(tmp_path, fault), tmp_path, exec_cell(SUM, tool="repl_exec"), native(CLAIM)
    )
    assert attempt.outcome == TrialOutcome.ENVIRONMENT and attempt.score is None
    assert said in attempt.detail
    assert attempt.metrics.step_count == 2


@pytest.mark.parametrize("context", ["scroll", "react"])
def test_a_server_that_dies_in_use_ends_the_trial_at_once(tmp_path: Path, context: str) -> None:
    dies = exec_cell("shop_die()", tool="repl_exec") if context == "scroll" else native("shop_die")
    attempt, model = played(make_trial(tmp_path), tmp_path, dies, "never asked", context=context)
    assert attempt.outcome == TrialOutcome.ENVIRONMENT and attempt.score is None
    assert attempt.detail.startswith("server-died: ") and "the shop burns down" in attempt.detail
    assert model.steps == 1
    (log,) = (tmp_path / "work" / "logs").iterdir()
    assert "the shop burns down" in log.read_text()


def test_garbage_from_a_tool_is_an_error_of_that_call(tmp_path: Path) -> None:
    attempt, _ = played(
        make_trial(tmp_path, "execute_tool"),
        tmp_path,
        native("shop_note"),
        native(CLAIM),
        context="react",
    )
    assert "gave an unexpected answer" in attempt.steps[0]["observation"]
    assert attempt.outcome == TrialOutcome.ANSWERED


def test_a_server_that_does_not_start_is_named(tmp_path: Path) -> None:
    attempt, _ = played(make_trial(tmp_path, start="exit"), tmp_path, "never asked")
    assert attempt.outcome == TrialOutcome.ENVIRONMENT
    assert attempt.detail.startswith("server-failed: the sandbox server ended with status 1.")
    assert "No module named 'fastapi'" in attempt.detail


# stopping and running again -------------------------------------------------------------------------------


def test_a_stop_while_the_environment_is_made_does_not_wait_for_it(tmp_path: Path) -> None:
    stop, ended = Stop(), []
    trial = make_trial(tmp_path, "slow-init")

    def run() -> None:
        with pytest.raises(Stopped):
            trial.run(Setup(model=ScriptedModel(["never asked"])), tmp_path / "work", stop)
        ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    while not list((tmp_path / "work").glob("*/requests.txt")):
        thread.join(0.05)
    stop.set()
    thread.join(60)
    assert ended and not servers() & descendants(os.getpid())


def test_generating_tells_how_far_it_is(tmp_path: Path) -> None:
    stop, told = Stop(), []

    def tell(line: str) -> None:
        told.append(line)
        if "generated 10 of 300 orders" in line:
            stop.set()

    trial = make_trial(tmp_path, "slow-init", progress=tell, tell_seconds=0.05)
    with pytest.raises(Stopped):
        trial.run(Setup(model=ScriptedModel(["never asked"])), tmp_path / "work", stop)
    assert told[-1].startswith("loca/8k/00-Shop-3-orders-seed42 is being generated for 0:00:")
    assert not servers() & descendants(os.getpid())


def test_generating_has_a_deadline(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, "slow-init", generation_seconds=0.5)
    attempt, model = played(trial, tmp_path, "never asked")
    assert (attempt.outcome, attempt.score, model.steps) == (TrialOutcome.ENVIRONMENT, None, 0)
    assert attempt.detail.startswith(
        "generation-timeout: the sandbox server's init gave no answer in 0.5 s"
    )
    assert not attempt.is_final, "a resumed run tries it again"


def test_a_stop_while_the_agent_works_ends_the_trial_without_a_verdict(tmp_path: Path) -> None:
    stop = Stop()

    def stopping(_: object) -> str:
        stop.set()
        return "42"

    with pytest.raises(Stopped):
        make_trial(tmp_path).run(Setup(model=ScriptedModel([stopping])), tmp_path / "work", stop)
    assert requests_made(tmp_path / "work") == ["init", "cleanup"]


def test_a_trial_can_be_run_again_and_begins_anew(tmp_path: Path) -> None:
    trial = make_trial(tmp_path)
    with pytest.raises(ModelUnavailable):
        played(trial, tmp_path, exec_cell(SUM, tool="repl_exec"), ModelUnavailable("busy"))
    attempt, model = played(trial, tmp_path, native(CLAIM))
    assert (attempt.score, attempt.metrics.step_count, len(model.requests[0].messages)) == (
        0.0,
        1,
        2,
    )
    assert [one["step_index"] for one in trial.requests(tmp_path / "work")] == [0]
    trial.discard(tmp_path / "work")
    assert [one.name for one in (tmp_path / "work").iterdir()] == ["logs"]


# the suite ------------------------------------------------------------------------------------------------


def test_the_suite_lists_its_tasks_with_names_of_their_own(tmp_path: Path) -> None:
    entries = [entry(seed=1), entry(seed=2), {"name": "no class"}, entry(name="Shop-seed3", seed=3)]
    checkout = make_checkout(tmp_path / "c", entries)
    suite = LocaSuite(checkout=checkout, sizes=["8k", "16k"], python=Path(sys.executable))
    found = list(suite.trials())
    assert [one.task_id for one in found if isinstance(one, LocaTrial)] == [
        "loca/8k/00-Shop-3-orders-seed1",
        "loca/8k/01-Shop-3-orders-seed2",
        "loca/8k/03-Shop-seed3",
    ]
    assert [one.outcome for one in found if isinstance(one, DataFault)] == [
        "bad-config",
        "missing-file",
    ]
    assert {one.ability for one in found if isinstance(one, LocaTrial)} == {"8k"}
    limited = LocaSuite(checkout=checkout, sizes=["8k"], limit=1, python=Path(sys.executable))
    assert [isinstance(one, DataFault) for one in limited.trials()] == [True, False]
    assert suite.split == "8k,16k"


def families(suite: LocaSuite) -> list[str]:
    return [one.task_id.rpartition("/")[2] for one in suite.trials() if isinstance(one, LocaTrial)]


def test_one_seed_of_each_family_comes_first(tmp_path: Path) -> None:
    other = "gem.envs.bank_s2l.bank_s2l.BankS2LEnv"
    entries = [
        entry(seed=1),
        entry(seed=2),
        *(entry(name="Bank", seed=seed) | {"env_class": other} for seed in (1, 2)),
    ]
    checkout = make_checkout(tmp_path / "c", entries)

    def suite(**options: Any) -> LocaSuite:
        return LocaSuite(checkout=checkout, sizes=["8k"], python=Path(sys.executable), **options)

    ordered = ["00-Shop-3-orders-seed1", "02-Bank-seed1", "01-Shop-3-orders-seed2", "03-Bank-seed2"]
    assert families(suite()) == ordered
    assert families(suite(limit=2)) == ordered[:2]
    assert families(suite(only=["bank"])) == ["02-Bank-seed1", "03-Bank-seed2"]
    assert families(suite(only=["Shop", "Bank"], limit=3)) == ordered[:3]
    with pytest.raises(
        BadInput, match="no family 'Banana' among the tasks of size 8k; there are Bank, Shop"
    ):
        families(suite(only=["Banana"]))


def test_a_list_that_is_not_json_is_a_fault(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "c")
    (checkout / "inference/react/final_8k_set_config_multi_seed.json").write_text(
        '{"configurations": ['
    )
    (fault,) = LocaSuite(checkout=checkout, sizes=["8k"], python=Path(sys.executable)).trials()
    assert isinstance(fault, DataFault) and fault.outcome == "bad-json"


def test_what_is_no_checkout_and_no_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="loca-sandbox"):
        LocaSuite(checkout=tmp_path, sizes=["8k"])
    with pytest.raises(BadInput, match="no size 9k; choose from 8k"):
        LocaSuite(checkout=make_checkout(tmp_path / "c"), sizes=["8k", "9k"])
    with pytest.raises(BadInput, match="not an executable Python"):
        next(LocaSuite(checkout=tmp_path / "c", sizes=["8k"], python=tmp_path).trials())


def test_scores_are_those_of_the_verifier_by_size() -> None:
    def result(
        size: str, score: float | None, outcome: TrialOutcome = TrialOutcome.ANSWERED
    ) -> Result:
        attempt = Attempt(task_id="t", ability=size, outcome=outcome, score=score)
        scoring = VerifierScoring()
        return Result(attempt, scoring.judge(attempt, lambda *_: "") if score is not None else None)

    results = [result("8k", 1.0), result("8k", 0.0, TrialOutcome.NO_ANSWER), result("16k", 1.0)]
    assert all(one.counts for one in results)
    assert not result("8k", None, TrialOutcome.ENVIRONMENT).counts
    scores = VerifierScoring().scores(results)
    assert scores.by_ability == {"8k": 0.5, "16k": 1.0} and scores.overall == 0.75


def test_a_run_of_two_tasks_at_once_goes_on_with_the_one_that_failed(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "c", [entry(seed=1), entry("generation", seed=2)])
    folder = RunFolder(tmp_path / "run")
    folder.begin(RunConfig(benchmark="loca", split="8k", model="scripted"))

    def acting(request: Request, _: int) -> Reply:
        return exec_cell(SUM, tool="repl_exec") if len(request.messages) == 2 else native(CLAIM)

    def run() -> Summary:
        suite = LocaSuite(checkout=checkout, sizes=["8k"], python=Path(sys.executable))
        return Runner(suite, Setup(model=ScriptedModel(acting)), folder, jobs=2).run()

    first = run()
    assert (first.scored, first.unfinished, first.scores.overall) == (1, 1, 1.0)
    assert first.outcomes == {"answered": 1, "environment-failed": 1}
    lists = checkout / "inference/react/final_8k_set_config_multi_seed.json"
    lists.write_text(lists.read_text().replace("generation", ""))
    before = folder.attempt("loca/8k/00-Shop-3-orders-seed1")
    second = run()
    assert (second.scored, second.unfinished, second.scores.by_ability) == (2, 0, {"8k": 1.0})
    assert folder.attempt("loca/8k/00-Shop-3-orders-seed1") == before


def test_the_command_runs_it(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "c", [entry()])
    script = tmp_path / "script.json"
    script.write_bytes(msgspec.json.encode([exec_cell(SUM, tool="repl_exec"), native(CLAIM)]))
    scroll = [sys.executable, "-c", "from scroll_context.cli.main import main; main()"]
    command = [*scroll, "eval", "loca", "--checkout", str(checkout), "--sizes", "8k"]
    options = [
        "--server-python",
        sys.executable,
        "--model",
        f"scripted:{script}",
        "--out",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(
        [*command, *options, "--json"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    (attempt,) = RunFolder(next((tmp_path / "run").rglob("config.json")).parent).attempts()
    assert attempt.score == 1.0


def test_the_client_gives_up_on_a_server_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loca_client, "EXECUTE_SECONDS", 0.3)
    attempt, _ = played(
        make_trial(tmp_path),
        tmp_path,
        native("shop_slow", seconds=5),
        native(CLAIM),
        context="react",
    )
    assert "execute_tool gave no answer in 0.3 s" in attempt.steps[0]["observation"]
