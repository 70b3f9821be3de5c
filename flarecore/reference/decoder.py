"""The reference forward pass of Llama, Qwen 2 and Qwen 3 in numpy: no cache, one matrix at a time.

Architecture: Touvron et al. 2023, arXiv 2302.13971 (pre-norm RMSNorm, rotary embeddings, SwiGLU),
with grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245). Qwen 2 (arXiv 2407.10671) adds
biases to queries, keys and values; Qwen 3 (arXiv 2505.09388) has none and normalises each query and
key head instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore.errors import ConfigError
from flarecore.reference.gguf_weights import LlamaWeights
from flarecore.reference.quantized import dequantize_rows, quantize_rows, round_to_words

__all__ = ["ReferenceDecoder"]

Array = npt.NDArray[Any]


def _rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight)


def _rotate(x: Array, angles: Array, neighbours: bool) -> Array:
    """Rotate the pairs (2i, 2i + 1) of each head, or (i, i + d / 2).

    x (T, heads, d), angles (T, d / 2).
    """
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    half = x.shape[-1] // 2
    first = slice(0, None, 2) if neighbours else slice(half)
    second = slice(1, None, 2) if neighbours else slice(half, None)
    rotated = np.empty_like(x)
    rotated[..., first] = x[..., first] * cos - x[..., second] * sin
    rotated[..., second] = x[..., first] * sin + x[..., second] * cos
    return rotated


def _silu(x: Array) -> Array:
    return np.asarray(x / (1.0 + np.exp(-x)))


class ReferenceDecoder:
    """Logits of a Llama, Qwen 2 or Qwen 3 model, recomputed from the first token at every call.

    Parameters
    ----------
    weights
        Dequantised weights.
    dtype
        ``"float64"`` (the yardstick) or ``"float32"``.
    compute
        ``"int8"`` rounds what ``compute="int8"`` of the engine rounds: the inputs of every product
        with a quantised matrix to 8 bits, keys and values to `kv_format`.
    kv_format
        ``"float16"``, or ``"int16"`` of the engine's option, where queries are rounded as well.
    """

    def __init__(
        self, weights: LlamaWeights, dtype: str = "float64", compute: str = "float32",
        kv_format: str = "float16",
    ) -> None:
        if dtype not in ("float32", "float64"):
            raise ConfigError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
        if compute not in ("float32", "int8"):
            raise ConfigError(f"compute must be 'float32' or 'int8', got {compute!r}")
        if kv_format not in ("float16", "int16"):
            raise ConfigError(f"kv_format must be 'float16' or 'int16', got {kv_format!r}")
        self.weights = weights
        self.shape = weights.shape
        self._dtype = np.dtype(dtype)
        self._is_int8 = compute == "int8"
        self._in_words = kv_format == "int16"

    def logits(
        self, token_ids: Sequence[int], *, last: int | None = None,
        positions: Sequence[int] | None = None, visible: Array | None = None,
    ) -> Array:
        """Run the model over a sequence.

        Parameters
        ----------
        token_ids
            (T,) At least one token.
        last
            Give the logits of only the last so many tokens; all by default.
        positions
            (T,) Rotary positions; 0, 1, … by default.
        visible
            (T, T) bool, what each token (row) sees; itself and all before it by default.

        Returns
        -------
        ndarray
            (T, V), or (last, V), in the decoder's dtype.
        """
        shape, weights = self.shape, self.weights
        if not token_ids:
            raise ConfigError("a forward pass needs at least one token, got none")
        x = weights.tensors["token_embd.weight"][list(token_ids)].astype(self._dtype)
        num_tokens = len(token_ids)
        places = np.asarray(range(num_tokens) if positions is None else positions, np.float64)
        if visible is None:
            visible = np.tril(np.ones((num_tokens, num_tokens), dtype=bool))
        angles = (places[:, None] * shape.inverse_frequencies[None, :]).astype(self._dtype)
        for layer in range(shape.num_layers):
            x = x + self._attention(layer, self._norm(layer, "attn_norm", x), angles, visible)
            x = x + self._feed_forward(layer, self._norm(layer, "ffn_norm", x))
        x = x[-last:] if last is not None else x
        x = _rms_norm(x, self._cast(weights.tensors["output_norm.weight"]), shape.rms_eps)
        return self._product(x, weights.head, weights.is_head_quantized)

    def open(self, token_ids: Sequence[int]) -> Callable[[int | None], Array]:
        """Step through a sequence: see `flarecore.reference.token_source`."""
        ids = list(token_ids)

        def step(token_id: int | None) -> Array:
            if token_id is not None:
                ids.append(token_id)
            return np.asarray(self.logits(ids, last=1)[0])

        return step

    def _cast(self, tensor: Array) -> Array:
        return tensor.astype(self._dtype, copy=False)

    def _linear(self, layer: int, name: str, x: Array) -> Array:
        is_quantized = f"blk.{layer}.{name}.weight" in self.weights.quantized
        out = self._product(x, self.weights.layer(layer, name), is_quantized)
        bias = self.weights.bias(layer, name)
        return out if bias is None else np.asarray(out + self._cast(bias))

    def _product(self, x: Array, weight: Array, is_quantized: bool) -> Array:
        if self._is_int8 and is_quantized:
            x = dequantize_rows(*quantize_rows(x.astype(np.float32))).astype(self._dtype)
        return np.asarray(x @ self._cast(weight).T)

    def _norm(self, layer: int, name: str, x: Array) -> Array:
        return _rms_norm(x, self._cast(self.weights.layer(layer, name)), self.shape.rms_eps)

    def _attention(self, layer: int, x: Array, angles: Array, visible: Array) -> Array:
        """Grouped-query attention. x (T, hidden), visible (T, T) -> (T, hidden)."""
        shape, num_tokens = self.shape, len(x)
        q = self._linear(layer, "attn_q", x).reshape(num_tokens, shape.num_heads, shape.head_dim)
        k = self._linear(layer, "attn_k", x).reshape(num_tokens, shape.num_kv_heads, shape.head_dim)
        v = self._linear(layer, "attn_v", x).reshape(num_tokens, shape.num_kv_heads, shape.head_dim)
        if shape.norms_heads:
            q, k = self._norm(layer, "attn_q_norm", q), self._norm(layer, "attn_k_norm", k)
        q, k = (_rotate(x, angles, shape.rotates_neighbours) for x in (q, k))
        if self._is_int8 and self._in_words:
            q, k = (self._cast(round_to_words(x, by_norm=True)) for x in (q, k))
            v = self._cast(round_to_words(v, by_norm=False))
        elif self._is_int8:
            k, v = (kv.astype(np.float16).astype(self._dtype) for kv in (k, v))
        heads = np.empty_like(q)
        for head in range(shape.num_heads):
            kv_head = head // (shape.num_heads // shape.num_kv_heads)
            scores = q[:, head] @ k[:, kv_head].T / np.sqrt(self._dtype.type(shape.head_dim))
            scores = np.where(visible, scores, -np.inf)
            probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
            probs = probs / probs.sum(axis=-1, keepdims=True)
            heads[:, head] = probs @ v[:, kv_head]
        return self._linear(layer, "attn_output", heads.reshape(num_tokens, -1))

    def _feed_forward(self, layer: int, x: Array) -> Array:
        """SwiGLU: down(silu(gate(x)) * up(x)). x (T, hidden) -> (T, hidden)."""
        gate = _silu(self._linear(layer, "ffn_gate", x))
        return self._linear(layer, "ffn_down", gate * self._linear(layer, "ffn_up", x))
