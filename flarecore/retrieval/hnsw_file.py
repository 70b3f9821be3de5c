"""What an index file of :class:`HnswRetriever` holds, and how its parts are checked.

Sections: ``passages`` (one JSON object a line), ``vectors`` (count, dim) float32, and with a graph
``graph_base``, ``graph_upper`` (uint32) and ``graph_levels`` (uint8) as in ``GraphLinks``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flarecore.errors import ConfigError, IndexFileError
from flarecore.retrieval.graph import GraphLinks, GraphParams, HnswGraph
from flarecore.retrieval.index_io import IndexFile
from flarecore.retrieval.index_sections import (
    GivenEncoder,
    IndexContents,
    array_bytes,
    check_encoder,
    check_kind,
    read_flag,
    read_store,
    store_contents,
)
from flarecore.retrieval.passage import TextEncoder
from flarecore.retrieval.ranking import FloatArray
from flarecore.retrieval.store import PassageStore, StoreOptions

__all__ = ["IndexParts", "hnsw_contents", "parts_from_file"]

_KIND = "hnsw"


@dataclass
class IndexParts:
    """Everything a retriever consists of."""

    encoder: TextEncoder
    store: PassageStore
    options: StoreOptions
    params: GraphParams
    exact_below: int
    graph: HnswGraph | None


def hnsw_contents(parts: IndexParts) -> IndexContents:
    """What an index file of these parts holds."""
    store, params = parts.store, parts.params
    graph_rows = parts.graph.num_rows if parts.graph is not None else 0
    contents = store_contents(
        _KIND, parts.encoder, store, title_in_text=parts.options.title_in_text)
    header, sections = contents.header, contents.sections
    header |= {
        "exact_below": parts.exact_below,
        "m": params.m,
        "ef_construction": params.ef_construction,
        "ef_search": params.ef_search,
        "seed": params.seed,
        "graph_rows": graph_rows,
        "graph_entry": 0,
    }
    if parts.graph is not None and graph_rows:
        links = parts.graph.links()
        header["graph_entry"] = links.entry
        sections["graph_base"] = [array_bytes(links.base.astype("<u4", copy=False))]
        sections["graph_upper"] = [array_bytes(links.upper.astype("<u4", copy=False))]
        sections["graph_levels"] = [array_bytes(links.levels)]
    return contents


def parts_from_file(
    file: IndexFile, encoder: GivenEncoder, ef_search: int | None = None
) -> IndexParts:
    """The checked parts of an index file; see ``HnswRetriever.load``."""
    check_kind(file, _KIND)
    encoder = check_encoder(file, encoder)
    store = read_store(file, encoder)
    title_in_text = read_flag(file, "title_in_text")
    try:
        params = GraphParams(
            m=file.integer("m", 2, 1 << 16), seed=file.integer("seed", 0, 1 << 64),
            ef_construction=file.integer("ef_construction", 1, 1 << 32),
            ef_search=ef_search or file.integer("ef_search", 1, 1 << 32))
    except ConfigError as error:
        raise IndexFileError(f"{file.path}: {error}") from error
    return IndexParts(
        encoder=encoder, store=store, options=StoreOptions(title_in_text=title_in_text),
        params=params, exact_below=file.integer("exact_below", 0, 1 << 31),
        graph=_read_graph(file, store.vectors, params))


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
