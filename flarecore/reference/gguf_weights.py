"""A GGUF file of Llama or its kin as float32 arrays, read independently of the native reader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore.errors import UnsupportedError
from flarecore.reference.gguf_reader import read_gguf

__all__ = ["ARCHITECTURES", "LlamaShape", "LlamaWeights", "Weights", "load_llama_gguf"]

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Llama and its kin: what `load_llama_gguf` reads."""

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LlamaShape:
    """Sizes and constants of a Llama, Qwen 2 or Qwen 3 model.

    Attributes
    ----------
    num_layers, hidden_size, ffn_size, num_heads, num_kv_heads, head_dim, vocab_size
        Counts. Query head h reads KV head ``h // (num_heads // num_kv_heads)``.
    context_length
        Positions the model was trained for.
    rms_eps
        Added to the mean square in RMSNorm.
    inverse_frequencies
        (head_dim / 2,) float64 rotation of each pair in radians per position, with every kind of
        rope scaling already applied.
    architecture
        As the file has it.
    """

    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    rms_eps: float
    inverse_frequencies: npt.NDArray[np.float64]
    architecture: str

    @property
    def rotates_neighbours(self) -> bool:
        """Whether rotation takes the pairs ``(2i, 2i + 1)``, else ``(i, i + head_dim / 2)``.

        Rows of ``attn_q`` and ``attn_k`` are reordered for it in every Llama GGUF.
        """
        return self.architecture == "llama"

    @property
    def norms_heads(self) -> bool:
        """Whether each query and key head is RMS-normalised before its rotation (QK-norm)."""
        return self.architecture in ("qwen3", "gemma3")


@dataclass(frozen=True)
class Weights:
    """Dequantised tensors.

    Attributes
    ----------
    tensors
        GGUF name -> float32 array, matrices as (outputs, inputs).
    quantized
        Names of the tensors that the file holds in a quantised type.
    """

    tensors: dict[str, Float32]
    quantized: frozenset[str]

    def layer(self, index: int, name: str) -> Float32:
        """Tensor ``blk.<index>.<name>.weight``."""
        return self.tensors[f"blk.{index}.{name}.weight"]

    def bias(self, index: int, name: str) -> Float32 | None:
        """Tensor ``blk.<index>.<name>.bias``; None where the file has none."""
        return self.tensors.get(f"blk.{index}.{name}.bias")

    @property
    def head(self) -> Float32:
        """(vocab, hidden) Output head; the embedding where the file has none (tied)."""
        return self.tensors[self._head_name]

    @property
    def is_head_quantized(self) -> bool:
        """Whether the file holds the output head in a quantised type."""
        return self._head_name in self.quantized

    @property
    def _head_name(self) -> str:
        return "output.weight" if "output.weight" in self.tensors else "token_embd.weight"


@dataclass(frozen=True)
class LlamaWeights(Weights):
    """Shape and dequantised tensors of a Llama, Qwen 2 or Qwen 3 model.

    Attributes
    ----------
    shape
        Sizes and constants.
    """

    shape: LlamaShape


def _inverse_frequencies(
    metadata: dict[str, Any], prefix: str, head_dim: int, factors: Float32 | None
) -> npt.NDArray[np.float64]:
    """(head_dim / 2,) theta^(-2i/d), divided by the file's per-pair factors and linear factor."""
    theta = float(metadata.get(f"{prefix}rope.freq_base", 10000.0))
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    kind = metadata.get(f"{prefix}rope.scaling.type", "none")
    if kind == "linear":
        frequencies = frequencies / float(metadata[f"{prefix}rope.scaling.factor"])
    elif kind != "none":
        raise UnsupportedError(f"the reference knows rope scaling none and linear, got {kind!r}")
    return frequencies


def _read_shape(metadata: dict[str, Any], tensors: dict[str, Float32]) -> LlamaShape:
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"the reference decoder reads the architectures {', '.join(ARCHITECTURES)}, got "
            f"{architecture!r}"
        )
    prefix = f"{architecture}."
    hidden_size = int(metadata[f"{prefix}embedding_length"])
    num_heads = int(metadata[f"{prefix}attention.head_count"])
    head_dim = int(metadata.get(f"{prefix}attention.key_length", hidden_size // num_heads))
    num_rotated = int(metadata.get(f"{prefix}rope.dimension_count", head_dim))
    if num_rotated != head_dim:
        raise UnsupportedError(
            f"the reference rotates whole heads of {head_dim}, got "
            f"{prefix}rope.dimension_count = {num_rotated}"
        )
    return LlamaShape(
        num_layers=int(metadata[f"{prefix}block_count"]),
        hidden_size=hidden_size,
        ffn_size=int(metadata[f"{prefix}feed_forward_length"]),
        num_heads=num_heads,
        num_kv_heads=int(metadata.get(f"{prefix}attention.head_count_kv", num_heads)),
        head_dim=head_dim,
        vocab_size=tensors["token_embd.weight"].shape[0],
        context_length=int(metadata[f"{prefix}context_length"]),
        rms_eps=float(metadata[f"{prefix}attention.layer_norm_rms_epsilon"]),
        inverse_frequencies=_inverse_frequencies(
            metadata, prefix, head_dim, tensors.get("rope_freqs.weight")
        ),
        architecture=architecture,
    )


def load_llama_gguf(path: str | Path) -> LlamaWeights:
    """Read and dequantise a whole file.

    Parameters
    ----------
    path
        A GGUF file of one of `ARCHITECTURES`.

    Returns
    -------
    LlamaWeights
        Every tensor as float32, exactly the values of the file.

    Raises
    ------
    UnsupportedError
        If ``gguf`` is not installed, or the file needs what the reference does not do.
    ModelFileError
        If it is no GGUF file.
    """
    metadata, tensors, quantized = read_gguf(path)
    return LlamaWeights(tensors, quantized, _read_shape(metadata, tensors))
