"""Values of 8- and 4-bit matrices: of given rows (token embeddings), or of a run of rows.

Products of many rows are bound by arithmetic, not by bytes: prefill writes a run of rows into a
workspace in the activations' type and multiplies with the vendor library. A weight costs its own
bytes, plus twice two bytes that stay in the second-level cache if the workspace is small, where a
bfloat16 matrix costs two; the product itself has the speed, and the rounding of the weights, of the
dense twin. A kernel that does both would have to come near the vendor's rate to gain anything.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .checks import FLOAT_DTYPES, ceil_div, check_tensor, require
from .quantized_format import (
    GROUP,
    TILE_OUTPUTS,
    QuantizedFormat,
    QuantizedMatrix,
    _group_numbers,
)

__all__ = ["dequantize", "gather_rows"]

_BLOCK_COLUMNS = 256
_BLOCK_ROWS = 16


@triton.jit(do_not_specialize=["row_begin", "num_rows"])
def _dequantize_kernel(
    row_ids_ptr,  # (num_rows,) int32, if HAS_IDS
    codes_ptr,
    scales_ptr,
    supers_ptr,
    out_ptr,  # (num_rows, inputs)
    out_stride,
    row_begin,
    num_rows,
    num_outputs,
    num_groups,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_MIN: tl.constexpr,
    TWO_LEVEL: tl.constexpr,
    HALVES: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    HAS_IDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    source = row_begin + row
    if HAS_IDS:
        source = tl.load(row_ids_ptr + row, mask=row < num_rows, other=-1)
    known = (row < num_rows) & (source >= 0) & (source < num_outputs)
    column = (tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS))[None, :]
    inside = (row < num_rows)[:, None] & (column < num_groups * 32)
    present = known[:, None] & inside
    tile, output = (source // TILE_OUTPUTS)[:, None], (source % TILE_OUTPUTS)[:, None]
    group = column // 32

    RUN: tl.constexpr = 8 // BITS
    entry = tile.to(tl.int64) * ((num_groups + RUN - 1) // RUN) + group // RUN
    at = codes_ptr + (entry * TILE_OUTPUTS + output) * 32 + column % 32
    code = tl.load(at, mask=present, other=0).to(tl.int32)
    if BITS == 4:
        code = ((code >> (group % 2 * 4)) & 15) - ZERO
    first, second, minimum = _group_numbers(
        scales_ptr, supers_ptr, tile, group, num_groups, output, present,
        HAS_MIN, TWO_LEVEL, HALVES, TILE_OUTPUTS,
    )  # fmt: skip
    value = code.to(tl.float32) * (tl.where(column % 32 < 16, first, second) if HALVES else first)
    if HAS_MIN:
        value += minimum  # the product is exact: fused or not, the same bits
    if out_ptr.dtype.element_ty == tl.float16:
        value = tl.clamp(value, -65504.0, 65504.0)  # as weights of other files
    at = out_ptr + row.to(tl.int64)[:, None] * out_stride + column
    tl.store(at, value.to(out_ptr.dtype.element_ty), mask=inside)


def dequantize_constants(format: QuantizedFormat, has_ids: bool) -> dict[str, int | bool]:
    """Compile-time constants and launch options."""
    return {
        **format.constants,
        "TILE_OUTPUTS": TILE_OUTPUTS,
        "HAS_IDS": has_ids,
        "BLOCK_ROWS": 1 if has_ids else _BLOCK_ROWS,
        "BLOCK_COLUMNS": _BLOCK_COLUMNS,
        "num_warps": 2 if has_ids else 4,
    }


def _launch(matrix: QuantizedMatrix, row_ids: torch.Tensor | None, row_begin: int,
            out: torch.Tensor) -> torch.Tensor:  # fmt: skip
    constants = dequantize_constants(matrix.format, row_ids is not None)
    num_rows = out.shape[0]
    if num_rows == 0:
        return out
    grid = (ceil_div(num_rows, int(constants["BLOCK_ROWS"])),
            ceil_div(matrix.num_inputs, _BLOCK_COLUMNS))  # fmt: skip
    _dequantize_kernel[grid](
        row_ids, matrix.codes, matrix.scales, matrix.supers, out, out.stride(0), row_begin,
        num_rows, matrix.num_outputs, matrix.num_inputs // GROUP, **constants,
    )  # fmt: skip
    return out


def dequantize(matrix: QuantizedMatrix, row_begin: int, out: torch.Tensor) -> torch.Tensor:
    """Write the values of the rows [row_begin, row_begin + out.shape[0]).

    Parameters
    ----------
    matrix
        W (outputs, inputs).
    row_begin
        First output.
    out
        (rows, inputs) float32, float16 (what overflows becomes the largest value) or bfloat16; rows
        may be strided.

    Returns
    -------
    torch.Tensor
        `out`. In float32 it is exact.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit.
    """
    matrix.check()
    check_tensor("out", out, (None, matrix.num_inputs), FLOAT_DTYPES, matrix.device, strided_dims=1)
    end = row_begin + out.shape[0]
    require(
        0 <= row_begin <= end <= matrix.num_outputs,
        f"rows [{row_begin}, {end}) are not all of the {matrix.num_outputs} of the matrix",
    )
    return _launch(matrix, None, row_begin, out)


def gather_rows(matrix: QuantizedMatrix, row_ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write the values of given rows: a lookup in a table of embeddings.

    Parameters
    ----------
    matrix
        W (outputs, inputs).
    row_ids
        (rows,) int32. An id outside the matrix gives zeros.
    out
        (rows, inputs), as for `dequantize`.

    Returns
    -------
    torch.Tensor
        `out`.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit.
    """
    matrix.check()
    check_tensor("row_ids", row_ids, (None,), (torch.int32,), matrix.device)
    shape = (row_ids.shape[0], matrix.num_inputs)
    check_tensor("out", out, shape, FLOAT_DTYPES, matrix.device, strided_dims=1)
    return _launch(matrix, row_ids, 0, out)
