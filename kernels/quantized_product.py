"""y = x W^T for few rows, with W kept in 8 or 4 bits: decode and verification.

The product of one row reads every weight once, so its time is that of the bytes: half or a third of
bfloat16's. Codes go into the tensor cores as the small integers they are, exact in either 16-bit
type, and each group's sum is scaled in float32 afterwards; a minimum multiplies the group's sum of
x, which a second product with ones gives. Weights are therefore not rounded at all.

Order of a row's sum: the groups of a split in ascending order, then the splits, whose number
depends on the matrix alone. Rows always go in tiles of 16, padded with zeros, through one compiled
kernel: a row has the same bits whatever goes along with it. One row uses the whole chip: a program
takes 128 outputs of one split, and the last one of them to arrive joins the splits. Tiles of rows
are neighbours in the launch, so that 64 rows read the weights from memory once.

"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .checks import FLOAT_DTYPES, INTERPRETED, ceil_div, check_tensor, require
from .quantized_format import GROUP, TILE_OUTPUTS, QuantizedFormat, QuantizedMatrix
from .quantized_sum import _split_sum, unpack_asm

__all__ = ["ROW_TILE", "ProductWorkspace", "num_splits", "quantized_product"]

ROW_TILE = 16  # the narrowest tensor-core tile of both architectures
BLOCK_OUTPUTS = 128
_PROGRAMS = 528  # wanted: four for each multiprocessor of an H100
_SPLIT_GROUPS = 8  # of a split at least: below, its start costs more than its bytes
_MAX_SPLITS = 16
_JOIN_ROWS = 2  # of which all splits are in flight when they are joined


@triton.jit
def _join_splits(partial_ptr, out_ptr, row_begin, row_end, output, num_outputs, padded, out_stride,
                 SPLITS: tl.constexpr, JOIN_ROWS: tl.constexpr):  # fmt: skip
    """Add the splits of the rows [row_begin, row_end); the shape of the sum is always the same."""
    split = tl.arange(0, SPLITS)[:, None, None] * padded
    for begin in range(row_begin, row_end, JOIN_ROWS):
        row = (begin + tl.arange(0, JOIN_ROWS)).to(tl.int64)[:, None]
        valid = (row < row_end) & (output < num_outputs)[None, :]
        # .cg: other programs wrote these through L2; a stale L1 line must not answer.
        parts = tl.load(
            partial_ptr + (row * (SPLITS * padded) + output[None, :])[None, :, :] + split,
            mask=tl.broadcast_to(valid[None, :, :], (SPLITS, JOIN_ROWS, output.shape[0])),
            other=0.0,
            cache_modifier=".cg",
        )
        total = tl.sum(parts, axis=0).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + row * out_stride + output[None, :], total, mask=valid)


# The number of rows is not specialised on: one compiled kernel serves them all.
@triton.jit(do_not_specialize=["num_rows", "runs_per_split"])
def _quantized_product_kernel(
    x_ptr,  # (num_rows, inputs)
    codes_ptr,
    scales_ptr,
    supers_ptr,
    out_ptr,  # (num_rows, outputs)
    partial_ptr,  # (row tiles * 16, SPLITS, blocks * 128) float32
    arrivals_ptr,  # (row tiles, blocks) int32, zero between launches
    x_stride,
    out_stride,
    num_rows,
    num_outputs,
    num_groups,
    runs_per_split,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_MIN: tl.constexpr,
    TWO_LEVEL: tl.constexpr,
    HALVES: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    JOIN_ROWS: tl.constexpr,
    UPCAST: tl.constexpr,
    ASM_LOW: tl.constexpr,
    ASM_HIGH: tl.constexpr,
    STAGES: tl.constexpr,
):
    row_tile = tl.program_id(0)
    block = tl.program_id(1)
    split = tl.program_id(2)
    row = row_tile * ROW_TILE + tl.arange(0, ROW_TILE)
    output = block * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    RUN: tl.constexpr = 8 // BITS  # groups that lie in the same bytes
    begin = split * runs_per_split
    acc = _split_sum(
        x_ptr, codes_ptr, scales_ptr, supers_ptr, row, output, output < num_outputs, x_stride,
        num_rows, begin, tl.minimum(begin + runs_per_split, (num_groups + RUN - 1) // RUN),
        num_groups, BITS, ZERO, HAS_MIN, TWO_LEVEL, HALVES, TILE_OUTPUTS, ROW_TILE, BLOCK_OUTPUTS,
        UPCAST, ASM_LOW, ASM_HIGH, STAGES,
    )  # fmt: skip
    valid = (row < num_rows)[None, :] & (output < num_outputs)[:, None]
    if SPLITS == 1:
        out = out_ptr + row.to(tl.int64)[None, :] * out_stride + output[:, None]
        tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=valid)
        return
    padded = tl.num_programs(1) * BLOCK_OUTPUTS
    entry = row.to(tl.int64)[None, :] * (SPLITS * padded) + output[:, None]
    tl.store(partial_ptr + entry + split * padded, acc, mask=valid)
    # All threads' stores come before the one thread's release; its acquire before their loads.
    tl.debug_barrier()
    arrivals = arrivals_ptr + row_tile * tl.num_programs(1) + block
    arrived = tl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu")
    if arrived == SPLITS - 1:
        tl.store(arrivals, 0)
        _join_splits(
            partial_ptr, out_ptr, row_tile * ROW_TILE,
            tl.minimum(num_rows, (row_tile + 1) * ROW_TILE), output, num_outputs, padded,
            out_stride, SPLITS, JOIN_ROWS,
        )  # fmt: skip


@functools.cache
def num_splits(num_outputs: int, num_inputs: int) -> int:
    """Into how many parts the inputs are cut, a power of two.

    Fixed by the matrix alone, as a row's bits depend on it.
    """
    most = min(_PROGRAMS // ceil_div(num_outputs, BLOCK_OUTPUTS),
               num_inputs // GROUP // _SPLIT_GROUPS, _MAX_SPLITS)  # fmt: skip
    return 1 << max(1, most).bit_length() - 1


@dataclass(frozen=True)
class ProductWorkspace:
    """Device memory that products share; one launch at a time may use it.

    Attributes
    ----------
    partial
        (values,) float32: sums of splits, rows x splits x outputs in whole blocks.
    arrivals
        (blocks,) int32: zero before and after every launch.
    """

    partial: torch.Tensor
    arrivals: torch.Tensor

    @staticmethod
    def _sizes(shape: tuple[int, int], num_rows: int) -> tuple[int, int]:
        blocks, row_tiles = ceil_div(shape[0], BLOCK_OUTPUTS), ceil_div(num_rows, ROW_TILE)
        splits = num_splits(*shape)
        if splits == 1:
            return 0, 0
        return row_tiles * ROW_TILE * splits * blocks * BLOCK_OUTPUTS, row_tiles * blocks

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


def product_constants(
    format: QuantizedFormat, dtype: torch.dtype, splits: int
) -> dict[str, int | bool | str | None]:
    """Compile-time constants and launch options of the kernel; they decide a row's bits."""
    has_asm = format.bits == 4 and dtype != torch.float32 and not INTERPRETED
    is_bfloat16 = dtype == torch.bfloat16
    return {
        **format.constants,
        "TILE_OUTPUTS": TILE_OUTPUTS,
        "ROW_TILE": ROW_TILE,
        "SPLITS": splits,
        "BLOCK_OUTPUTS": BLOCK_OUTPUTS,
        "JOIN_ROWS": _JOIN_ROWS,
        "UPCAST": INTERPRETED,
        "ASM_LOW": unpack_asm(is_bfloat16, format.zero, False) if has_asm else None,
        "ASM_HIGH": unpack_asm(is_bfloat16, format.zero, True) if has_asm else None,
        "STAGES": 4,
        "num_warps": 2,
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
    grid = (ceil_div(num_rows, ROW_TILE), ceil_div(matrix.num_outputs, BLOCK_OUTPUTS), splits)
    _quantized_product_kernel[grid](
        x, matrix.codes, matrix.scales, matrix.supers, out, workspace.partial, workspace.arrivals,
        x.stride(0), out.stride(0), num_rows, matrix.num_outputs, groups,
        ceil_div(ceil_div(groups, matrix.format.groups_per_run), splits),
        **product_constants(matrix.format, x.dtype, splits),
    )  # fmt: skip
    return out
