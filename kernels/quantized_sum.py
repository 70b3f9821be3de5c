"""The inner loop of quantized_product.py: codes times activations, group by group.

At the bandwidth of an H100 there is time for about four instructions a weight of 4 bits, and six of
8: the loop was written by counting what it compiles to for sm_90 (3.5, with a minimum 5.2; 4.6 for
8 bits). A program has two warps, because with four the compiler takes warp-group products, which
need twice the instructions to bring unpacked codes into place. Products take 32 inputs at once:
that is what a thread's four neighbouring codes need to fill two tensor-core steps.
"""

from __future__ import annotations

import functools

import triton
import triton.language as tl

from .quantized_format import _group_numbers

# Four bytes of two codes each to values of the 16-bit type, exactly: a byte under the exponent of
# 128 (bfloat16) or 1024 (float16) is that number plus the code, which a subtraction takes off again
# together with the zero. Compilers need three times the instructions, and those are the limit here.
_UNPACK = """{{
    .reg .b32 nibbles, one, offset;
    mov.b32 one, {one};
    mov.b32 offset, {offset};
    {shift}
    and.b32 nibbles, nibbles, 0x0f0f0f0f;
    prmt.b32 $0, nibbles, {exponent}, 0x4140;
    prmt.b32 $1, nibbles, {exponent}, 0x4342;
    fma.rn.{kind} $0, $0, one, offset;
    fma.rn.{kind} $1, $1, one, offset;
}}"""


@functools.cache
def unpack_asm(is_bfloat16: bool, zero: int, is_high: bool) -> str:
    """PTX of `_UNPACK` for the low or the high nibbles of $2."""
    base, one, minus = (0x4300, 0x3F80, 0xC300) if is_bfloat16 else (0x6400, 0x3C00, 0xE400)
    return _UNPACK.format(
        one=f"{one * 0x10001:#x}", offset=f"{(minus + zero) * 0x10001:#x}",
        exponent=f"{(base >> 8) * 0x01010101:#x}", kind="bf16x2" if is_bfloat16 else "f16x2",
        shift="shr.u32 nibbles, $2, 4;" if is_high else "mov.b32 nibbles, $2;")  # fmt: skip


@triton.jit
def _unpack(both, x, ZERO: tl.constexpr, ASM_LOW: tl.constexpr, ASM_HIGH: tl.constexpr):
    """Codes of the even and the odd group of a run, both (outputs, 32) of the type of `x`."""
    if ASM_LOW is None:
        low = ((both & 15).to(tl.int8) - ZERO).to(x.dtype)
        high = ((both >> 4).to(tl.int8) - ZERO).to(x.dtype)
    else:
        low = tl.inline_asm_elementwise(
            ASM_LOW, "=r,=r,r", [both], dtype=x.dtype, is_pure=True, pack=4
        )
        high = tl.inline_asm_elementwise(
            ASM_HIGH, "=r,=r,r", [both], dtype=x.dtype, is_pure=True, pack=4
        )
    return low, high


@triton.jit
def _add_group(acc, codes, x, x_ptr, mask, scale, scale_high, minimum, HAS_MIN: tl.constexpr,
               HALVES: tl.constexpr):  # fmt: skip
    """acc (outputs, rows) with one group of inputs added; x (32, rows) are those of the rows."""
    dtype: tl.constexpr = codes.dtype
    if HALVES:
        # The same codes twice, times the rows with one half or the other as zeros.
        is_low = (tl.arange(0, 32) < 16)[:, None]
        low = tl.load(x_ptr, mask=mask & is_low, other=0.0).to(dtype)
        high = tl.load(x_ptr, mask=mask & (is_low == 0), other=0.0).to(dtype)
        part = tl.dot(codes, low, input_precision="ieee")
        acc = tl.fma(part, tl.broadcast_to(scale[:, None], acc.shape), acc)
        part = tl.dot(codes, high, input_precision="ieee")
        acc = tl.fma(part, tl.broadcast_to(scale_high[:, None], acc.shape), acc)
    else:
        part = tl.dot(codes, x, input_precision="ieee")
        acc = tl.fma(part, tl.broadcast_to(scale[:, None], acc.shape), acc)
    if HAS_MIN:
        # A load of its own, not merged with that of x thanks to the hint: what two kinds of
        # products share, the compiler does not keep in flight.
        same = tl.load(x_ptr, mask=mask, other=0.0, eviction_policy="evict_last").to(dtype)
        ones = tl.full(codes.shape, 1.0, dtype)
        part = tl.dot(ones, same, input_precision="ieee")
        acc = tl.fma(part, tl.broadcast_to(minimum[:, None], acc.shape), acc)
    return acc


