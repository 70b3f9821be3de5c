"""The inner loop of quantized_product.py: codes times activations, group by group.

At the bandwidth of an H100 there is time for about four instructions a weight of 4 bits, and six of
8: the loop was written by counting what it compiles to (3.5, with a minimum 5; 4.3 for 8 bits). A
program has two warps, because with four the compiler takes warp-group products, which need twice
the instructions to bring unpacked codes into place.
"""

from __future__ import annotations

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


def unpack_asm(is_bfloat16: bool, zero: int, is_high: bool) -> str:
    """PTX of `_UNPACK` for the low or the high nibbles of $2."""
    base, one, minus = (0x4300, 0x3F80, 0xC300) if is_bfloat16 else (0x6400, 0x3C00, 0xE400)
    return _UNPACK.format(
        one=f"{one * 0x10001:#x}", offset=f"{(minus + zero) * 0x10001:#x}",
        exponent=f"{(base >> 8) * 0x01010101:#x}", kind="bf16x2" if is_bfloat16 else "f16x2",
        shift="shr.u32 nibbles, $2, 4;" if is_high else "mov.b32 nibbles, $2;")  # fmt: skip


@triton.jit
def _halves(codes_ptr, mask, x, BITS: tl.constexpr, ZERO: tl.constexpr, HALF: tl.constexpr,
            ASM_LOW: tl.constexpr, ASM_HIGH: tl.constexpr):  # fmt: skip
    """Codes of inputs 0..15 and 16..31 of a group, both (outputs, 16) of the type of `x`."""
    if BITS == 8:
        low = tl.load(codes_ptr, mask=mask, other=0).to(x.dtype)
        high = tl.load(codes_ptr + HALF, mask=mask, other=0).to(x.dtype)
    else:
        both = tl.load(codes_ptr, mask=mask, other=0)
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
def _split_sum(x_ptr, codes_ptr, scales_ptr, supers_ptr, row, output, mask, x_stride, num_rows,
               begin, end, num_groups, BITS: tl.constexpr, ZERO: tl.constexpr,
               HAS_MIN: tl.constexpr, TWO_LEVEL: tl.constexpr, HALVES: tl.constexpr,
               TILE_OUTPUTS: tl.constexpr, ROW_TILE: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
               UPCAST: tl.constexpr, ASM_LOW: tl.constexpr, ASM_HIGH: tl.constexpr,
               STAGES: tl.constexpr):  # fmt: skip
    """(outputs, rows) float32: the sum over the groups [begin, end)."""
    shape: tl.constexpr = (BLOCK_OUTPUTS, ROW_TILE)
    dtype: tl.constexpr = tl.float32 if UPCAST else x_ptr.dtype.element_ty
    HALF: tl.constexpr = TILE_OUTPUTS * 16
    GROUP_BYTES: tl.constexpr = HALF if BITS == 4 else 2 * HALF
    tile, inside = output // TILE_OUTPUTS, output % TILE_OUTPUTS
    k = tl.arange(0, 16)
    codes_ptr += (tile.to(tl.int64) * num_groups * GROUP_BYTES + inside * 16)[:, None] + k[None, :]
    x_ptr += row.to(tl.int64)[None, :] * x_stride + k[:, None]
    x_mask = tl.broadcast_to((row < num_rows)[None, :], (16, ROW_TILE))
    code_mask = tl.broadcast_to(mask[:, None], (BLOCK_OUTPUTS, 16))
    acc = tl.zeros(shape, tl.float32)
    ones = tl.full((BLOCK_OUTPUTS, 16), 1.0, dtype)
    # The compiler keeps what a product reads in flight for several turns; the numbers of a group
    # are read a turn ahead by hand.
    scale, scale_high, minimum = _group_numbers(
        scales_ptr, supers_ptr, tile, tl.minimum(begin, num_groups - 1), num_groups, inside, mask,
        HAS_MIN, TWO_LEVEL, HALVES, TILE_OUTPUTS,
    )  # fmt: skip
    for group in tl.range(begin, end, num_stages=STAGES):
        next_scale, next_high, next_minimum = _group_numbers(
            scales_ptr, supers_ptr, tile, tl.minimum(group + 1, end - 1), num_groups, inside, mask,
            HAS_MIN, TWO_LEVEL, HALVES, TILE_OUTPUTS,
        )  # fmt: skip
        x_low = tl.load(x_ptr + group * 32, mask=x_mask, other=0.0).to(dtype)
        x_high = tl.load(x_ptr + group * 32 + 16, mask=x_mask, other=0.0).to(dtype)
        low, high = _halves(codes_ptr + group * GROUP_BYTES, code_mask, x_low, BITS, ZERO, HALF,
                            ASM_LOW, ASM_HIGH)  # fmt: skip
        part = tl.dot(low, x_low, input_precision="ieee")
        if HALVES:
            acc = tl.fma(part, tl.broadcast_to(scale[:, None], shape), acc)
            part = tl.dot(high, x_high, input_precision="ieee")
        else:
            part = tl.dot(high, x_high, part, input_precision="ieee")
        acc = tl.fma(part, tl.broadcast_to(scale_high[:, None], shape), acc)
        if HAS_MIN:
            # Loads of their own, and not merged with those above thanks to the hint: what two kinds
            # of products share, the compiler does not keep in flight.
            at = x_ptr + group * 32
            x_low = tl.load(at, mask=x_mask, other=0.0, eviction_policy="evict_last").to(dtype)
            x_high = tl.load(at + 16, mask=x_mask, other=0.0, eviction_policy="evict_last").to(dtype)
            part = tl.dot(ones, x_low, input_precision="ieee")
            part = tl.dot(ones, x_high, part, input_precision="ieee")
            acc = tl.fma(part, tl.broadcast_to(minimum[:, None], shape), acc)
        scale, scale_high, minimum = next_scale, next_high, next_minimum
    return acc
