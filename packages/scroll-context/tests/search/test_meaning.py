"""Search by meaning: derived vectors that follow the log, keep to the grant, and join with the
words.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from scroll_context.errors import BadInput, ScrollError
from scroll_context.events import Draft, Grant, Kind, Scope
from scroll_context.recall.memory import Memory, NoSession
from scroll_context.search.meaning import BATCH, MeaningIndex, fused
from scroll_context.store import Store

THINGS = (
    "car automobile vehicle drive",
    "bread loaf bake flour",
    "rain storm weather wet",
    "budget money cost euros",
)


class Concepts:
    """Embeds a text by which of a few things it speaks of, whatever the word."""

    name = "concepts"

    def __init__(self) -> None:
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.embedded += texts
        return [
            [0.01 + sum(word in text.lower().split() for word in thing.split()) for thing in THINGS]
            for text in texts
        ]


def said(store: Store, content: str, **fields: object) -> int:
    return store.append(
        Draft(
            **{"role": "user", "session_id": "own", "agent_id": "me", "content": content} | fields
        )
    )  # type: ignore[arg-type]


def memory_of(store: Store, reach: str = "all") -> Memory:
    return Memory(store, Scope("own", agent_id="me"), reach, NoSession())


def test_other_words_for_the_same_thing_are_found_where_words_fail(tmp_path: Path) -> None:
    with Store(tmp_path / "store", create=True, embedder=Concepts()) as store:
        automobile = said(store, "We sold the automobile last week")
        said(store, "I bake a loaf every day")
        memory = memory_of(store)
        assert memory.call("ms.search", "car").value["rows"] == []
        first, *_ = memory.call("ms.search", "car", by="meaning", k=1).value["rows"]
        assert first["seq"] == automobile and first["snippet"] == "We sold the automobile last week"
        written = said(store, "the car is red")
        assert [
            row["seq"] for row in memory.call("ms.search", "car", 2, by="meaning").value["rows"]
        ] == [
            written,
            automobile,
        ]


def test_each_turn_is_embedded_once_and_found_again_after_a_restart(tmp_path: Path) -> None:
    embedder = Concepts()
    with Store(tmp_path / "store", create=True, embedder=embedder) as store:
        turns = [said(store, f"car number {n}") for n in range(2 * BATCH + 3)]
        said(store, "car", role="assistant")
        said(store, "car", kind=Kind.NOTICE)
        said(store, "car", metadata={"echo": True})
        assert store.meaning is not None and store.meaning.catch_up()
        assert len(embedder.embedded) == len(turns)
    again = Concepts()
    with Store(tmp_path / "store", embedder=again) as store:
        assert store.meaning is not None
        found = store.meaning.search("vehicle", k=500)
        assert (sorted(found.seqs), found.missing) == (turns, 0)
        assert again.embedded == ["vehicle"]
        assert (tmp_path / "store" / "meaning").stat().st_mode & 0o077 == 0


def test_nothing_outside_the_grant_the_filters_and_the_exclusions_is_found(tmp_path: Path) -> None:
    with Store(tmp_path / "store", create=True, embedder=Concepts()) as store:
        own, foreign = (
            said(store, "my car"),
            said(store, "a car", session_id="other", agent_id="somebody"),
        )
        late = said(store, "the car", created_at="2030-01-01T00:00:00+00:00")
        index = store.meaning
        assert index is not None
        assert index.search("automobile", grant=Grant(session_id="own")).seqs == [own, late]
        assert index.search("automobile", session_id="other").seqs == [foreign]
        assert index.search("automobile", exclude=[own], seq_range=(1, 2)).seqs == [foreign]
        assert index.search("automobile", created_from="2029").seqs == [late]
        assert index.search("automobile", role="assistant").seqs == []
        rows = (
            memory_of(store, "session")
            .call("ms.search", "automobile", by="meaning", all_agents=True)
            .value["rows"]
        )
        assert foreign not in [row["seq"] for row in rows]


def test_what_has_no_vector_yet_is_counted_within_the_grant(tmp_path: Path) -> None:
    with Store(tmp_path / "store", create=True, embedder=Concepts()) as store:
        store.log.append_many(
            [Draft(role="user", session_id="own", content="rain") for _ in range(BATCH)]
        )
        store.log.append_many(
            [Draft(role="user", session_id="other", content="rain") for _ in range(5)]
        )
        assert store.meaning is not None
        found = store.meaning.search("wet", grant=Grant(session_id="other"), patience=-1)
        assert (found.seqs, found.missing) == ([], 5)


def test_vectors_of_another_log_or_cut_short_are_made_anew(tmp_path: Path) -> None:
    embedder = Concepts()
    with Store(tmp_path / "one", create=True) as one, Store(tmp_path / "two", create=True) as two:
        said(one, "car"), said(two, "bread")
        MeaningIndex(tmp_path / "vectors", one.log, embedder).catch_up()
        assert MeaningIndex(tmp_path / "vectors", two.log, embedder).search("loaf").seqs == [1]
        assert embedder.embedded == ["car", "bread", "loaf"]
        [file] = (tmp_path / "vectors").rglob("vectors")
        file.write_bytes(file.read_bytes()[:-4])
        assert MeaningIndex(tmp_path / "vectors", two.log, embedder).search("loaf").seqs == [1]
        assert embedder.embedded.count("bread") == 2


def test_what_is_erased_leaves_no_vector(tmp_path: Path) -> None:
    embedder = Concepts()
    with Store(tmp_path / "store", create=True, embedder=embedder) as store:
        secret, other = said(store, "my automobile is hidden"), said(store, "a loaf of bread")
        assert store.meaning is not None
        assert store.meaning.search("car").seqs[0] == secret
        store.erase(seqs=[secret])
        assert store.meaning.search("car").seqs == [other]
        assert embedder.embedded[-2:] == ["a loaf of bread", "car"], "all vectors are made anew"


def test_an_embedder_that_fails_leaves_the_words(tmp_path: Path) -> None:
    class Failing(Concepts):
        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            raise ConnectionError(f"the endpoint is gone, {len(texts)} texts are left")

    with Store(tmp_path / "store", create=True, embedder=Failing()) as store:
        seq = said(store, "the car is red")
        answer = memory_of(store).call("ms.search", "car", by="meaning").value
        assert [row["seq"] for row in answer["rows"]] == [seq] and "the endpoint is gone" in answer[
            "note"
        ]


def test_without_an_embedder_and_with_a_wrong_one_it_is_said_so(tmp_path: Path) -> None:
    with Store(tmp_path / "store", create=True) as store:
        said(store, "car")
        with pytest.raises(BadInput, match="no embedder"):
            memory_of(store).call("ms.search", "car", by="meaning")
        with pytest.raises(BadInput, match="'words' or 'meaning'"):
            memory_of(store).call("ms.search", "car", by="magic")

        class Wrong(Concepts):
            def embed(self, texts: Sequence[str]) -> list[list[float]]:
                return [[float("nan")]] * len(texts)

        with pytest.raises(ScrollError, match="no vector of numbers"):
            MeaningIndex(tmp_path / "vectors", store.log, Wrong()).catch_up()


def test_fusion_prefers_what_both_orders_have() -> None:
    assert fused([1, 2, 3], [9, 3, 8]) == [3, 1, 9, 2, 8]
    assert fused([5], []) == [5] and fused() == []
