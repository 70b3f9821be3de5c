"""The forward pass of a decoder on torch tensors: Triton kernels between matrix products.

The residual stream is float32, everything between two products has the weights' dtype, logits are
float32. A layer is nine launches: four products, rotation and KV store, attention, activation, and
twice what was computed added to the stream with the next norm. Two kinds of rows (products.py tells
why): decode rows, whose logits are sampled or scored, and prefill rows, which only leave their keys
and values behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flarecore.gpu.device import load_kernels
from flarecore.gpu.device_ops import BlockCopy, DeviceOps
from flarecore.gpu.kv_cache import BLOCK_TOKENS
from flarecore.gpu.products import Products, padded_rows
from flarecore.gpu.shape import DecoderShape
from flarecore.gpu.weights import DecoderWeights, LayerWeights

__all__ = ["Forward", "KvTensors", "Rows"]


class KvTensors:
    """Keys and values of every layer: (layers, 2, blocks + 1, KV heads, 32, head_dim).

    The block behind the last one, `scratch_block`, belongs to nobody: a row that has halted within
    a run writes there and reads from there.
    """

    def __init__(self, shape: DecoderShape, num_blocks: int, dtype: torch.dtype,
                 device: torch.device, ops: DeviceOps) -> None:
        self.ops = ops
        self.all = torch.zeros(
            (shape.num_layers, 2, num_blocks + 1, shape.num_kv_heads, BLOCK_TOKENS, shape.head_dim),
            dtype=dtype, device=device)
        self.scratch_block = num_blocks
        self.layers = [(layer[0], layer[1]) for layer in self.all]

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Every layer's keys and values, in stream order."""
        self.ops.copy_blocks(self.all, copies)

    def read_blocks(self, blocks: Sequence[int]) -> npt.NDArray[np.uint8]:
        """Bytes of these blocks one after the other, each (layers, 2, KV heads, 32, head_dim)."""
        values = torch.stack([self.all[:, :, block] for block in blocks]).cpu()
        return values.flatten().view(torch.uint8).numpy()

    def write_blocks(self, blocks: Sequence[int], values: npt.NDArray[np.uint8]) -> None:
        """What :meth:`read_blocks` gave, into blocks of the same number."""
        shape = (len(blocks), *self.all[:, :, 0].shape)
        given = torch.from_numpy(np.array(values)).view(self.all.dtype).view(shape)
        for block, value in zip(blocks, given, strict=True):
            self.all[:, :, block].copy_(value)


