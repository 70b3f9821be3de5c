"""8- and 4-bit weight matrices in device memory: formats, and the layout that the kernels read.

Inputs come in groups of 32. A code q stands for ``(q - zero) * scale``, or ``q * scale + min``
where the format has minima; every product of a code and a scale is exact in float32, so that the
values are those of the file whatever a compiler fuses. Scales and minima are float16 per group, or,
in two levels, 8-bit integers per group (of 16 inputs for Q6_K) times float16 per 256 inputs.

`TILE_OUTPUTS` = 64 outputs lie together, so that what a program reads next is one run of memory:

    codes   (tiles, groups / 2, 64, 32) uint8 for 4 bits: byte i has input i of an even group low,
            that of the following odd group high (zeros if there is none)
            (tiles, groups, 64, 32) int8 for 8 bits
    scales  (tiles, groups, fields, 64) float16, or 8-bit integers where there are two levels
    supers  (tiles, groups / 8, fields, 64) float16, two levels only

The last tile is filled up with zeros.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .checks import ceil_div, check_tensor, require

__all__ = ["FORMATS", "GROUP", "TILE_OUTPUTS", "QuantizedFormat", "QuantizedMatrix"]

GROUP = 32  # inputs that share a scale
SUPER_GROUPS = 8  # groups that share the numbers of the second level
TILE_OUTPUTS = 64


@dataclass(frozen=True)
class QuantizedFormat:
    """How codes become values.

    Attributes
    ----------
    bits
        4 (codes 0 to 15) or 8 (codes -128 to 127).
    zero
        Taken from every code; 4-bit codes without a minimum only.
    has_min
        Values are ``q * scale + min``.
    is_two_level
        scale = s * d and min = -(m * dmin), with d and dmin per 256 inputs.
    has_halves
        Inputs 0..15 and 16..31 of a group have scales of their own.
    """

    bits: int
    zero: int = 0
    has_min: bool = False
    is_two_level: bool = False
    has_halves: bool = False

    @property
    def scale_dtype(self) -> torch.dtype:
        """Of the numbers of a group. The halves of Q6_K have signed scales."""
        if not self.is_two_level:
            return torch.float16
        return torch.int8 if self.has_halves else torch.uint8

    @property
    def scale_fields(self) -> int:
        """Numbers per group: one scale, or scale and minimum, or the scales of two halves."""
        return 2 if self.has_min or self.has_halves else 1

    @property
    def super_fields(self) -> int:
        """Numbers per 256 inputs."""
        return 1 + self.has_min if self.is_two_level else 0

    @property
    def groups_per_run(self) -> int:
        """Groups that lie in the same bytes."""
        return 8 // self.bits

    @property
    def constants(self) -> dict[str, int | bool]:
        """Compile-time constants of the kernels."""
        return {"BITS": self.bits, "ZERO": self.zero, "HAS_MIN": self.has_min,
                "TWO_LEVEL": self.is_two_level, "HALVES": self.has_halves}  # fmt: skip


# By tensor type of a GGUF file. Five and six bits take eight: nothing is lost but memory.
FORMATS = {
    "Q4_0": QuantizedFormat(4, zero=8),
    "Q4_1": QuantizedFormat(4, has_min=True),
    "Q4_K": QuantizedFormat(4, has_min=True, is_two_level=True),
    "Q5_0": QuantizedFormat(8),
    "Q5_1": QuantizedFormat(8, has_min=True),
    "Q5_K": QuantizedFormat(8, has_min=True, is_two_level=True),
    "Q6_K": QuantizedFormat(8, is_two_level=True, has_halves=True),
    "Q8_0": QuantizedFormat(8),
}


def _tiled(rows: torch.Tensor) -> torch.Tensor:
    """(outputs, ...) -> (tiles, 64, ...), filled up with zeros."""
    missing = -rows.shape[0] % TILE_OUTPUTS
    if missing:
        rows = torch.cat([rows, rows.new_zeros((missing, *rows.shape[1:]))])
    return rows.view(-1, TILE_OUTPUTS, *rows.shape[1:])


@dataclass(frozen=True)
class QuantizedMatrix:
    """W (num_outputs, num_inputs) in one of the formats, in the layout above."""

    format: QuantizedFormat
    num_outputs: int
    num_inputs: int
    codes: torch.Tensor
    scales: torch.Tensor
    supers: torch.Tensor  # empty without a second level

    @classmethod
    def pack(
        cls,
        format: QuantizedFormat,
        codes: torch.Tensor,
        scales: torch.Tensor,
        supers: torch.Tensor | None = None,
    ) -> QuantizedMatrix:
        """Bring a matrix into the layout.

        Parameters
        ----------
        format
            Of the numbers.
        codes
            (outputs, inputs) uint8 or int8: 0 to 15 for 4 bits.
        scales
            (outputs, inputs / 32, fields) of the format's type: scale and minimum, or two scales.
        supers
            (outputs, inputs / 256, fields) float16: d and dmin.

        Raises
        ------
        TypeError, ValueError
            If they do not fit together.
        """
        check_tensor("codes", codes, (None, None), (torch.uint8, torch.int8))
        outputs, inputs = codes.shape
        step = GROUP * SUPER_GROUPS if format.is_two_level else GROUP
        require(
            outputs > 0 and inputs > 0 and inputs % step == 0,
            f"codes must be (outputs, inputs) with inputs a multiple of {step}, got "
            f"{tuple(codes.shape)}",
        )
        groups = inputs // GROUP
        shape = (outputs, groups, format.scale_fields)
        check_tensor("scales", scales, shape, (format.scale_dtype,), codes.device)
        if supers is None or not format.is_two_level:
            require(not format.is_two_level, "supers are missing: the format has two levels")
            supers = scales.new_empty(0, dtype=torch.float16)
        else:
            shape = (outputs, groups // SUPER_GROUPS, format.super_fields)
            check_tensor("supers", supers, shape, (torch.float16,), codes.device)
            supers = _tiled(supers).permute(0, 2, 3, 1).contiguous()
        tiles = _tiled(codes.view(outputs, groups, GROUP)).permute(0, 2, 1, 3)
        if format.bits == 4:
            low, high = (tiles[:, half::2].contiguous().view(torch.uint8) for half in (0, 1))
            packed = low.clone()
            packed[:, : high.shape[1]] |= high << 4
        else:
            packed = tiles.contiguous().view(torch.int8)
        return cls(format, outputs, inputs, packed,
                   _tiled(scales).permute(0, 2, 3, 1).contiguous(), supers)  # fmt: skip

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return self.num_outputs, self.num_inputs

    @property
    def nbytes(self) -> int:
        """Of codes and numbers."""
        return self.codes.nbytes + self.scales.nbytes + self.supers.nbytes

    def numel(self) -> int:
        """Values of the matrix."""
        return self.num_outputs * self.num_inputs

    def check(self) -> None:
        """Raise TypeError or ValueError unless the tensors are as `pack` makes them."""
        self._checked  # noqa: B018 - looked at once: nothing of a matrix can be exchanged

    @functools.cached_property
    def _checked(self) -> bool:
        f = self.format
        tiles, groups = ceil_div(self.num_outputs, TILE_OUTPUTS), self.num_inputs // GROUP
        codes = (tiles, ceil_div(groups, f.groups_per_run), TILE_OUTPUTS, GROUP)
        kind = torch.uint8 if f.bits == 4 else torch.int8
        check_tensor("matrix.codes", self.codes, codes, (kind,))
        shape = (tiles, groups, f.scale_fields, TILE_OUTPUTS)
        check_tensor("matrix.scales", self.scales, shape, (f.scale_dtype,), self.device)
        shape = (tiles, groups // SUPER_GROUPS, f.super_fields, TILE_OUTPUTS)
        shape = shape if f.is_two_level else (0,)
        check_tensor("matrix.supers", self.supers, shape, (torch.float16,), self.device)
        return True


@triton.jit
def _group_numbers(scales_ptr, supers_ptr, tile, group, num_groups, output, present,
                   HAS_MIN: tl.constexpr, TWO_LEVEL: tl.constexpr, HALVES: tl.constexpr,
                   TILE_OUTPUTS: tl.constexpr):  # fmt: skip
    """Scales of both halves and minimum, float32, of one group (or several) of outputs of a tile.

    `tile`, `group`, `output` and `present` broadcast; what is not present has zeros.
    """
    FIELDS: tl.constexpr = 2 if HAS_MIN or HALVES else 1
    entry = tile.to(tl.int64) * num_groups + group
    at = scales_ptr + entry * (FIELDS * TILE_OUTPUTS) + output
    first = tl.load(at, mask=present, other=0).to(tl.float32)
    second = first
    minimum = tl.zeros_like(first)
    if HALVES:
        second = tl.load(at + TILE_OUTPUTS, mask=present, other=0).to(tl.float32)
    if HAS_MIN:
        minimum = tl.load(at + TILE_OUTPUTS, mask=present, other=0).to(tl.float32)
    if TWO_LEVEL:
        SUPER_FIELDS: tl.constexpr = 2 if HAS_MIN else 1
        entry = tile.to(tl.int64) * (num_groups // 8) + group // 8
        at = supers_ptr + entry * (SUPER_FIELDS * TILE_OUTPUTS) + output
        d = tl.load(at, mask=present, other=0.0).to(tl.float32)
        first *= d
        second *= d
        if HAS_MIN:
            dmin = tl.load(at + TILE_OUTPUTS, mask=present, other=0.0).to(tl.float32)
            minimum = -(minimum * dmin)
    return first, second, minimum
