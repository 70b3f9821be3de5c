"""Weights of a decoder in device memory.

Matrices that read the same input lie in one matrix (queries, keys and values; gate and up), so that
one product serves them all; where a file has them in different types, one product for each run of
equal ones. A matrix that the model holds quantised stays so (`GpuOptions.weights`); everything else
becomes a tensor of the compute type. Both come from the native model, by GGUF names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from flarecore import _C
from flarecore.errors import ModelFileError, UnsupportedError
from flarecore.gpu.matrices import Groups, Matrix, Part, quantized_matrix, stack
from flarecore.gpu.shape import DecoderShape

__all__ = ["DTYPES", "DecoderWeights", "LayerWeights", "ModelSource", "TensorSource",
           "load_weights"]

# Names that `Engine(compute=...)` takes on a GPU.
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class TensorSource(Protocol):
    """Where weights come from."""

    def names(self) -> set[str]:
        """Every tensor, by its GGUF name."""
        ...

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """The values, matrices as (outputs, inputs). ModelFileError if there is no such tensor."""
        ...

    def groups(self, name: str) -> Groups | None:
        """The stored numbers of a quantised matrix; None if it is none."""
        ...


class ModelSource:
    """Tensors of an opened model, quantised at load if it was asked to."""

    def __init__(self, native: _C.Model) -> None:
        self._native = native

    def names(self) -> set[str]:
        return set(self._native.tensor_names())

    def read(self, name: str) -> npt.NDArray[np.float32]:
        return self._native.tensor_values(name)

    def groups(self, name: str) -> Groups | None:
        return self._native.tensor_groups(name)


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Norm weights and biases are float32 vectors, matrices (outputs, inputs).

    ``qkv`` has the rows of queries, then keys, then values; ``gate_up`` those of gate, then up.
    ``qkv_bias`` is (heads, head_dim), the heads in the order of ``qkv``.
    """

    attention_norm: torch.Tensor
    qkv: Matrix
    output: Matrix
    ffn_norm: torch.Tensor
    gate_up: Matrix
    down: Matrix
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    attention_post_norm: torch.Tensor | None = None
    ffn_post_norm: torch.Tensor | None = None
    qkv_bias: torch.Tensor | None = None
    output_bias: torch.Tensor | None = None

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return self.qkv, self.output, self.gate_up, self.down


@dataclass(frozen=True)
class DecoderWeights:
    """All weights; ``head`` is ``embedding`` itself where they are tied. Both (vocab, hidden).

    `dtype` is that of activations, and of matrices that are tensors.
    """

    embedding: Part
    layers: tuple[LayerWeights, ...]
    output_norm: torch.Tensor
    head: Part
    dtype: torch.dtype

    def matrices(self) -> Iterator[Matrix]:
        """All that rows are multiplied with."""
        for layer in self.layers:
            yield from layer.matrices
        yield self.head

    @property
    def size_bytes(self) -> int:
        """Bytes of all matrices and vectors."""
        found: dict[int, Matrix] = {
            id(m): m for m in (self.embedding, self.head, self.output_norm)}
        for layer in self.layers:
            found |= {id(m): m for m in vars(layer).values() if m is not None}
        return sum(m.nbytes for m in found.values())


