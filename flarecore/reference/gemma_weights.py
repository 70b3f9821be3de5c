"""A Gemma 3 GGUF file as plain float32 arrays, read independently of the native reader.

Architecture: Gemma 3 technical report, arXiv 2503.19786.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore.errors import UnsupportedError
from flarecore.reference.gguf_reader import read_gguf
from flarecore.reference.gguf_weights import LlamaShape, Weights

__all__ = ["GemmaShape", "GemmaWeights", "load_gemma_gguf"]


@dataclass(frozen=True)
class GemmaShape(LlamaShape):
    """Sizes and constants of a Gemma 3 model, in addition to a Llama's.

    Attributes
    ----------
    inverse_frequencies
        Of the layers that see all tokens.
    local_inverse_frequencies
        (head_dim / 2,) float64, of the layers with a window.
    window
        Tokens that a layer with a window sees, the current one among them.
    window_pattern
        Every layer has a window but each ``window_pattern``-th.
    """

    local_inverse_frequencies: npt.NDArray[np.float64]
    window: int
    window_pattern: int

    def has_window(self, layer: int) -> bool:
        """Whether a layer sees the last `window` tokens only."""
        return (layer + 1) % self.window_pattern != 0


@dataclass(frozen=True)
class GemmaWeights(Weights):
    """Shape and dequantised tensors of a Gemma 3 model.

    Rows of ``attn_q`` and ``attn_k`` are ordered for rotation of pairs ``(i, i + head_dim / 2)``,
    and norm weights multiply as they stand: the 1 that Gemma adds to them is in the file.

    Attributes
    ----------
    shape
        Sizes and constants.
    """

    shape: GemmaShape


def _frequencies(theta: float, head_dim: int) -> npt.NDArray[np.float64]:
    return np.asarray(theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim))


def _read_shape(metadata: dict[str, Any], vocab_size: int) -> GemmaShape:
    architecture = metadata.get("general.architecture")
    if architecture != "gemma3":
        raise UnsupportedError(f"this reads the gemma3 architecture, got {architecture!r}")

    def get(key: str, fallback: Any = None) -> Any:
        return metadata.get(f"gemma3.{key}", fallback)

    head_dim = int(get("attention.key_length"))
    frequencies = _frequencies(float(get("rope.freq_base", 1e6)), head_dim)
    kind = get("rope.scaling.type", "none")
    if kind == "linear":
        frequencies = frequencies / float(get("rope.scaling.factor"))
    elif kind != "none":
        raise UnsupportedError(f"the reference knows rope scaling none and linear, got {kind!r}")
    num_heads = int(get("attention.head_count"))
    return GemmaShape(
        num_layers=int(get("block_count")),
        hidden_size=int(get("embedding_length")),
        ffn_size=int(get("feed_forward_length")),
        num_heads=num_heads,
        num_kv_heads=int(get("attention.head_count_kv", num_heads)),
        head_dim=head_dim,
        vocab_size=vocab_size,
        context_length=int(get("context_length")),
        rms_eps=float(get("attention.layer_norm_rms_epsilon")),
        inverse_frequencies=frequencies,
        architecture=architecture,
        local_inverse_frequencies=_frequencies(float(get("rope.freq_base_swa", 1e4)), head_dim),
        window=int(get("attention.sliding_window")),
        window_pattern=int(get("attention.sliding_window_pattern", 6)),
    )


def load_gemma_gguf(path: str | Path) -> GemmaWeights:
    """Read and dequantise a whole file.

    Parameters
    ----------
    path
        A GGUF file of the gemma3 architecture.

    Returns
    -------
    GemmaWeights
        Every tensor as float32, exactly the values of the file.

    Raises
    ------
    UnsupportedError
        If ``gguf`` is not installed, or the file needs what the reference does not do.
    ModelFileError
        If it is no GGUF file.
    """
    metadata, tensors, quantized = read_gguf(path)
    shape = _read_shape(metadata, len(tensors["token_embd.weight"]))
    return GemmaWeights(tensors, quantized, shape)
