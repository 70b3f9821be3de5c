"""Retrieval in process: passages, filters, a native sentence encoder, HNSW and exact search.

Nothing here loads hnswlib, tokenizers or the native module before it is used.
"""

from __future__ import annotations

from flarecore.retrieval.chunking import split_text
from flarecore.retrieval.corpus import read_passages
from flarecore.retrieval.encoder import SentenceEncoder
from flarecore.retrieval.exact import ExactRetriever
from flarecore.retrieval.hnsw import HnswRetriever, SearchStats
from flarecore.retrieval.index_io import index_info
from flarecore.retrieval.passage import (
    Filter,
    Passage,
    Progress,
    Retriever,
    TextEncoder,
    check_results,
)

__all__ = [
    "ExactRetriever",
    "Filter",
    "HnswRetriever",
    "Passage",
    "Progress",
    "Retriever",
    "SearchStats",
    "SentenceEncoder",
    "TextEncoder",
    "check_results",
    "index_info",
    "read_passages",
    "split_text",
]
