"""The embedders that come with Scroll, against a real HTTP server."""

import sys
from typing import Any

import pytest

from provider_server import Exchange, ProviderServer
from scroll_context.errors import BadInput, ModelUnavailable
from scroll_context.models.embedders import EndpointEmbedder, LocalEmbedder


def vectors(exchange: Exchange) -> None:
    """One vector a text, in the wrong order: the index says which is whose."""
    data: list[dict[str, Any]] = [
        {"object": "embedding", "index": at, "embedding": [float(len(text)), 1.0]}
        for at, text in enumerate(exchange.body["input"])
    ]
    exchange.respond(
        200,
        {
            "object": "list",
            "model": "tiny",
            "data": data[::-1],
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        },
    )


def test_an_endpoint_gives_a_vector_for_each_text_in_order() -> None:
    pytest.importorskip("openai", reason="the models extra is not installed")
    with ProviderServer(vectors) as server:
        embedder = EndpointEmbedder("tiny", base_url=server.url, api_key="none", dimensions=2)
        assert embedder.embed(["a", "four"]) == [[1.0, 1.0], [4.0, 1.0]]
        [sent] = server.bodies
    assert sent == {
        "model": "tiny",
        "input": ["a", "four"],
        "encoding_format": "float",
        "dimensions": 2,
    }
    assert embedder.name != EndpointEmbedder("tiny", base_url=server.url, api_key="none").name


def test_an_endpoint_that_refuses_is_an_unavailable_model() -> None:
    pytest.importorskip("openai", reason="the models extra is not installed")

    def refuse(exchange: Exchange) -> None:
        exchange.respond(401, {"error": {"message": "wrong key"}})

    with ProviderServer(refuse) as server, pytest.raises(ModelUnavailable, match="wrong key"):
        EndpointEmbedder("tiny", base_url=server.url, api_key="none").embed(["a"])


@pytest.mark.skipif("sentence_transformers" in sys.modules, reason="it is installed here")
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(BadInput, match="pip install sentence-transformers"):
        LocalEmbedder("all-MiniLM-L6-v2")
