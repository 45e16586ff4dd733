"""Embedders for search by meaning: an OpenAI-compatible endpoint, and models of
sentence-transformers on this machine.

Both satisfy `scroll_context.search.meaning.Embedder`; any object with `name` and `embed` does.
Their libraries are imported when one is made.
"""

from collections.abc import Sequence
from typing import Any

from scroll_context.errors import BadInput, ModelUnavailable


class EndpointEmbedder:
    """A model behind an endpoint that speaks OpenAI's embeddings protocol: a provider, or vLLM,
    Ollama and the like.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        dimensions: int | None = None,
        timeout: float = 60.0,
    ) -> None:
        try:
            import openai
        except ImportError:
            raise BadInput(
                "this embedder needs the library openai: pip install 'scroll-context[models]'"
            ) from None
        self.name = f"{base_url or 'openai'} {model} {dimensions or ''}".strip()
        self._model = model
        self._more: dict[str, Any] = {} if dimensions is None else {"dimensions": dimensions}
        self._failures = openai.OpenAIError
        try:
            self._client = openai.OpenAI(base_url=base_url, api_key=api_key, timeout=timeout)
        except openai.OpenAIError as error:
            raise BadInput(f"the embedder cannot be used: {error}") from error

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        try:
            answer = self._client.embeddings.create(
                model=self._model, input=list(texts), encoding_format="float", **self._more
            )
        except self._failures as error:
            raise ModelUnavailable(f"the embeddings endpoint failed: {error}") from error
        return [item.embedding for item in sorted(answer.data, key=lambda item: item.index)]


class LocalEmbedder:
    """A model of sentence-transformers, by name or by the folder that holds it."""

    def __init__(self, model: str, *, device: str | None = None) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise BadInput(
                "this embedder needs sentence-transformers: pip install sentence-transformers"
            ) from None
        self.name = f"sentence-transformers {model}"
        self._model = SentenceTransformer(model, device=device)

    def embed(self, texts: Sequence[str]) -> Any:
        return self._model.encode(list(texts), show_progress_bar=False)
