"""Ids of several parts stand for exactly these parts."""

from hypothesis import given
from hypothesis import strategies as st

from scroll_context.events import id_of
from scroll_context.session.follow import source_key

parts = st.lists(st.text(alphabet="ab:-~.", max_size=4), max_size=4)


@given(parts, parts)
def test_different_parts_have_different_ids(one: list[str], other: list[str]) -> None:
    assert (id_of(*one) == id_of(*other)) == (one == other)


def test_hosts_with_colons_in_their_names_do_not_share_keys() -> None:
    assert source_key("alice", "2:m1") != source_key("alice:2", "m1")
    assert source_key("a", "") != source_key("", "a")
