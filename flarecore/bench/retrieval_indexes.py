"""A corpus that can be searched in several ways, and what is proven of it before it is timed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flarecore.bench.harness import Progress, no_progress
from flarecore.bench.proofs import ProofError, prove_equal
from flarecore.retrieval import ExactRetriever, HnswRetriever
from flarecore.retrieval.passage import Passage, Retriever, TextEncoder
from flarecore.retrieval.ranking import FloatArray

__all__ = [
    "MIN_COSINE_Q8", "MIN_RECALL", "Indexes", "KnownTexts", "lowest_cosine", "prove", "shared",
]

# Share of the true best passages that the graph must find.
MIN_RECALL = 0.95
# Cosine of the same text's vector by float32 weights and by 8-bit ones.
MIN_COSINE_Q8 = 0.998


class KnownTexts:
    """An encoder that computes each text once: a search with a known query is a search alone.

    Parameters
    ----------
    encoder : TextEncoder
        Computes them.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self.name, self.dim, self.fingerprint = encoder.name, encoder.dim, encoder.fingerprint
        self._encoder = encoder
        self._vectors: dict[str, FloatArray] = {}

    def encode(self, texts: list[str]) -> FloatArray:
        """(len(texts), dim) float32, as the encoder gives them."""
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        self._vectors.update(zip(new, self._encoder.encode(new), strict=True))
        return np.stack([self._vectors[text] for text in texts])


@dataclass(frozen=True)
class Indexes:
    """One corpus, searched in three ways.

    Attributes
    ----------
    encoder : TextEncoder
    whole : HnswRetriever
        Embeds what it is asked, as an application's does.
    hnsw : HnswRetriever
        The same graph; embeds a query once and remembers it.
    exact : ExactRetriever
        Compares with every passage; the oracle. It remembers queries too.
    """

    encoder: TextEncoder
    whole: HnswRetriever
    hnsw: HnswRetriever
    exact: ExactRetriever

    @classmethod
    def build(
        cls, passages: Sequence[Passage], encoder: TextEncoder,
        progress: Progress = no_progress,
    ) -> Indexes:
        """Embeds every passage once and builds one graph."""
        known = KnownTexts(encoder)
        hnsw = HnswRetriever.build(passages, known, progress=progress)
        exact = ExactRetriever.build(passages, known)
        # Through a file, so that both hold the same graph, link by link.
        with tempfile.TemporaryDirectory(prefix="flarecore-bench-") as folder:
            file = Path(folder) / "corpus.index"
            hnsw.save(file)
            whole = HnswRetriever.load(file, encoder)
        return cls(encoder, whole, hnsw, exact)

    @property
    def uses_graph(self) -> bool:
        """Whether the graph has answered every query so far."""
        return self.whole.stats.num_exact == 0


def prove(indexes: Indexes, questions: Sequence[str], k: int) -> tuple[float, str]:
    """Searches are the same with a known query, and find what an exact search finds.

    Returns
    -------
    float, str
        Recall at `k`, and what was shown.

    Raises
    ------
    ProofError
        A passage or a score differs, or the recall is below ``MIN_RECALL``.
    """
    hits = wanted = 0
    for question in questions:
        (found,), (alone,), (best,) = (
            index.search([question], k) for index in (indexes.whole, indexes.hnsw, indexes.exact))
        prove_equal(f"passages for {question!r}, its vector known", alone, found)
        true = {passage.id: passage.score for passage in best}
        hits += sum(true.get(passage.id) == passage.score for passage in found)
        wanted += len(best)
    recall = hits / max(wanted, 1)
    if recall < MIN_RECALL:
        raise ProofError(f"HNSW finds {recall:.3f} of the {k} best passages, at least "
                         f"{MIN_RECALL:g} are needed; nothing is timed until this is repaired")
    name = "HNSW" if indexes.uses_graph else "the index"
    return recall, (f"{name} finds {hits} of the {wanted} passages that exact search finds for "
                    f"{len(questions)} questions, with the same scores")


def shared(index: Retriever, exact: Retriever, questions: Sequence[str], k: int) -> float:
    """Share of the passages of an exact search that another index finds, whatever their scores."""
    hits = wanted = 0
    for question in questions:
        (found,), (best,) = (searched.search([question], k) for searched in (index, exact))
        hits += len({passage.id for passage in found} & {passage.id for passage in best})
        wanted += len(best)
    return hits / max(wanted, 1)


def lowest_cosine(one: TextEncoder, other: TextEncoder, texts: Sequence[str]) -> float:
    """The smallest cosine of a text's two vectors."""
    first, second = one.encode(list(texts)), other.encode(list(texts))
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(((first * second).sum(axis=1) / lengths).min())
