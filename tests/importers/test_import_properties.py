"""Whatever a file holds, reading it never raises, and what is read can be appended."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scroll_context.importers.formats import detect, read
from scroll_context.importers.values import Fault, Format, Labels
from scroll_context.store.payloads import PayloadStore
from scroll_context.store.rows import prepare

text = st.text(st.characters(), max_size=8)  # lone surrogates included
scalar = st.none() | st.booleans() | st.integers() | st.floats() | text
anything = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=8
)
base64_text = st.sampled_from(["", "AAAA", "AA==", "A", "%%", "QUJD\nREVG"])
source = st.fixed_dictionaries(
    {"type": st.sampled_from(["base64", "url", "text"])},
    optional={
        "data": base64_text | anything,
        "media_type": st.sampled_from(["image/png", "png"]) | anything,
        "url": text,
    },
)
part = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "image_url", "tool_use", "tool_result", "thinking", "new"]) | anything},
    optional={
        "text": text | anything,
        "source": source,
        "image_url": st.sampled_from(["data:image/png;base64,AAAA", "data:,x", "https://e.org"]) | anything,
        "name": text | anything,
        "id": text | anything,
        "tool_use_id": text | anything,
        "input": anything,
        "content": anything,
        "is_error": anything,
    },
)
call = st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": text}, optional={"arguments": anything})})
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]) | anything},
    optional={
        "content": text | st.lists(part | text, max_size=3) | anything,
        "tool_calls": st.lists(call, max_size=2) | anything,
        "created_at": st.sampled_from(["2026-03-01", 1e9, 1e300, "24:00", "0001-01-01T00:00:00+14:00"]) | anything,
        "session_id": text | anything,
        "kind": st.sampled_from(["memo", "salvage"]) | anything,
        "step_index": st.integers() | anything,
        "headline": anything,
        "metadata": anything,
        "extra": anything,
    },
)
value = message | anything | st.fixed_dictionaries({"messages": st.lists(message, max_size=3) | anything})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("import")


def check(path: Path, place: Path, layout: Format) -> None:
    payloads = PayloadStore(place / "payloads")
    for item in read(path, "name", Labels(), layout):
        if isinstance(item, Fault):
            assert item.reason
            continue
        assert item.pieces
        for piece in item.pieces:
            assert piece.draft.source_key
            prepare(piece.draft, "2026-01-01", payloads)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(value, max_size=4), st.booleans())
@example([{"role": "user", "content": [{"type": "tool_use", "name": "\ud800"}]}], True)
def test_any_values(place: Path, values: list[Any], as_lines: bool) -> None:
    path = place / "any.jsonl"
    path.write_text("\n".join(map(json.dumps, values)) if as_lines else json.dumps(values, indent=1))
    check(path, place, Format.JSONL if as_lines else Format.JSON)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
@example(b"\xff\xfe[\x00")
@example(b"\xff\xfe\x00\x00{")
def test_any_bytes(place: Path, data: bytes) -> None:
    path = place / "bytes.json"
    path.write_bytes(data)
    for layout in (Format.JSONL, Format.JSON):
        check(path, place, layout)
    assert detect(path, ".json") in Format
