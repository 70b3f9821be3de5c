"""y = x W^T for few rows, with W kept in 8 or 4 bits: decode and verification.

The product of one row reads every weight once, so its time is that of the bytes: half or a quarter
of bfloat16's. Codes go into the tensor cores as the small integers they are, exact in either 16-bit
type, and each group's sum is scaled in float32 afterwards; a minimum multiplies the group's sum of
x, which a second product with ones gives. Weights are therefore not rounded at all.

Order of a row's sum: the groups of a split in ascending order, then the splits, whose number
depends on the matrix alone. Rows always go in tiles of 16, padded with zeros, through one compiled
kernel: a row has the same bits whatever goes along with it. One row uses the whole chip: a program
takes 64 outputs of one split, and the last one of a tile to arrive joins the splits. Tiles of rows
are neighbours in the launch, so that 64 rows read the weights from memory once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .checks import FLOAT_DTYPES, INTERPRETED, ceil_div, check_tensor, require
from .quantized_format import (
    GROUP,
    TILE_OUTPUTS,
    QuantizedFormat,
    QuantizedMatrix,
    _group_numbers,
)

__all__ = ["ROW_TILE", "ProductWorkspace", "num_splits", "quantized_product"]

ROW_TILE = 16  # the narrowest tensor-core tile of both architectures
_PROGRAMS = 528  # wanted: four for each multiprocessor of an H100
_SPLIT_GROUPS = 8  # of a split at least: below, its start costs more than its bytes
_MAX_SPLITS = 16
_UNROLL = 4  # groups of one turn of the loop


@triton.jit
def _halves(codes_ptr, entry, output, k, present, BITS: tl.constexpr, ZERO: tl.constexpr,
            TILE_OUTPUTS: tl.constexpr):  # fmt: skip
    """Codes of inputs 0..15 and 16..31 of a group, both (outputs, 16) int8."""
    inside = output[:, None] * 16 + k[None, :]
    mask = tl.broadcast_to(present, (TILE_OUTPUTS, 16))
    if BITS == 4:
        at = codes_ptr + entry * (TILE_OUTPUTS * 16) + inside
        both = tl.load(at, mask=mask, other=0)
        low = (both & 15).to(tl.int8, bitcast=True)
        high = (both >> 4).to(tl.int8, bitcast=True)
        if ZERO != 0:
            low -= ZERO
            high -= ZERO
    else:
        at = codes_ptr + entry * (2 * TILE_OUTPUTS * 16) + inside
        low = tl.load(at, mask=mask, other=0)
        high = tl.load(at + TILE_OUTPUTS * 16, mask=mask, other=0)
    return low, high


@triton.jit
def _split_sum(x_ptr, codes_ptr, scales_ptr, supers_ptr, row, x_stride, num_rows, tile, begin, end,
               num_groups, BITS: tl.constexpr, ZERO: tl.constexpr, HAS_MIN: tl.constexpr,
               TWO_LEVEL: tl.constexpr, HALVES: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
               ROW_TILE: tl.constexpr, UNROLL: tl.constexpr, UPCAST: tl.constexpr,
               STAGES: tl.constexpr):  # fmt: skip
    """(outputs, rows) float32: the sum over the groups [begin, end) of one tile of outputs."""
    dtype: tl.constexpr = tl.float32 if UPCAST else x_ptr.dtype.element_ty
    output = tl.arange(0, TILE_OUTPUTS)
    k = tl.arange(0, 16)
    acc = tl.zeros((TILE_OUTPUTS, ROW_TILE), tl.float32)
    ones = tl.full((TILE_OUTPUTS, 16), 1.0, dtype)
    for first in tl.range(begin, end, UNROLL, num_stages=STAGES):
        for u in tl.static_range(UNROLL):
            group = first + u
            present = group < end
            at = x_ptr + row.to(tl.int64)[None, :] * x_stride + (group * 32 + k)[:, None]
            mask = (row < num_rows)[None, :] & present
            x_low = tl.load(at, mask=mask, other=0.0).to(dtype)
            x_high = tl.load(at + 16, mask=mask, other=0.0).to(dtype)
            entry = tile.to(tl.int64) * num_groups + group
            low, high = _halves(codes_ptr, entry, output, k, present, BITS, ZERO, TILE_OUTPUTS)
            scale, scale_high, minimum = _group_numbers(
                scales_ptr, supers_ptr, tile, group, num_groups, output, present,
                HAS_MIN, TWO_LEVEL, HALVES, TILE_OUTPUTS,
            )  # fmt: skip
            shape: tl.constexpr = (TILE_OUTPUTS, ROW_TILE)
            part = tl.dot(low.to(dtype), x_low, input_precision="ieee")
            if HALVES:
                acc = tl.fma(part, tl.broadcast_to(scale[:, None], shape), acc)
                part = tl.dot(high.to(dtype), x_high, input_precision="ieee")
            else:
                part = tl.dot(high.to(dtype), x_high, part, input_precision="ieee")
            acc = tl.fma(part, tl.broadcast_to(scale_high[:, None], shape), acc)
            if HAS_MIN:
                part = tl.dot(ones, x_low, input_precision="ieee")
                part = tl.dot(ones, x_high, part, input_precision="ieee")
                acc = tl.fma(part, tl.broadcast_to(minimum[:, None], shape), acc)
    return acc


# The number of rows is not specialised on: one compiled kernel serves them all.
@triton.jit(do_not_specialize=["num_rows", "groups_per_split"])
def _quantized_product_kernel(
    x_ptr,  # (num_rows, inputs)
    codes_ptr,
    scales_ptr,
    supers_ptr,
    out_ptr,  # (num_rows, outputs)
    partial_ptr,  # (row tiles, SPLITS, output tiles * 64, 16) float32
    arrivals_ptr,  # (row tiles, output tiles) int32, zero between launches
    x_stride,
    out_stride,
    num_rows,
    num_outputs,
    num_groups,
    groups_per_split,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_MIN: tl.constexpr,
    TWO_LEVEL: tl.constexpr,
    HALVES: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    UNROLL: tl.constexpr,
    UPCAST: tl.constexpr,
    STAGES: tl.constexpr,
):
    row_tile = tl.program_id(0)
    tile = tl.program_id(1)
    split = tl.program_id(2)
    row = row_tile * ROW_TILE + tl.arange(0, ROW_TILE)
    begin = split * groups_per_split
    acc = _split_sum(
        x_ptr, codes_ptr, scales_ptr, supers_ptr, row, x_stride, num_rows, tile, begin,
        tl.minimum(begin + groups_per_split, num_groups), num_groups, BITS, ZERO, HAS_MIN,
        TWO_LEVEL, HALVES, TILE_OUTPUTS, ROW_TILE, UNROLL, UPCAST, STAGES,
    )  # fmt: skip
    output = tile * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    valid = (row < num_rows)[None, :] & (output < num_outputs)[:, None]
    out = out_ptr + row.to(tl.int64)[None, :] * out_stride + output[:, None]
    if SPLITS == 1:
        tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=valid)
        return
    # Rows first: programs of one row then touch few lines.
    padded = tl.num_programs(1) * TILE_OUTPUTS
    partial = partial_ptr + row.to(tl.int64)[None, :] * (SPLITS * padded) + output[:, None]
    tl.store(partial + split * padded, acc, mask=valid)
    # All threads' stores come before the one thread's release; its acquire before their loads.
    tl.debug_barrier()
    arrivals = arrivals_ptr + row_tile * tl.num_programs(1) + tile
    arrived = tl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu")
    if arrived == SPLITS - 1:
        tl.store(arrivals, 0)
        acc = tl.zeros((TILE_OUTPUTS, ROW_TILE), tl.float32)
        for i in tl.static_range(SPLITS):
            # .cg: other programs wrote these through L2; a stale L1 line must not answer.
            acc += tl.load(partial + i * padded, mask=valid, other=0.0, cache_modifier=".cg")
        tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=valid)


def num_splits(num_outputs: int, num_inputs: int) -> int:
    """Into how many parts the inputs are cut: fixed by the matrix, so that a row's bits are too."""
    groups = num_inputs // GROUP
    wanted = ceil_div(_PROGRAMS, ceil_div(num_outputs, TILE_OUTPUTS))
    most = min(wanted, max(1, groups // _SPLIT_GROUPS), _MAX_SPLITS)
    return ceil_div(groups, ceil_div(groups, most))  # without an empty one at the end


@dataclass(frozen=True)
class ProductWorkspace:
    """Device memory that products share; one launch at a time may use it.

    Attributes
    ----------
    partial
        (values,) float32: sums of splits, rows x splits x outputs in whole tiles.
    arrivals
        (tiles,) int32: zero before and after every launch.
    """

    partial: torch.Tensor
    arrivals: torch.Tensor

    @staticmethod
    def _sizes(shape: tuple[int, int], num_rows: int) -> tuple[int, int]:
        tiles, row_tiles = ceil_div(shape[0], TILE_OUTPUTS), ceil_div(num_rows, ROW_TILE)
        splits = num_splits(*shape)
        if splits == 1:
            return 0, 0
        return row_tiles * ROW_TILE * splits * tiles * TILE_OUTPUTS, row_tiles * tiles

    @classmethod
    def allocate(cls, shapes: list[tuple[int, int]], max_rows: int,
                 device: torch.device | str) -> ProductWorkspace:  # fmt: skip
        """For products of up to `max_rows` rows with matrices of these (outputs, inputs)."""
        require(max_rows >= 1, f"max_rows must be at least 1, got {max_rows}")
        sizes = [cls._sizes(shape, max_rows) for shape in shapes] or [(0, 0)]
        return cls(
            torch.empty(max(1, *(s[0] for s in sizes)), dtype=torch.float32, device=device),
            torch.zeros(max(1, *(s[1] for s in sizes)), dtype=torch.int32, device=device),
        )

    def check(self, shape: tuple[int, int], num_rows: int, device: torch.device) -> None:
        """Raise unless it serves this product."""
        check_tensor("workspace.partial", self.partial, (None,), (torch.float32,), device)
        check_tensor("workspace.arrivals", self.arrivals, (None,), (torch.int32,), device)
        partial, arrivals = self._sizes(shape, num_rows)
        require(
            partial <= self.partial.numel() and arrivals <= self.arrivals.numel(),
            f"the workspace is too small for {num_rows} rows times {shape}; allocate a larger one",
        )


def product_constants(format: QuantizedFormat, splits: int) -> dict[str, int | bool]:
    """Compile-time constants and launch options of the kernel; they decide a row's bits."""
    return {
        **format.constants,
        "TILE_OUTPUTS": TILE_OUTPUTS,
        "ROW_TILE": ROW_TILE,
        "SPLITS": splits,
        "UNROLL": _UNROLL,
        "UPCAST": INTERPRETED,
        "STAGES": 3,
        "num_warps": 4,
    }


def quantized_product(
    x: torch.Tensor,
    matrix: QuantizedMatrix,
    workspace: ProductWorkspace,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x @ W.T with float32 sums.

    Parameters
    ----------
    x
        (num_rows, inputs) float16, bfloat16 or float32; rows may be strided.
    matrix
        W (outputs, inputs).
    workspace
        That provides for it.
    out
        (num_rows, outputs), any float type, rows may be strided; by default new, like `x`.

    Returns
    -------
    torch.Tensor
        `out`.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit.
    """
    require(isinstance(matrix, QuantizedMatrix), "matrix must be a QuantizedMatrix")
    matrix.check()
    check_tensor("x", x, (None, matrix.num_inputs), FLOAT_DTYPES, matrix.device, strided_dims=1)
    num_rows = x.shape[0]
    shape = (num_rows, matrix.num_outputs)
    if out is None:
        out = torch.empty(shape, dtype=x.dtype, device=x.device)
    check_tensor("out", out, shape, FLOAT_DTYPES, x.device, strided_dims=1)
    workspace.check(matrix.shape, num_rows, x.device)
    if num_rows == 0:
        return out
    splits = num_splits(*matrix.shape)
    groups = matrix.num_inputs // GROUP
    grid = (ceil_div(num_rows, ROW_TILE), ceil_div(matrix.num_outputs, TILE_OUTPUTS), splits)
    _quantized_product_kernel[grid](
        x, matrix.codes, matrix.scales, matrix.supers, out, workspace.partial, workspace.arrivals,
        x.stride(0), out.stride(0), num_rows, matrix.num_outputs, groups,
        ceil_div(groups, splits), **product_constants(matrix.format, splits),
    )  # fmt: skip
    return out
