"""Paged attention: what callers use. Kernels are in attention_decode.py and attention_prefill.py."""

from .attention_decode import SPLIT_TOKENS, DecodeWorkspace, decode_attention
from .attention_prefill import prefill_attention

__all__ = [
    "SPLIT_TOKENS",
    "DecodeWorkspace",
    "decode_attention",
    "prefill_attention",
]
