"""Tiny random Gemma 3 files, and the real model in both implementations."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from helpers import add_shape, model_folder, open_engine, transformers_decoder

from flarecore.model_files import find_model
from flarecore.reference.sampler import confidences


@dataclass(frozen=True)
class TinyGemma:
    """A random Gemma 3 model: sizes, and how its file stores it."""

    num_layers: int = 3
    num_heads: int = 4
    num_kv_heads: int = 1
    head_dim: int = 32
    hidden_size: int = 64
    ffn_size: int = 96
    vocab_size: int = 283
    context_length: int = 512
    window: int = 24
    window_pattern: int | None = 2  # None: not in the file, which means 6
    linear_factor: float | None = None
    local_theta: float | None = None
    tied: bool = False  # a random tied model says the last token again
    # One type, or those of embedding, attention and FFN.
    tensor_types: tuple[str, str, str] = ("F32", "F32", "F32")
    seed: int = 1


def _tiny_tensors(spec: TinyGemma) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(spec.seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * scale / columns**0.5).astype(np.float32)

    def norm(size: int, scale: float = 1.0) -> np.ndarray:
        return (rng.uniform(0.7, 1.3, size) * scale).astype(np.float32)

    hidden, query_size = spec.hidden_size, spec.num_heads * spec.head_dim
    kv_size = spec.num_kv_heads * spec.head_dim
    # Embeddings are multiplied by sqrt(hidden): these reach a size of about 1.
    tensors = {"token_embd.weight": matrix(spec.vocab_size, hidden)}
    for layer in range(spec.num_layers):
        tensors |= {
            f"blk.{layer}.{name}.weight": value
            for name, value in (
                ("attn_norm", norm(hidden)),
                ("attn_q", matrix(query_size, hidden)),
                ("attn_k", matrix(kv_size, hidden)),
                ("attn_v", matrix(kv_size, hidden)),
                # Normed queries and keys: attention that looks at something, not at everything.
                ("attn_q_norm", norm(spec.head_dim, 2.0)),
                ("attn_k_norm", norm(spec.head_dim)),
                ("attn_output", matrix(hidden, query_size)),
                ("post_attention_norm", norm(hidden)),
                ("ffn_norm", norm(hidden)),
                ("ffn_gate", matrix(spec.ffn_size, hidden)),
                ("ffn_up", matrix(spec.ffn_size, hidden)),
                ("ffn_down", matrix(hidden, spec.ffn_size)),
                ("post_ffw_norm", norm(hidden)),
            )
        }
    tensors["output_norm.weight"] = norm(hidden, 4.0)
    if not spec.tied:
        tensors["output.weight"] = matrix(spec.vocab_size, hidden, 1.5)
    return tensors


def _type_of(name: str, spec: TinyGemma) -> Any:
    embedding, attention, ffn = spec.tensor_types
    kind = attention if "attn" in name else ffn if "ffn" in name else embedding
    return gguf.GGMLQuantizationType[kind]


def _add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Four tokens with fixed meanings, all bytes, then letters."""
    names = ["<pad>", "<eos>", "<bos>", "<unk>"]
    letters = [chr(0x61 + i) if i < 26 else chr(0x4E00 + i) for i in range(size - 260)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*names, *(f"<0x{b:02X}>" for b in range(256)), *letters])
    writer.add_token_scores([0.0] * 260 + [-float(i) for i in range(len(letters))])
    writer.add_token_types([3, 3, 3, 2] + [6] * 256 + [1] * len(letters))
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_space_prefix(False)


def write_tiny_gemma(path: Path, spec: TinyGemma) -> None:
    """Write the model as a GGUF file; vectors in float32."""
    writer = gguf.GGUFWriter(str(path), "gemma3")
    add_shape(writer, spec)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_sliding_window(spec.window)
    if spec.window_pattern is not None:
        writer.add_uint32("gemma3.attention.sliding_window_pattern", spec.window_pattern)
    if spec.local_theta is not None:
        writer.add_float32("gemma3.rope.freq_base_swa", spec.local_theta)
    if spec.linear_factor is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(spec.linear_factor)
    _add_vocabulary(writer, spec.vocab_size)
    for name, value in _tiny_tensors(spec).items():
        if value.ndim == 1:
            writer.add_tensor(name, value)
        else:
            kind = _type_of(name, spec)
            writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@functools.cache
def tiny_gemma_path(spec: TinyGemma = TinyGemma()) -> Path:
    """A file of this model, written once in a test run."""
    path = model_folder() / f"gemma-{tiny_gemma_path.cache_info().misses}.gguf"
    write_tiny_gemma(path, spec)
    return path


@functools.cache
def gemma_engine(compute: str) -> Any:
    """Gemma-3-270M, loaded once in a test run."""
    return open_engine(find_model("gemma3-270m"), compute=compute, threads=2)


@functools.cache
def gemma_transformers() -> Any:
    """Gemma-3-270M in transformers with exactly the file's weights."""
    from flarecore.reference.gemma_weights import load_gemma_gguf

    return transformers_decoder(load_gemma_gguf(find_model("gemma3-270m")))


def expected_greedy(
    decoder: Any, prompt: list[int], chosen: list[int]
) -> tuple[list[int], np.ndarray]:
    """What greedy decoding gives after each prefix of the chosen tokens, and their probabilities.

    If the tokens equal `chosen`, greedy decoding by the same decoder gives them too. One forward
    pass instead of one per token.
    """
    logits = decoder.logits([*prompt, *chosen], last=len(chosen) + 1)[:-1]
    probs = confidences(logits)
    return logits.argmax(axis=-1).tolist(), probs[np.arange(len(chosen)), chosen]