@dataclass(frozen=True)
class Rows:
    """The rows of one forward pass, in device tensors; rows of one sequence lie together.

    Attributes
    ----------
    token_ids, positions, table_rows
        (num_rows,) int32; position -1 is padding; table_rows are rows of `block_table`.
    block_table
        (num_sequences, width) int32.
    query_begin
        (num_sequences + 1,) int32.
    logit_rows
        (n,) int32: the rows whose logits are wanted, in ascending order; None: all.
    passages
        The kernels' PassageTable, where a sequence reserves positions; `positions` are then places
        in the sequence.
    max_query_rows, max_context
        Most rows of a sequence, and tokens of context to provide for: they fix the grid only.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    table_rows: torch.Tensor
    block_table: torch.Tensor
    query_begin: torch.Tensor
    max_query_rows: int
    max_context: int
    logit_rows: torch.Tensor | None = None
    passages: Any = None

    @property
    def num_rows(self) -> int:
        return self.token_ids.shape[0]


class _Buffers:
    """Activations of up to `rows` rows. What lies behind a pass's rows is old, and no row reads it.
    """

    def __init__(self, shape: DecoderShape, rows: int, dtype: torch.dtype,
                 device: torch.device) -> None:
        def new(columns: int, kind: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros((rows, columns), dtype=kind, device=device)

        self.read = new(shape.hidden_size)  # what of `normed` has logits that somebody wants
        self.residual = new(shape.hidden_size, torch.float32)
        self.normed = new(shape.hidden_size)
        self.qkv = new(shape.qkv_size)
        self.attended = new(shape.query_size)
        self.delta = new(shape.hidden_size)
        self.gate_up = new(2 * shape.intermediate_size)
        self.activated = new(shape.intermediate_size)


class Forward:
    """Runs rows through a decoder. Not thread-safe; everything it launches is in stream order.

    Parameters
    ----------
    shape, weights, kv
        The model and the cache that its rows write and read.
    row_tile
        Rows of one product of decode rows.
    max_decode_rows, max_prefill_rows
        Most rows of one pass of each kind.
    """

    def __init__(self, shape: DecoderShape, weights: DecoderWeights, kv: KvTensors, *,
                 row_tile: int, max_decode_rows: int, max_prefill_rows: int) -> None:
        self.shape = shape
        self.weights = weights
        self.kv = kv
        self.row_tile = row_tile
        self.max_decode_rows = max_decode_rows
        self._kernels: Any = load_kernels()
        self._eps = shape.norm_eps or 1e-30  # the kernels want one above 0
        device, dtype = weights.embedding.device, weights.dtype
        self.device = device
        self._decode_tile_rows = -(-max_decode_rows // row_tile) * row_tile
        rows = max(self._decode_tile_rows, padded_rows(max_prefill_rows))
        self._buffers = _Buffers(shape, rows, dtype, device)
        self._logits = torch.zeros((self._decode_tile_rows, shape.vocab_size), dtype=torch.float32,
                                   device=device)
        self.products = Products(weights.matrices(), dtype, device, row_tile, max_decode_rows)
        self._angles = [self._angle_tables(frequencies) for frequencies in shape.rotaries]
        self._attention_workspaces: dict[int, Any] = {}

    def _angle_tables(self, frequencies: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """(context_length, head_dim / 2) float32 cosines and sines, as the CPU engine has them."""
        positions = np.arange(self.shape.context_length, dtype=np.float32)
        angles = positions[:, None] * frequencies[None, :]
        return (torch.from_numpy(np.cos(angles)).to(self.device),
                torch.from_numpy(np.sin(angles)).to(self.device))

    def context_bucket(self, num_tokens: int) -> int:
        """Tokens of context to provide for: one of a few values, so that graphs serve many."""
        bucket = 256
        while bucket < num_tokens:
            bucket *= 4
        return min(bucket, -(-self.shape.context_length // 256) * 256)

    def attention_workspace(self, max_context: int, passages: Any = None) -> Any:
        """For decode rows over one of the context buckets. Never freed: graphs refer to it."""
        shape = self.shape
        if passages is not None:
            max_context += self._kernels.attention.passage_context(
                passages.blocks.shape[1], shape.head_dim)
        workspace = self._attention_workspaces.get(max_context)
        if workspace is None:
            workspace = self._kernels.attention.DecodeWorkspace.allocate(
                self.max_decode_rows, shape.num_heads, shape.num_kv_heads, shape.head_dim,
                max_context, self.device)
            self._attention_workspaces[max_context] = workspace
        return workspace

    def decode(self, rows: Rows, *, with_logits: bool = True) -> torch.Tensor:
        """(n, vocab) float32 logits of the rows that want them, valid until the next pass."""
        self._layers(rows, is_prefill=False)
        if not with_logits:
            return self._logits[:0]
        hidden, num_rows = self._buffers.normed, rows.num_rows
        if rows.logit_rows is not None:
            # The product with the vocabulary is the largest: no tile of it for rows nobody reads.
            num_rows = rows.logit_rows.shape[0]
            hidden = self._buffers.read
            self.kv.ops.gather_rows(self._buffers.normed[: rows.num_rows], rows.logit_rows,
                                    hidden[:num_rows])
        self.products.decode(hidden, self.weights.head, self._logits, num_rows)
        return self._logits[:num_rows]

    def logits(self, num_rows: int) -> torch.Tensor:
        """Where :meth:`decode` leaves so many: the same memory in every pass."""
        return self._logits[:num_rows]

    def prefill(self, rows: Rows) -> None:
        """Leaves the keys and values of prefill rows of one sequence in the cache."""
        self._layers(rows, is_prefill=True)

    def _embed(self, rows: Rows) -> None:
        """Token embeddings into the residual stream, and the first norm of them."""
        n, embedding, kernels = rows.num_rows, self.weights.embedding, self._kernels
        residual, normed = self._buffers.residual[:n], self._buffers.normed[:n]
        norm, scale = self.weights.layers[0].attention_norm, self.shape.embedding_scale
        if isinstance(embedding, torch.Tensor):
            kernels.norm.embed_norm(rows.token_ids, embedding, norm, self._eps, scale=scale,
                                    residual=residual, out=normed)
            return
        kernels.quantized.gather_rows(embedding, rows.token_ids, residual)
        if scale != 1.0:
            residual.mul_(scale)
        kernels.norm.rms_norm(residual, norm, self._eps, out=normed)

    def _layers(self, rows: Rows, *, is_prefill: bool) -> None:
        shape, weights, buffers = self.shape, self.weights, self._buffers
        n = rows.num_rows
        multiply = self.products.prefill if is_prefill else self.products.decode
        self._embed(rows)
        for index, layer in enumerate(weights.layers):
            is_last = index + 1 == shape.num_layers
            multiply(buffers.normed, layer.qkv, buffers.qkv, n)
            q = self._rotate_and_store(index, layer, rows)
            if is_last and is_prefill:
                return  # all that prefill is for is in the cache now
            self._attend(index, q, rows, is_prefill)
            multiply(buffers.attended, layer.output, buffers.delta, n)
            if layer.output_bias is not None:
                buffers.delta[:n].add_(layer.output_bias)
            self._add_and_norm(n, layer.attention_post_norm, layer.ffn_norm)
            multiply(buffers.normed, layer.gate_up, buffers.gate_up, n)
            ffn = shape.intermediate_size
            self._kernels.swiglu.gated_activation(
                buffers.gate_up[:n, :ffn], buffers.gate_up[:n, ffn:],
                activation="gelu_tanh" if shape.is_gelu else "silu", out=buffers.activated[:n])
            multiply(buffers.activated, layer.down, buffers.delta, n)
            self._add_and_norm(n, layer.ffn_post_norm,
                               weights.output_norm if is_last
                               else weights.layers[index + 1].attention_norm)

    def _rotate_and_store(self, index: int, layer: LayerWeights, rows: Rows) -> torch.Tensor:
        """Keys and values into the cache; the rotated queries."""
        shape, n = self.shape, rows.num_rows
        heads = self._buffers.qkv[:n].view(n, -1, shape.head_dim)
        q = heads[:, : shape.num_heads]
        k, v = heads[:, shape.num_heads :].chunk(2, dim=1)
        rotated: torch.Tensor = self._kernels.rope.rope_store(
            q, k, v, *self._angles[shape.layers[index].rotary], rows.positions, rows.table_rows,
            rows.block_table, *self.kv.layers[index], interleaved=shape.rotates_neighbours,
            q_norm=layer.q_norm, k_norm=layer.k_norm, bias=layer.qkv_bias, eps=self._eps,
            layout=None if rows.passages is None else rows.passages.layout)
        return rotated

    def _attend(self, index: int, q: torch.Tensor, rows: Rows, is_prefill: bool) -> None:
        shape, attention = self.shape, self._kernels.attention
        inputs = (q, *self.kv.layers[index], rows.block_table, rows.positions, rows.query_begin)
        common = {"scale": shape.attention_scale, "max_query_rows": rows.max_query_rows,
                  "window": shape.layers[index].window, "passages": rows.passages,
                  "out": self._buffers.attended[: rows.num_rows].view(q.shape)}
        if is_prefill:
            attention.prefill_attention(*inputs, **common)
        else:
            workspace = self.attention_workspace(rows.max_context, rows.passages)
            attention.decode_attention(*inputs, workspace, max_context=rows.max_context, **common)

    def _add_and_norm(self, n: int, post_norm: torch.Tensor | None, norm: torch.Tensor) -> None:
        """residual += delta (normed first where the architecture says so); normed = norm of it."""
        buffers = self._buffers
        self._kernels.norm.rms_norm(
            buffers.delta[:n], norm, self._eps, residual=buffers.residual[:n],
            post_weight=post_norm, out=buffers.normed[:n])
