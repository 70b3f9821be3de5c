"""What an index file of :class:`HnswRetriever` holds, and how its parts are checked.

Sections: ``passages`` (one JSON object a line), ``vectors`` (count, dim) float32, and with a graph
``graph_base``, ``graph_upper`` (uint32) and ``graph_levels`` (uint8) as in ``GraphLinks``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from flarecore.errors import ConfigError, IndexFileError
from flarecore.model_files import KNOWN_MODELS
from flarecore.retrieval.graph import GraphLinks, GraphParams, HnswGraph
from flarecore.retrieval.index_io import IndexFile, read_index_file, write_index_file
from flarecore.retrieval.passage import Passage, TextEncoder
from flarecore.retrieval.ranking import FloatArray
from flarecore.retrieval.store import PassageStore, StoreOptions

__all__ = ["IndexParts", "index_info", "load_parts", "save_parts"]

_KIND = "hnsw"
_MAX_COUNT = (1 << 31) - 1
_PASSAGES_PER_CHUNK = 1024


@dataclass
class IndexParts:
    """Everything a retriever consists of."""

    encoder: TextEncoder
    store: PassageStore
    options: StoreOptions
    params: GraphParams
    exact_below: int
    graph: HnswGraph | None


def index_info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of an index without its contents.

    Returns
    -------
    dict
        ``count`` (passages), ``dim``, ``encoder`` (``name``, ``fingerprint``), ``graph_rows``,
        ``m``, ``ef_construction``, ``ef_search``, ``seed``, ``title_in_text``, ``exact_below``.

    Raises
    ------
    IndexFileError
        Missing, of another kind or version, or a damaged header.
    """
    return read_index_file(path, header_only=True).header


def save_parts(path: str | os.PathLike[str], parts: IndexParts) -> None:
    """Writes an index file; see ``HnswRetriever.save``."""
    store, params = parts.store, parts.params
    graph_rows = parts.graph.num_rows if parts.graph is not None else 0
    header = {
        "kind": _KIND,
        "count": len(store),
        "dim": store.dim,
        "encoder": {"name": parts.encoder.name, "fingerprint": parts.encoder.fingerprint},
        "title_in_text": parts.options.title_in_text,
        "exact_below": parts.exact_below,
        "m": params.m,
        "ef_construction": params.ef_construction,
        "ef_search": params.ef_search,
        "seed": params.seed,
        "graph_rows": graph_rows,
        "graph_entry": 0,
    }
    sections: dict[str, Any] = {
        "passages": _passage_lines(store.passages),
        "vectors": [_bytes(store.vectors.astype("<f4", copy=False))],
    }
    if parts.graph is not None and graph_rows:
        links = parts.graph.links()
        header["graph_entry"] = links.entry
        sections["graph_base"] = [_bytes(links.base.astype("<u4", copy=False))]
        sections["graph_upper"] = [_bytes(links.upper.astype("<u4", copy=False))]
        sections["graph_levels"] = [_bytes(links.levels)]
    write_index_file(path, header, sections)


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _passage_lines(passages: list[Passage]) -> Iterator[bytes]:
    for begin in range(0, len(passages), _PASSAGES_PER_CHUNK):
        lines = []
        for passage in passages[begin : begin + _PASSAGES_PER_CHUNK]:
            fields = passage.to_json()
            del fields["score"]
            lines.append(json.dumps(fields, ensure_ascii=False, separators=(",", ":")))
        yield ("\n".join(lines) + "\n").encode("utf-8")


def load_parts(
    path: str | os.PathLike[str], encoder: TextEncoder | None, ef_search: int | None
) -> IndexParts:
    """Reads and checks an index file; see ``HnswRetriever.load``."""
    file = read_index_file(path)
    if file.header.get("kind") != _KIND:
        raise IndexFileError(
            f"{file.path}: holds an index of kind {file.header.get('kind')!r}, wanted {_KIND!r}")
    encoder = _check_encoder(file, encoder)
    count = file.integer("count", 0, _MAX_COUNT)
    vectors = _read_vectors(file, count, encoder.dim)
    title_in_text = file.header.get("title_in_text")
    if not isinstance(title_in_text, bool):
        raise IndexFileError(f"{file.path}: header field 'title_in_text' must be a boolean")
    try:
        params = GraphParams(
            m=file.integer("m", 2, 1 << 16), seed=file.integer("seed", 0, 1 << 64),
            ef_construction=file.integer("ef_construction", 1, 1 << 32),
            ef_search=ef_search or file.integer("ef_search", 1, 1 << 32))
        store = PassageStore(encoder.dim)
        store.append(store.check_new(_read_passages(file, count)), vectors)
    except ConfigError as error:
        raise IndexFileError(f"{file.path}: {error}") from error
    return IndexParts(
        encoder=encoder, store=store, options=StoreOptions(title_in_text=title_in_text),
        params=params, exact_below=file.integer("exact_below", 0, 1 << 31),
        graph=_read_graph(file, store.vectors, params))