@triton.jit
def _split_sum(x_ptr, codes_ptr, scales_ptr, supers_ptr, row, output, mask, x_stride, num_rows,
               begin, end, num_groups, BITS: tl.constexpr, ZERO: tl.constexpr,
               HAS_MIN: tl.constexpr, TWO_LEVEL: tl.constexpr, HALVES: tl.constexpr,
               TILE_OUTPUTS: tl.constexpr, ROW_TILE: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
               UPCAST: tl.constexpr, ASM_LOW: tl.constexpr, ASM_HIGH: tl.constexpr,
               STAGES: tl.constexpr):  # fmt: skip
    """(outputs, rows) float32: the sum over the runs [begin, end), of one or two groups each."""
    RUN: tl.constexpr = 8 // BITS
    dtype: tl.constexpr = tl.float32 if UPCAST else x_ptr.dtype.element_ty
    tile, inside = output // TILE_OUTPUTS, output % TILE_OUTPUTS
    k = tl.arange(0, 32)
    num_runs = (num_groups + RUN - 1) // RUN
    codes_ptr += (tile.to(tl.int64) * num_runs * TILE_OUTPUTS + inside)[:, None] * 32 + k[None, :]
    x_ptr += row.to(tl.int64)[None, :] * x_stride + k[:, None]
    x_mask = tl.broadcast_to((row < num_rows)[None, :], (32, ROW_TILE))
    code_mask = tl.broadcast_to(mask[:, None], (BLOCK_OUTPUTS, 32))
    acc = tl.zeros((BLOCK_OUTPUTS, ROW_TILE), tl.float32)
    # The compiler keeps what a product reads in flight for several turns; the numbers of a group
    # are read a turn ahead by hand.
    first = begin * RUN
    scale, scale_high, minimum = _group_numbers(
        scales_ptr, supers_ptr, tile, first, num_groups, inside, mask & (first < num_groups),
        HAS_MIN, TWO_LEVEL, HALVES, TILE_OUTPUTS,
    )  # fmt: skip
    odd_scale, odd_high, odd_minimum = scale, scale_high, minimum
    if RUN == 2:
        odd_scale, odd_high, odd_minimum = _group_numbers(
            scales_ptr, supers_ptr, tile, first + 1, num_groups, inside,
            mask & (first + 1 < num_groups), HAS_MIN, TWO_LEVEL, HALVES, TILE_OUTPUTS,
        )  # fmt: skip
    for run in tl.range(begin, end, num_stages=STAGES):
        following = (run + 1) * RUN
        next_scale, next_high, next_minimum = _group_numbers(
            scales_ptr, supers_ptr, tile, following, num_groups, inside,
            mask & (following < num_groups), HAS_MIN, TWO_LEVEL, HALVES, TILE_OUTPUTS,
        )  # fmt: skip
        at = x_ptr + run * (32 * RUN)
        x = tl.load(at, mask=x_mask, other=0.0).to(dtype)
        codes = tl.load(codes_ptr + run * (TILE_OUTPUTS * 32), mask=code_mask, other=0)
        if RUN == 1:
            acc = _add_group(acc, codes.to(dtype), x, at, x_mask, scale, scale_high, minimum,
                             HAS_MIN, HALVES)  # fmt: skip
        else:
            even, odd = _unpack(codes, x, ZERO, ASM_LOW, ASM_HIGH)
            acc = _add_group(acc, even, x, at, x_mask, scale, scale_high, minimum, HAS_MIN,
                             HALVES)  # fmt: skip
            # There may be no odd group in the last run.
            odd_mask = x_mask & (run * 2 + 1 < num_groups)
            x = tl.load(at + 32, mask=odd_mask, other=0.0).to(dtype)
            acc = _add_group(acc, odd, x, at + 32, odd_mask, odd_scale, odd_high, odd_minimum,
                             HAS_MIN, HALVES)  # fmt: skip
            odd_scale, odd_high, odd_minimum = _group_numbers(
                scales_ptr, supers_ptr, tile, following + 1, num_groups, inside,
                mask & (following + 1 < num_groups), HAS_MIN, TWO_LEVEL, HALVES, TILE_OUTPUTS,
            )  # fmt: skip
        scale, scale_high, minimum = next_scale, next_high, next_minimum
    return acc
