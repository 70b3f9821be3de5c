"""Encoders without a model, passages over given vectors, forged index files."""

from __future__ import annotations

import functools
import re
import zlib

import numpy as np

from flarecore.retrieval.hybrid import HybridRetriever
from flarecore.retrieval.index_io import read_index_file, write_index_file
from flarecore.retrieval.passage import Passage


class UncheckedPassage(Passage):
    """What another implementation may return or add: its fields are of any type."""

    def __post_init__(self):
        pass


class WordEncoder:
    """Sum of one random vector per word: texts that share words are similar."""

    def __init__(self, dim: int = 32, name: str = "words", fingerprint: str = "words-1"):
        self.dim, self.name, self.fingerprint = dim, name, fingerprint
        self.num_texts = 0

    def encode(self, texts: list[str]) -> np.ndarray:
        self.num_texts += len(texts)
        rows = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                row += _word_vector(word, self.dim)
        return rows


@functools.cache
def _word_vector(word: str, dim: int) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(word.encode())).standard_normal(dim)


class TableEncoder:
    """Text "v7" has row 7 of a table as its vector."""

    def __init__(self, table: np.ndarray):
        self.table = table.astype(np.float32)
        self.dim, self.name, self.fingerprint = table.shape[1], "table", "table-1"

    def encode(self, texts: list[str]) -> np.ndarray:
        return self.table[[int(text[1:]) for text in texts]]


HYBRID_PASSAGES = [Passage(f"p{i}", f"word{i} shared X-{i}", title=f"t{i % 3}",
                           metadata={"mod": i % 4}) for i in range(40)]


def build_hybrid(**options) -> HybridRetriever:
    """BM25 and HNSW over ``HYBRID_PASSAGES``."""
    return HybridRetriever.build(HYBRID_PASSAGES, WordEncoder(), **options)


def table_passages(begin: int, end: int) -> list[Passage]:
    """Passages "p7" with the text "v7" and metadata to filter by."""
    return [Passage(id=f"p{i}", text=f"v{i}", metadata={"n": i, "mod": i % 7, "even": i % 2 == 0})
            for i in range(begin, end)]


def random_table(num_rows: int, dim: int, seed: int, num_clusters: int = 0) -> np.ndarray:
    """Gaussian rows, or rows close around some centres: harder for a graph."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((num_rows, dim))
    if num_clusters:
        centres = 3 * rng.standard_normal((num_clusters, dim))
        rows += centres[rng.integers(num_clusters, size=num_rows)]
    return rows.astype(np.float32)


def true_ids(table: np.ndarray, query: np.ndarray, k: int, rows: np.ndarray) -> list[str]:
    """The ids of the best `k` of `rows` by cosine in double, ties by row."""
    unit = table / np.linalg.norm(table.astype(np.float64), axis=1, keepdims=True)
    scores = unit[rows] @ (query / np.linalg.norm(query.astype(np.float64)))
    return [f"p{rows[i]}" for i in np.argsort(-scores, kind="stable")[:k]]


def ids_of(found: list[list[Passage]]) -> list[list[str]]:
    return [[p.id for p in passages] for passages in found]


def forge(source, target, header=None, sections=None):
    """A copy with other contents and right checksums: what a malicious author would send."""
    file = read_index_file(source)
    parts = {name: data.copy() for name, data in file.sections.items()}
    for name, change in (sections or {}).items():
        parts[name] = change(parts[name])
    write_index_file(target, {**file.header, **(header or {})},
                     {name: [bytes(data)] for name, data in parts.items() if data is not None})
    return target


def poke(word, value, dtype="<u4"):
    def change(data):
        data.view(dtype)[word] = value
        return data
    return change


def replace_text(old, new):
    return lambda data: bytes(data).replace(old, new, 1)
