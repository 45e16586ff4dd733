"""Metadata that an import brought may be long; rows for cells stay short."""

from scroll_context.events import Draft
from scroll_context.recall.reader import METADATA_BYTES
from scroll_context.store import Store


def test_long_metadata_is_replaced_by_the_query_that_reads_it(store: Store, opened) -> None:
    session = opened()
    long = {"raw": "x" * 8_000_000}
    seqs = [
        store.log.append(
            Draft(
                session_id=session.journal.session_id,
                role="user",
                content=f"apples {number}",
                metadata=long,
            )
        )
        for number in range(5)
    ]
    first = seqs[0]
    shown = session.run(
        f"""
rows = ms.search("apples")
print(len(rows), max(len(str(row["metadata"])) for row in rows))
metadata = ms.expand({first}, {seqs[-1]})[0]["metadata"]
print(metadata["too_long"] > {METADATA_BYTES}, eval(metadata["read_with"])[0]["part"][:9])
"""
    ).content
    assert shown.startswith("5 "), shown
    assert int(shown.split()[1]) < 300
    assert 'True {"raw":"x' in shown.replace('": "', '":"')
