"""flarecore: FLARE-direct (forward-looking active retrieval) inside the decoder.

Names are loaded when they are first used, so that importing the package is quick and loads no
tokenizer, index or terminal library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "flarecore.answer_stream": ["AnswerStream", "AsyncAnswerStream"],
    "flarecore.config": ["FlareConfig", "GateFn", "NoEvidenceFn", "QueryFn", "RuleFn", "TriggerFn"],
    "flarecore.decode_options": ["DecodeOptions"],
    "flarecore.engine": ["Engine", "EngineStats"],
    "flarecore.errors": [
        "CallbackError", "CancelledError", "ClosedError", "ConfigError", "ContextOverflowError",
        "DeadlineExceeded", "FlarecoreError", "IndexFileError", "ModelFileError",
        "OutOfBlocksError", "PassageFileError", "RetrievalError", "RetrievalWarning",
        "SequenceBusyError", "UnsupportedError"],
    "flarecore.events": [
        "DraftFinished", "DraftStarted", "Event", "Finished", "RetrievalFinished",
        "RetrievalStarted", "SentenceAccepted"],
    "flarecore.flare": ["Flare"],
    "flarecore.gpu.options": ["GpuOptions"],
    "flarecore.loop.candidate": ["Candidate"],
    "flarecore.methods": ["METHODS", "Method", "MethodSpec", "make_method"],
    "flarecore.model": ["Model", "ModelConfig"],
    "flarecore.operation": ["Decoded", "Operation", "OperationStats", "Scored"],
    "flarecore.passage_cache": ["EncodedPassage", "PassageCache", "PassageCacheStats"],
    "flarecore.passage_file": ["PassageKvFile"],
    "flarecore.passage_kv": ["PassageKv"],
    "flarecore.quantization": ["KindError", "Quantization"],
    "flarecore.result": ["FlareResult"],
    "flarecore.retrieval": [
        "BM25Retriever", "ExactRetriever", "Filter", "HnswRetriever", "HybridRetriever", "Passage",
        "Retriever", "SentenceEncoder", "TextAnalyser", "TextEncoder", "load_index",
        "read_passages"],
    "flarecore.rules": ["DraftRule"],
    "flarecore.sampling": ["SamplingParams"],
    "flarecore.sequence": ["Checkpoint", "Sequence"],
    "flarecore.templates": ["PromptTemplate"],
    "flarecore.text": ["SentenceBoundary", "mask_to_query", "split_sentences"],
    "flarecore.tokenizer": ["Tokenizer"],
    "flarecore.trace": [
        "AskTrace", "FlareStats", "PassTrace", "PassageTrace", "RetrievalTrace", "RuleTrace",
        "SentenceTrace", "Trace"],
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = ["__version__", *_MODULE_OF]

if TYPE_CHECKING:
    from flarecore.answer_stream import AnswerStream as AnswerStream
    from flarecore.answer_stream import AsyncAnswerStream as AsyncAnswerStream
    from flarecore.config import FlareConfig as FlareConfig
    from flarecore.config import GateFn as GateFn
    from flarecore.config import NoEvidenceFn as NoEvidenceFn
    from flarecore.config import QueryFn as QueryFn
    from flarecore.config import RuleFn as RuleFn
    from flarecore.config import TriggerFn as TriggerFn
    from flarecore.decode_options import DecodeOptions as DecodeOptions
    from flarecore.engine import Engine as Engine
    from flarecore.engine import EngineStats as EngineStats
    from flarecore.errors import CallbackError as CallbackError
    from flarecore.errors import CancelledError as CancelledError
    from flarecore.errors import ClosedError as ClosedError
    from flarecore.errors import ConfigError as ConfigError
    from flarecore.errors import ContextOverflowError as ContextOverflowError
    from flarecore.errors import DeadlineExceeded as DeadlineExceeded
    from flarecore.errors import FlarecoreError as FlarecoreError
    from flarecore.errors import IndexFileError as IndexFileError
    from flarecore.errors import ModelFileError as ModelFileError
    from flarecore.errors import OutOfBlocksError as OutOfBlocksError
    from flarecore.errors import PassageFileError as PassageFileError
    from flarecore.errors import RetrievalError as RetrievalError
    from flarecore.errors import RetrievalWarning as RetrievalWarning
    from flarecore.errors import SequenceBusyError as SequenceBusyError
    from flarecore.errors import UnsupportedError as UnsupportedError
    from flarecore.events import DraftFinished as DraftFinished
    from flarecore.events import DraftStarted as DraftStarted
    from flarecore.events import Event as Event
    from flarecore.events import Finished as Finished
    from flarecore.events import RetrievalFinished as RetrievalFinished
    from flarecore.events import RetrievalStarted as RetrievalStarted
    from flarecore.events import SentenceAccepted as SentenceAccepted
    from flarecore.flare import Flare as Flare
    from flarecore.gpu.options import GpuOptions as GpuOptions
    from flarecore.loop.candidate import Candidate as Candidate
    from flarecore.methods import METHODS as METHODS
    from flarecore.methods import Method as Method
    from flarecore.methods import MethodSpec as MethodSpec
    from flarecore.methods import make_method as make_method
    from flarecore.model import Model as Model
    from flarecore.model import ModelConfig as ModelConfig
    from flarecore.operation import Decoded as Decoded
    from flarecore.operation import Operation as Operation
    from flarecore.operation import OperationStats as OperationStats
    from flarecore.operation import Scored as Scored
    from flarecore.passage_cache import EncodedPassage as EncodedPassage
    from flarecore.passage_cache import PassageCache as PassageCache
    from flarecore.passage_cache import PassageCacheStats as PassageCacheStats
    from flarecore.passage_file import PassageKvFile as PassageKvFile
    from flarecore.passage_kv import PassageKv as PassageKv
    from flarecore.quantization import KindError as KindError
    from flarecore.quantization import Quantization as Quantization
    from flarecore.result import FlareResult as FlareResult
    from flarecore.retrieval import BM25Retriever as BM25Retriever
    from flarecore.retrieval import ExactRetriever as ExactRetriever
    from flarecore.retrieval import Filter as Filter
    from flarecore.retrieval import HnswRetriever as HnswRetriever
    from flarecore.retrieval import HybridRetriever as HybridRetriever
    from flarecore.retrieval import Passage as Passage
    from flarecore.retrieval import Retriever as Retriever
    from flarecore.retrieval import SentenceEncoder as SentenceEncoder
    from flarecore.retrieval import TextAnalyser as TextAnalyser
    from flarecore.retrieval import TextEncoder as TextEncoder
    from flarecore.retrieval import load_index as load_index
    from flarecore.retrieval import read_passages as read_passages
    from flarecore.rules import DraftRule as DraftRule
    from flarecore.sampling import SamplingParams as SamplingParams
    from flarecore.sequence import Checkpoint as Checkpoint
    from flarecore.sequence import Sequence as Sequence
    from flarecore.templates import PromptTemplate as PromptTemplate
    from flarecore.text import SentenceBoundary as SentenceBoundary
    from flarecore.text import mask_to_query as mask_to_query
    from flarecore.text import split_sentences as split_sentences
    from flarecore.tokenizer import Tokenizer as Tokenizer
    from flarecore.trace import AskTrace as AskTrace
    from flarecore.trace import FlareStats as FlareStats
    from flarecore.trace import PassageTrace as PassageTrace
    from flarecore.trace import PassTrace as PassTrace
    from flarecore.trace import RetrievalTrace as RetrievalTrace
    from flarecore.trace import RuleTrace as RuleTrace
    from flarecore.trace import SentenceTrace as SentenceTrace
    from flarecore.trace import Trace as Trace


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'flarecore' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
