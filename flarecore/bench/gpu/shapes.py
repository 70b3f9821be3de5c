"""Models that need no file: random weights of real shapes, and a tiny model file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flarecore.bench.gpu.quantized_checks import random_quantized
from flarecore.gpu.matrices import Part
from flarecore.gpu.shape import DecoderShape, LayerShape
from flarecore.gpu.weights import DecoderWeights, LayerWeights
from flarecore.tokenizer.pretokenizers import BYTE_ALPHABET

__all__ = ["SHAPES", "random_weights", "write_random_model"]


def _llama(layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, head_dim: int,
           vocab: int, *, tied: bool, context: int = 8192) -> DecoderShape:
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    frequencies = (500000.0 ** -exponents).astype(np.float32)
    return DecoderShape(
        num_layers=layers, hidden_size=hidden, intermediate_size=ffn, num_heads=heads,
        num_kv_heads=kv_heads, head_dim=head_dim, context_length=context, vocab_size=vocab,
        norm_eps=1e-5, attention_scale=head_dim**-0.5, embedding_scale=1.0, is_gelu=False,
        tied_head=tied, rotates_neighbours=True, has_qkv_bias=False, has_output_bias=False,
        norms_heads=False, norms_outputs=False,
        rotaries=(frequencies,), layers=(LayerShape(0, 0),) * layers)


SHAPES = {
    "tiny": _llama(1, 32, 48, 2, 1, 16, 300, tied=True, context=512),
    "SmolLM2-135M": _llama(30, 576, 1536, 9, 3, 64, 49152, tied=True),
    "Llama 1B": _llama(16, 2048, 8192, 32, 8, 64, 128256, tied=True),
    "Llama 8B": _llama(32, 4096, 14336, 32, 8, 128, 128256, tied=False),
}


def random_weights(shape: DecoderShape, dtype: torch.dtype, device: str,
                   quantize: str | None = None) -> DecoderWeights:
    """Random weights of about the size that keeps activations near 1; seeded.

    With `quantize` in the formats that :meth:`flarecore.Model.load` gives them.
    """
    generator = torch.Generator(device).manual_seed(1)

    def matrix(rows: int, columns: int, is_table: bool = False) -> Part:
        if quantize is not None and columns % 32 == 0:
            name = "Q4_1" if quantize == "q4" and not is_table else "Q8_0"
            return random_quantized(name, rows, columns, device)[0]
        out = torch.empty((rows, columns), dtype=dtype, device=device)
        return out.normal_(0.0, columns**-0.5, generator=generator)

    def norm() -> torch.Tensor:
        return torch.ones(shape.hidden_size, device=device)

    hidden, ffn = shape.hidden_size, shape.intermediate_size
    embedding = matrix(shape.vocab_size, hidden, True)
    layers = tuple(
        LayerWeights(norm(), matrix(shape.qkv_size, hidden), matrix(hidden, shape.query_size),
                     norm(), matrix(2 * ffn, hidden), matrix(hidden, ffn))
        for _ in range(shape.num_layers))
    head = embedding if shape.tied_head else matrix(shape.vocab_size, hidden, True)
    return DecoderWeights(embedding, layers, norm(), head, dtype)


# Value types of GGUF metadata that a small model needs (ggml, docs/gguf.md).
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    kind = _STRING if isinstance(value[0], str) else _UINT32
    items = [_string(v) if kind == _STRING else struct.pack("<I", v) for v in value]
    return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(items)


def _vocabulary(size: int) -> dict[str, Any]:
    """A byte-level vocabulary: the bytes, filled up with pairs of letters; two special tokens."""
    letters = "etaoinshrdlu"
    pairs = [(a, b) for a in letters for b in letters][: size - 258]
    tokens = [*BYTE_ALPHABET, *(a + b for a, b in pairs), "<|endoftext|>", "<|start|>"]
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * (size - 2) + [3, 3],
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in pairs],
        "tokenizer.ggml.bos_token_id": size - 1, "tokenizer.ggml.eos_token_id": size - 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def _tensors(shape: DecoderShape) -> dict[str, Any]:
    rng = np.random.default_rng(2)

    def matrix(rows: int, columns: int, scale: float) -> Any:
        return (rng.standard_normal((rows, columns)) * scale / columns**0.5).astype(np.float32)

    hidden, ffn = shape.hidden_size, shape.intermediate_size
    ones = np.ones(hidden, np.float32)
    tensors = {"token_embd.weight": matrix(shape.vocab_size, hidden, 3.0),
               "output_norm.weight": ones,
               "output.weight": matrix(shape.vocab_size, hidden, 3.0)}
    for layer in range(shape.num_layers):
        parts = {
            "attn_norm": ones, "ffn_norm": ones,
            "attn_q": matrix(shape.query_size, hidden, 2.0),
            "attn_k": matrix(shape.kv_size, hidden, 1.0),
            "attn_v": matrix(shape.kv_size, hidden, 1.0),
            "attn_output": matrix(hidden, shape.query_size, 3.0),
            "ffn_gate": matrix(ffn, hidden, 1.0), "ffn_up": matrix(ffn, hidden, 1.0),
            "ffn_down": matrix(hidden, ffn, 3.0)}
        tensors |= {f"blk.{layer}.{name}.weight": value for name, value in parts.items()}
    return tensors


def write_random_model(path: Path, shape: DecoderShape) -> None:
    """A random model of this shape as a GGUF file, float32, with a tokenizer of its own."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama", "llama.block_count": shape.num_layers,
        "llama.context_length": shape.context_length, "llama.embedding_length": shape.hidden_size,
        "llama.feed_forward_length": shape.intermediate_size,
        "llama.attention.head_count": shape.num_heads,
        "llama.attention.head_count_kv": shape.num_kv_heads,
        "llama.attention.key_length": shape.head_dim,
        "llama.attention.value_length": shape.head_dim,
        "llama.rope.dimension_count": shape.head_dim, "llama.rope.freq_base": 500000.0,
        "llama.attention.layer_norm_rms_epsilon": shape.norm_eps, **_vocabulary(shape.vocab_size)}
    tensors = _tensors(shape)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    data = b""
    for name, value in tensors.items():
        sizes = value.shape[::-1]
        head += _string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, len(data))
        data += value.tobytes()
        data += bytes(-len(data) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
