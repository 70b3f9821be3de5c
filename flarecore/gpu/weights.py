"""Weights of a decoder as torch tensors.

Matrices that read the same input lie in one tensor (queries, keys and values; gate and up), so
that one product serves them all. Values come dequantised from a `TensorSource`, by GGUF names and
in GGUF's row order; another file format joins by naming its tensors the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from flarecore import _C
from flarecore.errors import ModelFileError, UnsupportedError
from flarecore.gpu.shape import DecoderShape

__all__ = ["DTYPES", "CheckpointSource", "DecoderWeights", "GgufSource", "LayerWeights", 
           "TensorSource", "load_weights"]

# Names that `Engine(compute=...)` takes on a GPU.
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class TensorSource(Protocol):
    """Where weights come from."""

    def names(self) -> set[str]:
        """Every tensor of the file, by its GGUF name."""
        ...

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """The values, matrices as (outputs, inputs). KeyError if there is none of that name."""
        ...


class GgufSource:
    """Tensors of a GGUF file, through the native reader."""

    def __init__(self, path: str) -> None:
        self._tensors = {tensor.name: tensor for tensor in _C.GgufFile(path).tensors}

    def names(self) -> set[str]:
        return set(self._tensors)

    def read(self, name: str) -> npt.NDArray[np.float32]:
        return self._tensors[name].to_float32()


class CheckpointSource:
    """Tensors of safetensors files.

    Parameters
    ----------
    files
        The opened files.
    places
        GGUF name -> number of the file and name in it.
    vector_offset
        Added to norm weights: 1 where the files hold weight - 1 (Gemma).
    """

    def __init__(self, files: Sequence[_C.SafetensorsFile],
                 places: Mapping[str, tuple[int, str]], vector_offset: float = 0.0) -> None:
        by_name = [{tensor.name: tensor for tensor in file.tensors} for file in files]
        self._tensors = {name: by_name[number][inside]
                         for name, (number, inside) in places.items()}
        self._vector_offset = np.float32(vector_offset)

    def names(self) -> set[str]:
        return set(self._tensors)

    def read(self, name: str) -> npt.NDArray[np.float32]:
        values = self._tensors[name].to_float32()
        return values + self._vector_offset if values.ndim == 1 else values


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Norm weights are float32 vectors, matrices (outputs, inputs) in the model's dtype.

    ``qkv`` has the rows of queries, then keys, then values; ``gate_up`` those of gate, then up.
    """

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    ffn_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    attention_post_norm: torch.Tensor | None = None
    ffn_post_norm: torch.Tensor | None = None


@dataclass(frozen=True)
class DecoderWeights:
    """All weights; ``head`` is ``embedding`` itself where they are tied. Both (vocab, hidden)."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    output_norm: torch.Tensor
    head: torch.Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def size_bytes(self) -> int:
        """Bytes of all matrices and vectors."""
        tensors = {id(self.embedding): self.embedding, id(self.head): self.head,
                   id(self.output_norm): self.output_norm}
        for layer in self.layers:
            tensors |= {id(t): t for t in vars(layer).values() if t is not None}
        return sum(t.numel() * t.element_size() for t in tensors.values())


class _Loader:
    """Takes tensors by name, checks their shape and remembers what was taken."""

    def __init__(self, source: TensorSource, dtype: torch.dtype, device: torch.device) -> None:
        self.source = source
        self.dtype = dtype
        self.device = device
        self.taken: set[str] = set()

    def _read(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        try:
            values = self.source.read(name)
        except KeyError:
            raise ModelFileError(f"the model has no tensor {name}") from None
        while values.ndim > len(shape) and values.shape[0] == 1:
            values = values[0]
        if values.shape != shape:
            raise ModelFileError(
                f"tensor {name} has the shape {values.shape}, expected {shape}")
        self.taken.add(name)
        return values

    def matrix(self, names: Sequence[str], rows: Sequence[int], columns: int) -> torch.Tensor:
        """Matrices of so many rows each, one below the other."""
        out = torch.empty((sum(rows), columns), dtype=self.dtype, device=self.device)
        begin = 0
        for name, num_rows in zip(names, rows, strict=True):
            values = torch.from_numpy(self._read(name, (num_rows, columns)))
            if self.dtype == torch.float16:  # as the CPU: what overflows becomes the largest value
                values = values.clamp(-65504.0, 65504.0)
            out[begin : begin + num_rows].copy_(values)
            begin += num_rows
        return out

    def vector(self, name: str, size: int) -> torch.Tensor:
        return torch.from_numpy(self._read(name, (size,))).to(self.device)


def _load_layer(loader: _Loader, shape: DecoderShape, index: int) -> LayerWeights:
    def name(part: str) -> str:
        return f"blk.{index}.{part}.weight"

    hidden, ffn = shape.hidden_size, shape.intermediate_size
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
                       if shape.norms_outputs else None))


def load_weights(
    source: TensorSource, shape: DecoderShape, dtype: torch.dtype, device: torch.device
) -> DecoderWeights:
    """Dequantise a whole model onto a device.

    Raises
    ------
    ModelFileError
        A tensor is missing or has another shape.
    UnsupportedError
        The file has tensors that the forward pass does not use.
    """
    loader = _Loader(source, dtype, device)
    vocab, hidden = shape.vocab_size, shape.hidden_size
    embedding = loader.matrix(["token_embd.weight"], [vocab], hidden)
    head = embedding
    if not shape.tied_head:
        head = loader.matrix(["output.weight"], [vocab], hidden)
    weights = DecoderWeights(
        embedding=embedding,
        layers=tuple(_load_layer(loader, shape, i) for i in range(shape.num_layers)),
        output_norm=loader.vector("output_norm.weight", hidden),
        head=head)
    # The divisors of Llama 3's RoPE are read with the shape.
    left = source.names() - loader.taken - {"rope_freqs.weight"}
    if left:
        raise UnsupportedError(
            f"tensor {min(left)} is not part of the forward pass of this architecture; running "
            "without it would give wrong results")
    return weights
