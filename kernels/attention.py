"""Paged attention: what callers use of attention_decode.py and attention_prefill.py."""

from .attention_decode import decode_attention, passage_context
from .attention_passages import PassageTable
from .attention_prefill import prefill_attention
from .attention_workspace import SPLIT_TOKENS, DecodeWorkspace

__all__ = [
    "SPLIT_TOKENS",
    "DecodeWorkspace",
    "PassageTable",
    "decode_attention",
    "passage_context",
    "prefill_attention",
]
