"""Rows: what a draft must be, what is repaired on the way in, and how a damaged row reads."""

from pathlib import Path
from typing import Any

import pytest

from scroll_context.errors import BadInput
from scroll_context.events import Draft
from scroll_context.log.chain import GENESIS
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import (
    ERASED,
    ERASED_METADATA,
    LONGEST_ID,
    EventColumns,
    TableRow,
    event_from_row,
    is_blank,
    prepare,
)

NOW = "2026-05-01T10:00:00.000000Z"
ROW = TableRow(
    seq=7,
    session_id="s",
    agent_id="me",
    task_id="task",
    kind="conversation",
    role="user",
    name="name",
    content="said",
    payload=None,
    payload_size=None,
    payload_type=None,
    tool_call_id="call",
    tool_state="ok",
    headline="headline",
    reply_to=3,
    step_index=4,
    msg_index=5,
    metadata='{"a":1}',
    created_at=NOW,
    recorded_at=NOW,
    source_key="key",
    chain=b"c" * 32,
    nonce=b"n" * 32,
    leaf=None,
)


@pytest.fixture
def payloads(tmp_path: Path) -> PayloadStore:
    return PayloadStore(tmp_path / "payloads")


def draft(**fields: Any) -> Draft:
    return Draft(**({"session_id": "s", "kind": "note", "content": "x"} | fields))


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"session_id": "a\ud800"}, "session_id has a lone surrogate"),
        ({"headline": "\udfff"}, "headline has a lone surrogate"),
        ({"name": 5}, "name must be text, not int"),
        ({"content": b"x"}, "content must be text, not bytes"),
        ({"kind": ""}, "an event needs a kind"),
        ({"reply_to": 1 << 63}, "reply_to must be a whole number of at most 64 bits"),
        ({"step_index": -(1 << 63)}, "step_index must be a whole number"),
        ({"step_index": 1 << 70}, "step_index must be a whole number"),
        ({"msg_index": 1.5}, "msg_index must be a whole number"),
        ({"created_at": "yesterday"}, "not an ISO-8601 date"),
        ({"session_id": "x" * (LONGEST_ID + 1)}, "session_id has 1,001 characters"),
        ({"task_id": "x" * 5_000}, "task_id has 5,000 characters"),
    ],
)
def test_a_draft_that_cannot_be_stored_is_refused(
    payloads: PayloadStore, fields: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(BadInput, match=refusal):
        prepare(draft(**fields), NOW, payloads)


def test_the_largest_values_that_fit_are_stored(payloads: PayloadStore) -> None:
    largest = (1 << 63) - 1
    row = prepare(
        draft(session_id="é" * LONGEST_ID, reply_to=largest, step_index=-largest, msg_index=0),
        NOW,
        payloads,
    )
    event = event_from_row(row.at(1, GENESIS))
    assert (event.reply_to, event.step_index, event.msg_index) == (largest, -largest, 0)
    assert event.session_id == "é" * LONGEST_ID


def test_lone_surrogates_in_a_text_are_replaced_and_that_is_noted(payloads: PayloadStore) -> None:
    event = event_from_row(prepare(draft(content="a\ud800b"), NOW, payloads).at(1, GENESIS))
    assert event.content == "a\ufffdb" and event.metadata == {"replaced_surrogates": True}
    plain = event_from_row(prepare(draft(content="日本"), NOW, payloads).at(1, GENESIS))
    assert plain.content == "日本" and plain.metadata == {}


def test_a_row_is_counted_in_bytes(payloads: PayloadStore) -> None:
    ascii_bytes = prepare(draft(content="x" * 100), NOW, payloads).bytes
    assert prepare(draft(content="é" * 100), NOW, payloads).bytes == ascii_bytes + 100
    assert prepare(draft(content="x" * 101), NOW, payloads).bytes == ascii_bytes + 1


def test_a_text_and_bytes_become_the_same_payload(payloads: PayloadStore) -> None:
    text, raw = (
        prepare(draft(), NOW, payloads, body).columns for body in ("é" * 50, ("é" * 50).encode())
    )
    assert text.payload == raw.payload is not None
    assert text.payload_size == raw.payload_size == 100
    assert text.payload_type == raw.payload_type


def test_a_row_reads_as_it_was_written() -> None:
    event = event_from_row(ROW)
    assert (event.seq, event.content, event.metadata, event.reply_to) == (7, "said", {"a": 1}, 3)
    assert event.payload is None and event.chain == b"c" * 32


TEXT_COLUMNS = (
    "session_id",
    "agent_id",
    "task_id",
    "kind",
    "role",
    "name",
    "content",
    "tool_call_id",
    "tool_state",
    "headline",
    "created_at",
    "recorded_at",
)


@pytest.mark.parametrize("column", TEXT_COLUMNS)
@pytest.mark.parametrize(("value", "text"), [(b"by\xfftes", "by\ufffdtes"), (None, ""), (12, "12")])
def test_a_damaged_column_reads_as_text_and_spoils_no_other(
    column: str, value: object, text: str
) -> None:
    intact = event_from_row(ROW)
    damaged = event_from_row(ROW._replace(**{column: value}))
    assert getattr(damaged, column) == text
    for name in TEXT_COLUMNS:
        assert name == column or getattr(damaged, name) == getattr(intact, name)


def test_damaged_metadata_chain_and_payload_columns_leave_the_rest_readable() -> None:
    damage: dict[str, Any] = {
        "payload": b"ab",
        "payload_size": "large",
        "payload_type": None,
        "metadata": "{",
        "chain": "text",
    }
    event = event_from_row(ROW._replace(**damage))
    assert event.metadata == {"damaged_metadata": "{"}
    assert (event.chain, event.content) == (b"", "said")
    assert event.payload is not None
    assert (event.payload.digest, event.payload.size, event.payload.media_type) == ("ab", 0, "")


def test_an_erased_row_holds_nothing_else() -> None:
    blank = ROW._replace(
        name="",
        content=ERASED,
        headline="",
        metadata=ERASED_METADATA,
        nonce=None,
        leaf=b"l",
    )
    assert is_blank(blank)
    leftovers: dict[str, Any] = {
        "name": "name",
        "content": "words",
        "payload": "d",
        "payload_size": 5,
        "payload_type": "t",
        "headline": "h",
        "metadata": "{}",
        "nonce": b"n",
    }
    for column, value in leftovers.items():
        assert not is_blank(blank._replace(**{column: value})), column


def test_the_columns_of_an_event_are_those_of_the_table_between_seq_and_chain(
    log: EventLog,
) -> None:
    table = tuple(name for _, name, *_ in log.query("PRAGMA table_info(event)"))
    assert table == TableRow._fields
    assert table == ("seq", *EventColumns._fields, "chain", "nonce", "leaf")
    assert ROW.columns == EventColumns(*ROW[1:21]) and ROW.columns.source_key == "key"
