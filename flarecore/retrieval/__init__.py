"""Retrieval in process: passages, filters, a native sentence encoder; HNSW, exact search, BM25,
hybrids of them.

Nothing here loads hnswlib, bm25s, tokenizers or the native module before it is used.
"""

from __future__ import annotations

from flarecore.retrieval.analysis import Analyser, FunctionAnalyser, TextAnalyser
from flarecore.retrieval.bm25 import BM25Retriever
from flarecore.retrieval.chunking import split_text
from flarecore.retrieval.corpus import read_passages
from flarecore.retrieval.encoder import SentenceEncoder
from flarecore.retrieval.exact import ExactRetriever
from flarecore.retrieval.hnsw import HnswRetriever, SearchStats
from flarecore.retrieval.hybrid import HybridRetriever
from flarecore.retrieval.index_io import index_info
from flarecore.retrieval.loading import load_index
from flarecore.retrieval.passage import (
    Filter,
    Passage,
    Progress,
    Retriever,
    TextEncoder,
    check_results,
)

__all__ = [
    "Analyser",
    "BM25Retriever",
    "ExactRetriever",
    "Filter",
    "FunctionAnalyser",
    "HnswRetriever",
    "HybridRetriever",
    "Passage",
    "Progress",
    "Retriever",
    "SearchStats",
    "SentenceEncoder",
    "TextAnalyser",
    "TextEncoder",
    "check_results",
    "index_info",
    "load_index",
    "read_passages",
    "split_text",
]
