"""Ingesting a history into a store: in order, searchable at once, and never twice."""

from itertools import islice
from pathlib import Path

import pytest

from scroll_context.errors import StoreError
from scroll_context.events import Draft
from scroll_context.store import Store
from scroll_evals import beam
from scroll_evals.beam import BeamChat
from scroll_evals.ingested_view import ingest
from scroll_evals.tasks import sample_folder


@pytest.fixture
def history() -> BeamChat:
    (found,) = beam.Beam(sample_folder("beam"), "10M").histories()
    assert isinstance(found, BeamChat)
    return found


class BreaksOff:
    """A history whose reading ends in the middle, as when a process is killed."""

    def __init__(self, history: BeamChat, after: int) -> None:
        self.history = history
        self.history_id = history.history_id
        self.after = after

    def drafts(self) -> object:
        for number, draft in enumerate(self.history.drafts()):
            if number == self.after:
                raise StoreError("the power went")
            yield draft

    def questions(self) -> object:
        return self.history.questions()


def stored(store: Store) -> list[tuple[int, str, str, int | None, object]]:
    return [
        (event.seq, event.session_id, event.content, event.msg_index, event.metadata["date"])
        for event in store.log.iterate()
    ]


def wanted(history: BeamChat) -> list[tuple[int, str, str, int | None, object]]:
    drafts: list[Draft] = list(history.drafts())
    return [
        (seq, draft.session_id, draft.content, draft.msg_index, draft.metadata["date"])
        for seq, draft in enumerate(drafts, 1)
    ]


def test_turns_are_stored_in_order_and_found(folder: Path, history: BeamChat) -> None:
    with Store(folder, create=True) as store:
        assert ingest(history, store) == 24
        assert stored(store) == wanted(history)
        assert len(store.log.sessions()) == 4
        assert store.index.indexed_seq == 24
        assert (
            store.index.search("larch planks", task_id="10M-1")[0].event.metadata["source_id"]
            == "6"
        )


def test_ingesting_again_adds_nothing(folder: Path, history: BeamChat) -> None:
    with Store(folder, create=True) as store:
        ingest(history, store)
    with Store(folder) as store:
        assert ingest(history, store) == 24
        assert stored(store) == wanted(history)


@pytest.mark.parametrize("after", [1, 6, 7, 20])
def test_what_broke_off_left_nothing_and_what_is_there_is_not_added_twice(
    folder: Path, history: BeamChat, after: int
) -> None:
    with Store(folder, create=True) as store:
        with pytest.raises(StoreError):
            ingest(BreaksOff(history, after), store)  # type: ignore[arg-type]
        assert store.log.last_seq() == 0, "whole or not at all"
        store.log.append_many(islice(history.drafts(), after))
        ingest(history, store)
        assert stored(store) == wanted(history)


def test_two_histories_can_share_a_store(folder: Path, history: BeamChat) -> None:
    (other,) = beam.Beam(sample_folder("beam"), "128K").histories()
    assert isinstance(other, BeamChat)
    with Store(folder, create=True) as store:
        ingest(history, store)
        ingest(other, store)
        assert {
            hit.event.task_id for hit in store.index.search("water boat", task_id="128K-1", k=50)
        } == {"128K-1"}
        assert store.log.last_seq() == 24 + 32
