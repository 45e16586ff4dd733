"""The order of candidates, against its definition written out plainly."""

from hypothesis import given
from hypothesis import strategies as st

from scroll_context.search.ranking import LENT_NEAR, NEAR, STANCE, Ranking, ranked

_Document = tuple[int, int, float]  # seq, the user turn that it answers, score


def plainly(
    documents: list[_Document], stances: dict[int, int], ranking: Ranking
) -> list[tuple[int, float]]:
    """Every event with its score, then sorted."""
    best: dict[int, float] = {}
    for seq, _, score in documents:
        best[seq] = max(score, best.get(seq, 0.0))
    turn_of = {seq: turn for seq, turn, _ in documents}
    turns = {
        seq: (
            best[seq]
            + ranking.flow
            * max((best[one] for one in best if turn_of[one] == seq != one), default=0.0)
        )
        * ranking.user_weight
        for seq in best
        if turn_of[seq] == seq
    }
    final = dict(best)
    in_order = sorted(turns)
    for at, seq in enumerate(in_order):
        beside = [in_order[near] for near in (at - 1, at + 1) if 0 <= near < len(in_order)]
        near = [turns[other] for other in beside if abs(other - seq) <= NEAR]
        final[seq] = (turns[seq] + LENT_NEAR * max(near) if near else turns[seq]) * STANCE[
            stances.get(seq, 0)
        ]
    kept = [(seq, score) for seq, score in final.items() if seq not in ranking.exclude]
    return sorted(kept, key=lambda one: (-one[1], one[0]))[: ranking.k]


@st.composite
def candidates(draw: st.DrawFn) -> tuple[list[_Document], dict[int, int]]:
    seqs = draw(
        st.lists(st.integers(1, 40), min_size=1, max_size=30)
    )  # an event may have several documents
    is_turn = {seq: draw(st.booleans()) for seq in sorted(set(seqs))}
    answers = {
        seq: seq
        if is_turn[seq]
        else draw(st.sampled_from([0, *[one for one in is_turn if is_turn[one]]]))
        for seq in is_turn
    }
    scores = sorted(
        draw(st.lists(st.integers(1, 12), min_size=len(seqs), max_size=len(seqs))), reverse=True
    )
    documents = [(seq, answers[seq], score / 4) for seq, score in zip(seqs, scores, strict=True)]
    return documents, {
        seq: draw(st.integers(1, 2)) for seq in is_turn if is_turn[seq] and draw(st.booleans())
    }


@given(
    candidates(),
    st.integers(1, 12),
    st.frozensets(st.integers(1, 40), max_size=5),
    st.sampled_from([1.0, 2.0]),
)
def test_the_order_is_that_of_its_definition(
    found: tuple[list[_Document], dict[int, int]], k: int, exclude: frozenset[int], weight: float
) -> None:
    documents, stances = found
    ranking = Ranking(k, exclude=exclude, user_weight=weight)
    seqs, answered, scores = zip(*documents, strict=True)
    assert ranked(seqs, answered, scores, stances, ranking) == plainly(documents, stances, ranking)
