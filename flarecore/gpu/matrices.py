"""Weight matrices of the GPU engine: tensors, 8- or 4-bit matrices, or several of them stacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from flarecore.gpu.device import load_kernels

__all__ = ["Groups", "Matrix", "Part", "QuantizedPart", "StackedMatrix", "parts_of",
           "quantized_matrix", "stack"]

# Type of a GGUF file, codes, scales, supers: what _C.Model.tensor_groups gives.
Groups: TypeAlias = tuple[
    str, npt.NDArray[np.int8], npt.NDArray[np.uint8], npt.NDArray[np.uint8]]

# The kernels read 5 and 6 bits as signed bytes: what has to be taken from the stored codes.
_ZEROS = {"Q5_0": 16, "Q6_K": 32}


class QuantizedPart(Protocol):
    """kernels.quantized.QuantizedMatrix, as far as the engine looks into it."""

    @property
    def format(self) -> Any: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    def numel(self) -> int: ...


Part: TypeAlias = torch.Tensor | QuantizedPart


@dataclass(frozen=True)
class StackedMatrix:
    """Matrices of different formats, one below the other; each takes a product of its own."""

    parts: tuple[Part, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    def numel(self) -> int:
        return sum(part.numel() for part in self.parts)


Matrix: TypeAlias = torch.Tensor | QuantizedPart | StackedMatrix


def parts_of(matrix: Matrix) -> Iterator[tuple[Part, slice]]:
    """The parts of a matrix with the outputs that they give."""
    begin = 0
    for part in matrix.parts if isinstance(matrix, StackedMatrix) else (matrix,):
        yield part, slice(begin, begin + part.shape[0])
        begin += part.shape[0]


def stack(parts: Sequence[Part]) -> Matrix:
    """One matrix of several."""
    return parts[0] if len(parts) == 1 else StackedMatrix(tuple(parts))


def quantized_matrix(groups: Sequence[Groups], device: torch.device) -> QuantizedPart:
    """Matrices of one type, one below the other, in device memory. Nothing is lost or rounded.

    Parameters
    ----------
    groups
        Of at least one matrix; codes (rows, columns), scales and supers as bytes.
    device
        Where the matrix shall lie.
    """
    name = groups[0][0]
    kernels = load_kernels().quantized
    form = kernels.FORMATS[name]

    def joined(field: int) -> torch.Tensor:
        tensors = [torch.from_numpy(group[field]).to(device) for group in groups]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    codes = joined(1)
    if name in _ZEROS:
        codes = codes - _ZEROS[name]
    supers = joined(3).view(torch.float16) if form.is_two_level else None
    matrix: QuantizedPart = kernels.QuantizedMatrix.pack(
        form, codes, joined(2).view(form.scale_dtype), supers)
    return matrix
