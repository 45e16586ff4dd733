"""Reading LongMemEval's schema, from made-up files of every split and from damaged ones."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scroll_context.errors import BadInput
from scroll_evals import json_array, longmemeval
from scroll_evals.lme_generator import generate
from scroll_evals.longmemeval import TYPES, Haystack
from scroll_evals.tasks import DataFault, sample_folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    generate(tmp_path, seed=5, questions=14, sessions=6)
    return tmp_path


def read(path: Path, split: str) -> tuple[list[Haystack], list[DataFault]]:
    found = list(longmemeval.LongMemEval(path, split).histories())
    return [one for one in found if isinstance(one, Haystack)], [
        one for one in found if isinstance(one, DataFault)
    ]


def rewrite(file: Path, edit: Callable[[list[dict[str, Any]]], Any]) -> None:
    document = json.loads(file.read_text())
    edit(document)
    file.write_text(json.dumps(document))


def test_generated_sets_have_every_type_and_abstention(data: Path) -> None:
    for split in longmemeval.SPLITS:
        histories, faults = read(data, split)
        assert not faults
        assert {history.question.ability for history in histories} == set(TYPES)
        abstaining = [history for history in histories if history.question.metadata["abstention"]]
        assert [history.history_id for history in abstaining] == ["made_5_6_abs", "made_5_13_abs"]
        assert not any(history.question.evidence for history in abstaining)
        assert all(history.question.evidence for history in histories if history not in abstaining)


def test_the_same_seed_writes_the_same_bytes_and_another_one_others(tmp_path: Path) -> None:
    one, again, other = (
        generate(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in again]
    assert one[0].read_bytes() != other[0].read_bytes()


def test_a_data_set_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    real = tmp_path / "longmemeval_m.json"
    real.write_text("[]")
    with pytest.raises(BadInput, match="not overwritten"):
        generate(tmp_path)
    assert real.read_text() == "[]" and list(tmp_path.iterdir()) == [real]


def test_the_question_does_not_depend_on_the_size_of_the_haystack(data: Path) -> None:
    oracle, large = (read(data, split)[0] for split in ("oracle", "m"))
    for small, big in zip(oracle, large, strict=True):
        assert (small.question.text, small.question.answer) == (
            big.question.text,
            big.question.answer,
        )
        assert (
            len({d.session_id for d in big.drafts()})
            == len({d.session_id for d in small.drafts()}) + 30
        )


def test_sessions_go_by_date_and_turns_carry_their_kind_and_number(data: Path) -> None:
    for history in read(data, "oracle")[0]:
        drafts = list(history.drafts())
        times = [draft.created_at for draft in drafts]
        assert times == sorted(times)
        assert [draft.msg_index for draft in drafts] == list(range(len(drafts)))
        for draft in drafts:
            assert draft.kind == {"user": "context_msg", "assistant": "model_turn"}[draft.role]
            assert draft.step_index >= 1 and not draft.content.startswith("[Session ")
            assert draft.metadata["date"] == draft.created_at[:10]
            assert draft.task_id == history.history_id


def test_evidence_names_the_turns_that_hold_the_answer(data: Path) -> None:
    histories, _ = read(data, "m")
    update = next(
        history for history in histories if history.question.ability == "knowledge-update"
    )
    said = {draft.metadata["source_id"]: draft.content for draft in update.drafts()}
    assert len(update.question.evidence) == 2
    assert (
        update.question.answer
        in said[max(update.question.evidence)] + said[min(update.question.evidence)]
    )
    assert update.question.asked_at.startswith("2023-")


def test_an_answer_may_be_a_number_and_an_id_may_be_unfit_for_a_file(data: Path) -> None:
    file = data / "longmemeval_oracle.json"
    rewrite(file, lambda document: document[0].update(question_id="../x/y", answer=7))
    history = read(data, "oracle")[0][0]
    assert (history.history_id, history.question.answer) == ("_x_y", "7")


@pytest.mark.parametrize(
    ("edit", "outcome", "left"),
    [
        (lambda one: one.update(haystack_dates=one["haystack_dates"][:-1]), "bad-data", 13),
        (
            lambda one: one.update(
                haystack_sessions=[], haystack_dates=[], haystack_session_ids=[]
            ),
            "bad-data",
            13,
        ),
        (lambda one: one.pop("question"), "bad-data", 13),
        (lambda one: one.update(question_type="riddle"), "bad-data", 13),
        (lambda one: one.update(question_id="made_5_1"), "duplicate-id", 13),
        (lambda one: one.update(haystack_dates=["2023/02/31 (Fri) 10:00"]), "bad-date", 14),
        (
            lambda one: [turn.pop("has_answer", 0) for turn in one["haystack_sessions"][0]],
            "missing-evidence",
            14,
        ),
    ],
)
def test_a_question_that_is_wrong_is_named_and_the_others_go_on(
    data: Path, edit: Callable[[dict[str, Any]], object], outcome: str, left: int
) -> None:
    rewrite(data / "longmemeval_oracle.json", lambda document: edit(document[0]))
    histories, faults = read(data, "oracle")
    assert [fault.outcome for fault in faults] == [outcome]
    assert len(histories) == left
    assert all(list(history.drafts()) for history in histories)


def test_a_file_that_breaks_off_gives_what_came_before(data: Path) -> None:
    file = data / "longmemeval_s.json"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    histories, faults = read(data, "s")
    assert 0 < len(histories) < 14
    assert [fault.outcome for fault in faults] == ["bad-json"]


@pytest.mark.parametrize(
    "text", ["", "{}", "null", "[1 2]", "[{]", '["\udcff"]', "[", "[" * 100_000]
)
def test_what_is_no_array_of_questions_is_an_outcome(tmp_path: Path, text: str) -> None:
    file = tmp_path / "longmemeval_s.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    histories, faults = read(tmp_path, "s")
    assert not histories
    assert faults[-1].outcome == "bad-json"


def test_missing_files_and_unknown_splits_are_outcomes(tmp_path: Path) -> None:
    assert read(tmp_path, "s")[1][0].outcome == "missing-file"
    assert read(tmp_path / "nothing", "s")[1][0].outcome == "missing-folder"
    assert read(tmp_path, "xl")[1][0].outcome == "unknown-split"


def test_the_cleaned_file_is_preferred_and_a_file_can_be_named(data: Path) -> None:
    plain, cleaned = data / "longmemeval_s.json", data / "longmemeval_s_cleaned.json"
    shutil.copyfile(plain, cleaned)
    rewrite(cleaned, lambda document: document.pop())
    assert len(read(data, "s")[0]) == 13
    assert len(read(plain, "s")[0]) == 14


def test_the_bundled_sample_is_readable() -> None:
    histories, faults = read(sample_folder("longmemeval"), "oracle")
    assert not faults
    assert {history.question.ability for history in histories} == set(TYPES)


def test_a_long_array_is_read_in_pieces_and_elements_again_by_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_array, "CHUNK", 7)
    values = [
        {"text": 'Grüße, 世界 \\ " ]}' * number, "more": [number, None, 1.5e3]}
        for number in range(40)
    ]
    file = tmp_path / "long.json"
    file.write_text(
        " \n" + json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    found = list(json_array.elements(file))
    assert [value for _, value in found] == values
    assert [json_array.element_at(file, place) for place, _ in found] == values


def test_an_empty_array_has_no_elements(tmp_path: Path) -> None:
    file = tmp_path / "empty.json"
    file.write_text(" [ ] ")
    assert list(json_array.elements(file)) == []


def test_the_rubric_says_what_the_data_look_like_and_how_to_abstain() -> None:
    said = longmemeval.LongMemEval(sample_folder("longmemeval"), "oracle").rubric_prompt()
    for word in (
        "`content` is the turn alone",
        "kind='context_msg'",
        "model_turn",
        "submit_answer",
    ):
        assert word in said
    assert "I don't have that information from our conversations." in said