def _check_encoder(file: IndexFile, encoder: TextEncoder | None) -> TextEncoder:
    stored = file.header.get("encoder")
    name, fingerprint = (
        (stored.get("name"), stored.get("fingerprint")) if isinstance(stored, dict)
        else (None, None))
    if not isinstance(name, str) or not isinstance(fingerprint, str):
        raise IndexFileError(f"{file.path}: the header does not name the encoder")
    if encoder is None:
        encoder = _load_by_name(file, name)
    dim = file.integer("dim", 1, 1 << 16)
    if (encoder.fingerprint, encoder.dim) != (fingerprint, dim):
        raise IndexFileError(
            f"{file.path}: built with the encoder {name!r} (dim {dim}, fingerprint "
            f"{fingerprint[:12]}), opened with {encoder.name!r} (dim {encoder.dim}, fingerprint "
            f"{encoder.fingerprint[:12]}); pass the first or build the index again")
    return encoder


def _load_by_name(file: IndexFile, name: str) -> TextEncoder:
    from flarecore.retrieval.encoder import SentenceEncoder

    # A name from a file may pick a known model, never a place on the disk.
    if name not in KNOWN_MODELS:
        raise IndexFileError(
            f"{file.path}: built with the encoder {name!r}, which is no known model "
            f"({', '.join(KNOWN_MODELS)}); pass encoder=")
    return SentenceEncoder.load(name)


def _read_vectors(file: IndexFile, count: int, dim: int) -> FloatArray:
    data = file.section("vectors", count * dim * 4)
    vectors: FloatArray = data.view("<f4").reshape(count, dim).astype(np.float32, copy=False)
    # Also false for NaN. exact_top_k relies on lengths of at most 1.
    if not (np.einsum("ij,ij->i", vectors, vectors) <= 1.001).all():
        raise IndexFileError(f"{file.path}: a vector is longer than 1 or not finite")
    return vectors


def _read_passages(file: IndexFile, count: int) -> Iterator[Passage]:
    lines = file.section("passages").tobytes().split(b"\n")
    if len(lines) != count + 1 or lines[-1]:
        raise IndexFileError(
            f"{file.path}: section 'passages' must have {count} lines, got {len(lines) - 1}")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict) or "score" in fields:
                raise ConfigError("a line must be an object without a score")
            yield Passage.from_json(fields)
        except (ValueError, RecursionError) as error:  # ConfigError is a ValueError
            raise IndexFileError(
                f"{file.path}: section 'passages', line {number}: {error}") from error


def _read_graph(file: IndexFile, vectors: FloatArray, params: GraphParams) -> HnswGraph | None:
    rows = file.integer("graph_rows", 0, len(vectors))
    if rows == 0:
        return None
    base_words, upper_words = 1 + 2 * params.m, 1 + params.m
    base = file.section("graph_base", rows * base_words * 4).view("<u4")
    levels = file.section("graph_levels", rows)
    upper_rows = int(levels.sum(dtype=np.int64))
    upper = file.section("graph_upper", upper_rows * upper_words * 4).view("<u4")
    links = GraphLinks(
        base=base.reshape(rows, base_words).astype(np.uint32, copy=False),
        upper=upper.reshape(upper_rows, upper_words).astype(np.uint32, copy=False),
        levels=levels, entry=file.integer("graph_entry", 0, rows - 1))
    try:
        return HnswGraph.from_links(links, vectors[:rows], params)
    except RuntimeError:  # another hnswlib does not take this state: the graph is built again
        return None
