"""The HNSW graph over the vectors, through hnswlib, with its traps closed.

Source: Malkov and Yashunin, "Efficient and robust approximate nearest neighbor search using
Hierarchical Navigable Small World graphs", arXiv 1603.09320; `m` and `ef_construction` are the
paper's M and efConstruction.

hnswlib's own files are never read: its loader trusts every number in them. What is saved is the
links alone, as arrays; ``HnswGraph.from_links`` checks every one of them against the bounds that
hnswlib's search relies on, joins them with the vectors and hands over arrays of known sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore.errors import IndexFileError
from flarecore.retrieval.ranking import FloatArray, IndexArray
from flarecore.retrieval.store import int_in

__all__ = ["GraphLinks", "GraphParams", "HnswGraph"]

LinkArray = npt.NDArray[np.uint32]

_MAX_LEVEL = 63
_LABEL_BYTES = 8


@dataclass(frozen=True)
class GraphParams:
    """What shapes a graph: M, efConstruction and ef of the paper, and the seed of the levels.

    Raises
    ------
    ConfigError
        A value is out of range.
    """

    m: int
    ef_construction: int
    ef_search: int
    seed: int

    def __post_init__(self) -> None:
        int_in("m", self.m, 2, 128)
        int_in("ef_construction", self.ef_construction, self.m, 1 << 16)
        int_in("ef_search", self.ef_search, 1, 1 << 16)
        int_in("seed", self.seed, 0, (1 << 63) - 1)


@dataclass(frozen=True)
class GraphLinks:
    """A graph without its vectors.

    ``base`` is (n, 1 + 2m) uint32: the number of links on the ground layer, then the links, then
    zeros. ``upper`` is (sum of levels, 1 + m), the same for the layers 1, 2, ... of each element in
    turn. ``levels`` is (n,) uint8, the top layer of each element.
    """

    base: LinkArray
    upper: LinkArray
    levels: npt.NDArray[np.uint8]
    entry: int

    def check(self, num_rows: int, m: int) -> None:
        """Raises IndexFileError unless every link leads to an element that is on its layer."""
        if not (self.base.shape == (num_rows, 1 + 2 * m) and self.levels.shape == (num_rows,)):
            raise IndexFileError("index graph: its arrays do not fit the number of passages")
        levels = self.levels.astype(np.int64)
        if num_rows == 0 or levels.max() > _MAX_LEVEL:
            raise IndexFileError(f"index graph: it must have layers 0 to at most {_MAX_LEVEL}")
        if not 0 <= self.entry < num_rows or levels[self.entry] != levels.max():
            raise IndexFileError(f"index graph: element {self.entry} cannot be the entry point")
        if self.upper.shape != (int(levels.sum()), 1 + m):
            raise IndexFileError("index graph: its upper layers do not fit the levels")
        _check_layer(self.base, np.zeros(num_rows, dtype=np.int64), levels)
        _check_layer(self.upper, _layers_of_upper(levels), levels)


def _layers_of_upper(levels: IndexArray) -> IndexArray:
    """The layer of each row of ``upper``: 1..level for each element in turn."""
    first = np.repeat(np.cumsum(levels) - levels, levels)
    return np.arange(len(first), dtype=np.int64) - first + 1


def _check_layer(links: LinkArray, layer: IndexArray, levels: IndexArray) -> None:
    counts, targets = links[:, 0].astype(np.int64), links[:, 1:].astype(np.int64)
    if (counts > targets.shape[1]).any():
        raise IndexFileError(
            f"index graph: an element has more than {targets.shape[1]} links on a layer")
    used = np.arange(targets.shape[1])[None, :] < counts[:, None]
    if (targets[used] >= len(levels)).any():
        raise IndexFileError(f"index graph: a link leads beyond its {len(levels)} elements")
    # hnswlib follows a link on a layer without asking whether the target has memory for it.
    if (levels[targets[used]] < np.broadcast_to(layer[:, None], used.shape)[used]).any():
        raise IndexFileError("index graph: a link leads to an element that is not on its layer")


class HnswGraph:
    """An hnswlib index of rows 0, 1, 2, ... of a vector table.

    Row order and one inserting thread make the graph a function of its parameters and of the
    sequence of calls. ``insert`` must not run beside any other call; ``query`` may.

    Parameters
    ----------
    dim : int
    params : GraphParams
    """

    def __init__(self, dim: int, params: GraphParams) -> None:
        import hnswlib

        self._dim = dim
        self._params = params
        self._index: Any = hnswlib.Index(space="ip", dim=dim)
        self._index.init_index(
            max_elements=1024, M=params.m, ef_construction=params.ef_construction,
            random_seed=params.seed)
        self._index.set_ef(params.ef_search)

    @property
    def num_rows(self) -> int:
        """Rows inserted so far."""
        return int(self._index.get_current_count())

    def insert(self, vectors: FloatArray) -> None:
        """Inserts the next rows, (n, dim) float32."""
        begin = self.num_rows
        end = begin + len(vectors)
        if end > self._index.get_max_elements():
            self._index.resize_index(max(end, 2 * begin))
        self._index.add_items(vectors, np.arange(begin, end), num_threads=1)

    def query(self, queries: FloatArray, num: int) -> IndexArray | None:
        """(q, num) rows near each query, or None if the graph cannot reach as many.

        `num` must not exceed ``num_rows``. At least `num` candidates are kept while searching,
        whatever ``ef_search`` is.
        """
        try:
            labels, _ = self._index.knn_query(queries, k=num, num_threads=1)
        except RuntimeError:  # hnswlib: fewer than num were reachable
            return None
        return np.asarray(labels, dtype=np.int64)

    def links(self) -> GraphLinks:
        """The graph without its vectors; must not run beside ``insert``."""
        state = self._index.__getstate__()[0]
        n, m = self.num_rows, self._params.m
        base = np.ascontiguousarray(state["data_level0"]).view(np.uint32).reshape(n, -1)
        upper = np.ascontiguousarray(state["link_lists"]).view(np.uint32).reshape(-1, 1 + m)
        return GraphLinks(
            base=_without_rest(base[:, : 1 + 2 * m]), upper=_without_rest(upper),
            levels=state["element_levels"][:n].astype(np.uint8),
            entry=int(state["enterpoint_node"]))

    @classmethod
    def from_links(cls, links: GraphLinks, vectors: FloatArray, params: GraphParams) -> HnswGraph:
        """The graph that ``links`` described, over the same vectors.

        Raises
        ------
        IndexFileError
            The links do not make a graph over these rows.
        """
        num_rows, dim = vectors.shape
        links.check(num_rows, params.m)
        graph = cls(dim, params)
        graph._index = _compose(links, vectors, params)
        return graph


def _without_rest(links: LinkArray) -> LinkArray:
    """A copy with zeros behind the links in use: hnswlib leaves stale ones there."""
    unused = np.arange(links.shape[1])[None, :] > links[:, :1]
    return np.where(unused, np.uint32(0), links)


def _compose(links: GraphLinks, vectors: FloatArray, params: GraphParams) -> Any:
    """An hnswlib index from checked links: every size below follows from n, dim and m."""
    import hnswlib

    num_rows, dim = vectors.shape
    link_words = links.base.shape[1]
    element = np.dtype([("links", np.uint32, (link_words,)), ("vector", np.float32, (dim,)),
                        ("label", "V8")])
    table = np.zeros(num_rows, dtype=element)
    table["links"] = links.base
    table["vector"] = vectors
    labels = np.arange(num_rows, dtype=np.uint64)
    table["label"] = labels.view("V8")
    levels = links.levels.astype(np.int32)
    return hnswlib.Index({
        "ser_version": 1, "space": "ip", "dim": dim, "index_inited": True, "ep_added": True,
        "normalize": False, "num_threads": 1, "seed": params.seed, "offset_level0": 0,
        "max_elements": num_rows, "cur_element_count": num_rows,
        "size_data_per_element": element.itemsize,
        "label_offset": element.itemsize - _LABEL_BYTES, "offset_data": 4 * link_words,
        "max_level": int(levels.max()), "enterpoint_node": links.entry,
        "max_M": params.m, "max_M0": 2 * params.m, "M": params.m,
        "mult": 1 / math.log(1.0 * params.m), "ef_construction": params.ef_construction,
        "ef": params.ef_search, "has_deletions": False,
        "size_links_per_element": 4 * (1 + params.m), "allow_replace_deleted": False,
        "label_lookup_external": labels, "label_lookup_internal": labels.astype(np.uint32),
        "element_levels": levels, "data_level0": table.view(np.int8),
        "link_lists": np.ascontiguousarray(links.upper).view(np.int8).reshape(-1),
    })
