"""A search within a grant does not tell what lies outside: two stores that differ only there answer
alike.
"""

import fcntl
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from scroll_context.events import Draft, Grant
from scroll_context.store import Store

MINE = Grant(session_id="mine")
OWN = [
    "the harbour budget was moved to march",
    "harbour and lighthouse were painted",
    "a lighthouse keeper reads the budget",
    "seldom seen, secretly kept",
    "harbour",
    "lighthouse",
]
QUERIES = [
    "harbour lighthouse",
    "harbour OR lighthouse",
    "budget harbour march",
    "se*",
    "sec*",
    "secret*",
    '"the budget"',
    "ha* OR li*",
    "painted keeper budget",
    "what about the harbour and the lighthouse and the budget in march please",
    "id_s*",
    "kept NOT budget",
]


def _store(folder: Path, foreign: list[str]) -> Store:
    store = Store(folder, create=True)
    store.log.append_many([Draft(session_id="other", content=text) for text in foreign])
    pad = 400 - len(foreign)  # so that own events have the same seqs
    store.log.append_many([Draft(session_id="other", content="xx") for _ in range(pad)])
    store.log.append_many([Draft(session_id="mine", content=text) for text in OWN])
    store.index.catch_up()
    return store


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Store]]:
    folder = tmp_path_factory.mktemp("worlds")
    words = [
        f"secret{one}{two}" for one in string.ascii_lowercase for two in "abcdefghij"
    ]  # more than are ranked
    one = _store(folder / "one", [f"id_{word} harbour" for word in words])
    two = _store(folder / "two", ["budget xx lighthouse"] * len(words))
    yield one, two
    one.close()
    two.close()


@pytest.mark.parametrize("query", QUERIES)
def test_what_the_grant_cannot_see_changes_nothing(worlds: tuple[Store, Store], query: str) -> None:
    one, two = (
        [(hit.seq, hit.score, hit.snippet) for hit in store.index.search(query, grant=MINE)]
        for store in worlds
    )
    assert one == two


def test_a_prefix_does_not_recover_a_foreign_word(worlds: tuple[Store, Store]) -> None:
    """Each longer prefix of a word that only others have is answered alike, and a hit's score is
    its rank.
    """
    for prefix in ("s", "se", "sec", "secr", "secre", "secret", "secreta", "secretaa"):
        said = [
            [(hit.seq, hit.score) for hit in store.index.search(f"{prefix}*", grant=MINE)]
            for store in worlds
        ]
        assert said[0] == said[1]
        assert [score for _, score in said[0]] == [1 / rank for rank in range(1, len(said[0]) + 1)]


def test_words_are_as_rare_as_they_are_within_the_grant(worlds: tuple[Store, Store]) -> None:
    """`harbour` is common outside in one store and `lighthouse` in the other; within, both are in
    three events.
    """
    for store in worlds:
        assert [hit.seq for hit in store.index.search("harbour OR lighthouse", grant=MINE)][:3] == [
            402,
            405,
            406,
        ]


def test_the_number_of_foreign_events_is_not_told(worlds: tuple[Store, Store]) -> None:
    for number, store in enumerate(worlds):
        store.log.append_many([Draft(session_id="other", content="new")] * (3 + 300 * number))
        store.log.append_many([Draft(session_id="mine", content="new")] * 2)
        with (store.folder / "index" / "lock").open(
            "r+"
        ) as held:  # as another process that writes would hold it
            fcntl.flock(held, fcntl.LOCK_EX)
            assert store.index.search("harbour", grant=MINE, patience=0.05).behind == 2
        store.index.catch_up()
