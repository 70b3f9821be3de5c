"""What the forward pass on torch tensors must know of a decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore import _C
from flarecore.errors import UnsupportedError

__all__ = ["DecoderShape", "LayerShape"]

_MAX_HEAD_DIM = 256  # of the attention kernels
_MAX_GROUP = 16  # query heads of one KV head
_MAX_HIDDEN = 16384  # of the norm kernel
_MAX_VOCAB = 1 << 18  # of the sampler kernel


@dataclass(frozen=True)
class LayerShape:
    """`window`: a token sees the last so many positions (0: all); `rotary`: index of its angles."""

    window: int
    rotary: int


@dataclass(frozen=True)
class DecoderShape:
    """Sizes and constants of a decoder, as its file has them.

    Attributes
    ----------
    rotaries
        (rotary_dim / 2,) float32 radians per position of each pair; one array per kind of layer.
    rotates_neighbours
        Pairs are (2 i, 2 i + 1) as in Llama's GGUF files, else (i, i + head_dim / 2).
    has_qkv_bias, has_output_bias
        Queries, keys and values are products plus a bias (Qwen 2); attention's output is one too.
    norms_heads, norms_outputs
        RMSNorm over each query and key head (Qwen 3, Gemma); RMSNorm of what a block adds to the
        residual (Gemma).
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    vocab_size: int
    norm_eps: float
    attention_scale: float
    embedding_scale: float
    is_gelu: bool
    tied_head: bool
    rotates_neighbours: bool
    has_qkv_bias: bool
    has_output_bias: bool
    norms_heads: bool
    norms_outputs: bool
    rotaries: tuple[npt.NDArray[np.float32], ...]
    layers: tuple[LayerShape, ...]

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        return self.query_size + 2 * self.kv_size

    @classmethod
    def of_model(cls, native: _C.Model) -> DecoderShape:
        """Of an opened model file.

        Raises
        ------
        UnsupportedError
            The GPU kernels do not have what it needs.
        """
        config: dict[str, Any] = native.config()
        details: dict[str, Any] = _C.model_details(native)
        if details["rotary_dim"] != config["head_dim"]:
            raise UnsupportedError(
                f"the GPU engine rotates whole heads of {config['head_dim']} values, this model "
                f"only {details['rotary_dim']} of them; load it with device=\"cpu\"")
        names = ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads",
                 "head_dim", "context_length", "vocab_size")
        flags = ("norm_eps", "attention_scale", "embedding_scale", "is_gelu", "tied_head",
                 "rotates_neighbours", "has_qkv_bias", "has_output_bias", "norms_heads",
                 "norms_outputs")
        shape = cls(
            **{name: config[name] for name in names}, **{name: details[name] for name in flags},
            rotaries=tuple(details["rotaries"]),
            layers=tuple(LayerShape(*layer) for layer in details["layers"]))
        shape.check_limits()
        return shape

    def check_limits(self) -> None:
        """Raises UnsupportedError if a size is beyond the kernels."""
        for what, value, limit in (
            ("a head size", self.head_dim, _MAX_HEAD_DIM),
            ("a number of query heads per KV head", self.num_heads // self.num_kv_heads,
             _MAX_GROUP),
            ("a hidden size", self.hidden_size, _MAX_HIDDEN),
            ("a vocabulary", self.vocab_size, _MAX_VOCAB),
        ):
            if value > limit:
                raise UnsupportedError(f"the GPU kernels take {what} up to {limit}, this model has "
                                       f"{value}; load it with device=\"cpu\"")
