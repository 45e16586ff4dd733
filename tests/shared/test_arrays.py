"""Arrays that Scroll packs itself arrive as the driver's own lists do."""

import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import Postgres

from scroll_context.store.shared.server import Bytes, Numbers, Texts, dumpers


def test_every_array_arrives_as_it_was(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url()) as connection:
        for kind, dumper in dumpers():
            connection.adapters.register_dumper(kind, dumper)

        @settings(max_examples=60, deadline=None)
        @given(
            st.lists(st.none() | st.binary()),
            st.lists(st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))),
            st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)),
        )
        def check(some: list[bytes | None], texts: list[str | None], numbers: list[int | None]) -> None:
            encoded = [None if one is None else one.encode() for one in texts]
            sent = [Bytes(some), Texts(encoded), Numbers(numbers)]
            cursor = connection.execute("SELECT %s, %s, %s", sent, binary=True)
            assert cursor.fetchone() == (some, texts, numbers)

        check()