@dataclass
class _Loader:
    """Takes tensors by name, checks their shape and remembers what was taken."""

    source: TensorSource
    dtype: torch.dtype
    device: torch.device
    keeps_quantized: bool
    taken: set[str] = field(default_factory=set)

    def _check(self, name: str, found: tuple[int, ...], shape: tuple[int, ...]) -> None:
        if found != shape:
            raise ModelFileError(f"tensor {name} has the shape {found}, expected {shape}")
        self.taken.add(name)

    def _read(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        values = self.source.read(name)
        self._check(name, values.shape, shape)
        return values

    def _dense(self, names: Sequence[tuple[str, int]], columns: int) -> torch.Tensor:
        """Values of matrices with so many rows, one below the other."""
        rows = sum(num_rows for _, num_rows in names)
        out = torch.empty((rows, columns), dtype=self.dtype, device=self.device)
        begin = 0
        for name, num_rows in names:
            values = torch.from_numpy(self._read(name, (num_rows, columns)))
            if self.dtype == torch.float16:  # as the CPU: what overflows becomes the largest value
                values = values.clamp(-65504.0, 65504.0)
            out[begin : begin + num_rows].copy_(values)
            begin += num_rows
        return out

    def _quantized(self, name: str, num_rows: int, columns: int) -> Groups | None:
        groups = self.source.groups(name) if self.keeps_quantized else None
        if groups is not None:
            self._check(name, groups[1].shape, (num_rows, columns))
        return groups

    def parts(self, names: Sequence[str], rows: Sequence[int], columns: int) -> list[Part]:
        """Matrices of so many rows each; runs of one type together, one below the other."""
        parts: list[Part] = []
        loaded = [(name, num_rows, self._quantized(name, num_rows, columns))
                  for name, num_rows in zip(names, rows, strict=True)]
        for kind, run in itertools.groupby(loaded, lambda item: item[2] and item[2][0]):
            if kind is None:
                parts.append(self._dense([(name, n) for name, n, _ in run], columns))
            else:
                parts.append(quantized_matrix([g for _, _, g in run if g], self.device))
        return parts

    def matrix(self, names: Sequence[str], rows: Sequence[int], columns: int) -> Matrix:
        return stack(self.parts(names, rows, columns))

    def vector(self, name: str, size: int) -> torch.Tensor:
        return torch.from_numpy(self._read(name, (size,))).to(self.device)


def _load_layer(loader: _Loader, shape: DecoderShape, index: int) -> LayerWeights:
    def name(part: str) -> str:
        return f"blk.{index}.{part}.weight"

    hidden, ffn = shape.hidden_size, shape.intermediate_size
    qkv_bias = output_bias = None
    if shape.has_qkv_bias:
        qkv_bias = torch.cat([
            loader.vector(f"blk.{index}.{part}.bias", size)
            for part, size in (("attn_q", shape.query_size), ("attn_k", shape.kv_size),
                               ("attn_v", shape.kv_size))]).view(-1, shape.head_dim)
    if shape.has_output_bias:
        output_bias = loader.vector(f"blk.{index}.attn_output.bias", hidden)
    return LayerWeights(
        attention_norm=loader.vector(name("attn_norm"), hidden),
        qkv=loader.matrix([name("attn_q"), name("attn_k"), name("attn_v")],
                          [shape.query_size, shape.kv_size, shape.kv_size], hidden),
        output=loader.matrix([name("attn_output")], [hidden], shape.query_size),
        ffn_norm=loader.vector(name("ffn_norm"), hidden),
        gate_up=loader.matrix([name("ffn_gate"), name("ffn_up")], [ffn, ffn], hidden),
        down=loader.matrix([name("ffn_down")], [hidden], ffn),
        q_norm=loader.vector(name("attn_q_norm"), shape.head_dim) if shape.norms_heads else None,
        k_norm=loader.vector(name("attn_k_norm"), shape.head_dim) if shape.norms_heads else None,
        attention_post_norm=(loader.vector(name("post_attention_norm"), hidden)
                             if shape.norms_outputs else None),
        ffn_post_norm=(loader.vector(name("post_ffw_norm"), hidden)
                       if shape.norms_outputs else None),
        qkv_bias=qkv_bias, output_bias=output_bias)


def load_weights(
    source: TensorSource, shape: DecoderShape, dtype: torch.dtype, device: torch.device, *,
    keeps_quantized: bool = True,
) -> DecoderWeights:
    """Bring a whole model onto a device.

    Parameters
    ----------
    source, shape
        The model.
    dtype
        Of matrices that are not quantised, and of activations.
    device
        Where to.
    keeps_quantized
        Quantised matrices stay as they are; False dequantises them to `dtype`.

    Raises
    ------
    ModelFileError
        A tensor is missing or has another shape.
    UnsupportedError
        The file has tensors that the forward pass does not use.
    """
    loader = _Loader(source, dtype, device, keeps_quantized)
    vocab, hidden = shape.vocab_size, shape.hidden_size
    (embedding,) = loader.parts(["token_embd.weight"], [vocab], hidden)
    head = embedding
    if not shape.tied_head:
        (head,) = loader.parts(["output.weight"], [vocab], hidden)
    weights = DecoderWeights(
        embedding=embedding,
        layers=tuple(_load_layer(loader, shape, i) for i in range(shape.num_layers)),
        output_norm=loader.vector("output_norm.weight", hidden),
        head=head, dtype=dtype)
    # The divisors of Llama 3's RoPE are read with the shape.
    left = source.names() - loader.taken - {"rope_freqs.weight"}
    if left:
        raise UnsupportedError(
            f"tensor {min(left)} is not part of the forward pass of this architecture; running "
            "without it would give wrong results")
    return weights
