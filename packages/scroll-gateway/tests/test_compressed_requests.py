"""Requests that a client compressed: they are bounded like all others, and a bomb harms nothing."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import httpx2
import pytest
import zstandard

from gateways import SESSION, WINDOW, events_of, gateway
from scripted_upstream import ScriptedUpstream, reading
from scroll_context.events import Kind
from scroll_gateway import request_bodies
from scroll_gateway.request_bodies import expanded

COMPRESSIONS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


def long_list() -> dict[str, Any]:
    """A list of four times the window."""
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read."}]}
    ]
    for number in range(40):
        call = {"call_id": f"call_{number}", "name": "read_file", "arguments": '{"path": "a"}'}
        items.append({"type": "function_call", **call})
        output = f"Result {number}.\n" + "A line of a file.\n" * 550
        items.append(
            {"type": "function_call_output", "call_id": f"call_{number}", "output": output}
        )
    tools = [{"type": "function", "name": "read_file", "parameters": {"type": "object"}}]
    return {"model": "m", "input": items, "tools": tools, "store": False}


@pytest.mark.parametrize("encoding", sorted(COMPRESSIONS))
def test_a_compressed_request_is_bounded_like_any_other(tmp_path: Path, encoding: str) -> None:
    body = json.dumps(long_list()).encode()
    headers = {
        "content-type": "application/json",
        "content-encoding": encoding,
        SESSION: "compressed",
    }
    with (
        ScriptedUpstream(reading(0)) as upstream,
        gateway(tmp_path / "store", upstream) as running,
    ):
        response = httpx2.post(
            f"{running.url}/v1/responses",
            content=COMPRESSIONS[encoding](body),
            headers=headers,
            timeout=60,
        )
        assert response.status_code == 200
        sent = upstream.requests[-1].body
    assert json.loads(sent)["model"] == "m"
    assert len(body) * 2 // 7 > 1.5 * WINDOW
    assert len(sent) * 2 // 7 < WINDOW
    assert [event for event in events_of(tmp_path / "store") if event.kind == Kind.EVICTION]


@pytest.mark.parametrize("encoding", sorted(COMPRESSIONS))
def test_a_bomb_is_not_expanded_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """Without the limit, each of these bodies would be expanded completely."""
    size = 20 * 2**20
    bomb = COMPRESSIONS[encoding](b" " * size)
    assert len(bomb) < size // 500
    whole = expanded(bomb, encoding)
    assert whole is not None and len(whole) == size
    monkeypatch.setattr(request_bodies, "MOST_BODY", 2**20)
    assert expanded(bomb, encoding) is None


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br", "gzip, zstd"])
def test_a_body_that_cannot_be_expanded_is_sent_as_it_came(encoding: str) -> None:
    assert expanded(b"not compressed at all", encoding) is None
    assert expanded(b"{}", "identity") == b"{}"
