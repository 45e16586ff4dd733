"""Rows: what a draft must be, what is repaired on the way in, and how a damaged row reads."""

from pathlib import Path
from typing import Any

import pytest

from scroll_context.errors import BadInput
from scroll_context.events import Draft
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import (
    ERASED,
    ERASED_METADATA,
    LONGEST_ID,
    event_from_row,
    is_blank,
    prepare,
)

NOW = "2026-05-01T10:00:00.000000Z"
ROW = (
    7,
    "s",
    "me",
    "task",
    "conversation",
    "user",
    "name",
    "said",
    None,
    None,
    None,
    "call",
    "ok",
    "headline",
    3,
    4,
    5,
    '{"a":1}',
    NOW,
    NOW,
    "key",
    b"c" * 32,
    b"n" * 32,
    None,
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
    event = event_from_row((1, *row.before, b""))
    assert (event.reply_to, event.step_index, event.msg_index) == (largest, -largest, 0)
    assert event.session_id == "é" * LONGEST_ID


def test_lone_surrogates_in_a_text_are_replaced_and_that_is_noted(payloads: PayloadStore) -> None:
    event = event_from_row((1, *prepare(draft(content="a\ud800b"), NOW, payloads).before, b""))
    assert event.content == "a\ufffdb" and event.metadata == {"replaced_surrogates": True}
    plain = event_from_row((1, *prepare(draft(content="日本"), NOW, payloads).before, b""))
    assert plain.content == "日本" and plain.metadata == {}


def test_a_row_is_counted_in_bytes(payloads: PayloadStore) -> None:
    ascii_bytes = prepare(draft(content="x" * 100), NOW, payloads).bytes
    assert prepare(draft(content="é" * 100), NOW, payloads).bytes == ascii_bytes + 100
    assert prepare(draft(content="x" * 101), NOW, payloads).bytes == ascii_bytes + 1


def test_a_text_and_bytes_become_the_same_payload(payloads: PayloadStore) -> None:
    text, raw = (
        prepare(draft(), NOW, payloads, body).before[7:10]
        for body in ("é" * 50, ("é" * 50).encode())
    )
    assert text == raw and text[1] == 100


def test_a_row_reads_as_it_was_written() -> None:
    event = event_from_row(ROW)
    assert (event.seq, event.content, event.metadata, event.reply_to) == (7, "said", {"a": 1}, 3)
    assert event.payload is None and event.chain == b"c" * 32


@pytest.mark.parametrize("column", [1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 18, 19])
@pytest.mark.parametrize(("value", "read"), [(b"by\xfftes", "by\ufffdtes"), (None, ""), (12, "12")])
def test_a_damaged_column_reads_as_text_and_spoils_no_other(
    column: int, value: object, read: str
) -> None:
    names = dict(
        enumerate(("seq", "session_id", "agent_id", "task_id", "kind", "role", "name", "content"))
    )
    names |= {
        11: "tool_call_id",
        12: "tool_state",
        13: "headline",
        18: "created_at",
        19: "recorded_at",
    }
    whole, damaged = event_from_row(ROW), event_from_row((*ROW[:column], value, *ROW[column + 1 :]))
    assert getattr(damaged, names[column]) == read
    for name in names.values():
        assert name == names[column] or getattr(damaged, name) == getattr(whole, name)


def test_damaged_metadata_chain_and_payload_columns_leave_the_rest_readable() -> None:
    event = event_from_row(
        (*ROW[:8], b"ab", "large", None, *ROW[11:17], "{", *ROW[18:21], "text", *ROW[22:])
    )
    assert (
        event.metadata == {"damaged_metadata": "{"}
        and event.chain == b""
        and event.content == "said"
    )
    assert event.payload is not None
    assert (event.payload.digest, event.payload.size, event.payload.media_type) == ("ab", 0, "")


def test_an_erased_row_holds_nothing_else() -> None:
    blank = (
        *ROW[:6],
        "",
        ERASED,
        None,
        None,
        None,
        *ROW[11:13],
        "",
        *ROW[14:17],
        ERASED_METADATA,
        *ROW[18:22],
        None,
    )
    assert is_blank((*blank, b"l"))
    for column, left in (
        (6, "name"),
        (7, "words"),
        (8, "d"),
        (9, 5),
        (10, "t"),
        (13, "h"),
        (17, "{}"),
        (22, b"n"),
    ):
        assert not is_blank((*blank[:column], left, *blank[column + 1 :], b"l")), column
