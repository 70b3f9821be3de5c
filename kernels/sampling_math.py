"""Device functions that the sampler's two launches share: exp, random numbers, the end of a row."""

from __future__ import annotations

import triton
import triton.language as tl

from .sampling_state import BETA, HALT, NUM_FLOATS, NUM_INTS, PASS, SEED, STREAM, THETA, TokenFlag

TABLE_FLAGS = tl.constexpr(int(TokenFlag.TABLE))
BELOW_BETA = tl.constexpr(int(TokenFlag.BELOW_BETA))
BELOW_THETA = tl.constexpr(int(TokenFlag.BELOW_THETA))
INVALID = tl.constexpr(int(TokenFlag.INVALID))
FULL = tl.constexpr(int(TokenFlag.FULL))
MAY_END = tl.constexpr(int(TokenFlag.MAY_END))
SETTLES = tl.constexpr(int(TokenFlag.SETTLES))
LOOKED = tl.constexpr(int(TokenFlag.LOOKED))

LOG2_E = tl.constexpr(1.4426950408889634)
# Weights are summed as 64-bit integers in units of 2^-42: integer sums have no order, so no layout
# that the compiler may choose and no split changes a bit of them. 2^18 weights of 1 stay below
# 2^60.
ONE = tl.constexpr(float(1 << 42))
# Stands for the weight of a NaN: whatever else a chunk of 1024 holds, its sum is negative.
NAN_WEIGHT = tl.constexpr(-(1 << 52))
# ln 2 in two parts; k * LN2_HIGH is exact for every k that occurs, so only the small part rounds.
LN2_HIGH = tl.constexpr(0.693145751953125)
LN2_LOW = tl.constexpr(1.428606820309417e-06)


@triton.jit
def _exp(x):
    """exp(x) for x <= 0 to about one unit in the last place, 0 below -87; NaN stays NaN.

    Only fused multiply-adds, so that every kernel that calls it gets the same bits: Taylor's
    polynomial of degree 7 on |r| <= ln(2) / 2 (error 5e-9), times 2^k.
    """
    z = tl.where(x < -87.0, -87.0, x)
    k = tl.floor(tl.fma(z, LOG2_E, 0.5))
    r = tl.fma(k, -LN2_HIGH, z)
    r = tl.fma(k, -LN2_LOW, r)
    p = tl.fma(r, 1.0 / 5040.0, 1.0 / 720.0)
    p = tl.fma(p, r, 1.0 / 120.0)
    p = tl.fma(p, r, 1.0 / 24.0)
    p = tl.fma(p, r, 1.0 / 6.0)
    p = tl.fma(p, r, 0.5)
    p = tl.fma(p, r, 1.0)
    p = tl.fma(p, r, 1.0)
    exponent = tl.where(k == k, k, 0.0).to(tl.int32) + 127
    return tl.where(x < -87.0, 0.0, p * (exponent << 23).to(tl.float32, bitcast=True))


@triton.jit
def _fixed_weight(x, top, inverse):
    """exp((x - top) * inverse) as an integer, NAN_WEIGHT where that is NaN."""
    weight = _exp((x - top) * inverse)
    is_number = weight == weight
    return tl.where(is_number, (tl.where(is_number, weight, 0.0) * ONE).to(tl.int64), NAN_WEIGHT)


@triton.jit
def _inverse_temperature(temperature):
    """1 / temperature, 1 for greedy rows; bounded, so that 0 times it is 0."""
    safe = tl.where(temperature > 0.0, temperature, 1.0)
    return tl.minimum(tl.div_rn(1.0, safe), 1e30)


@triton.jit
def _uniform(ints_ptr, row, position):
    """The row's random number for the token after `position`: philox_uniform of philox.h."""
    seed = tl.load(ints_ptr + row * NUM_INTS + SEED)
    stream = tl.load(ints_ptr + row * NUM_INTS + STREAM).to(tl.uint32)
    pass_index = tl.load(ints_ptr + row * NUM_INTS + PASS).to(tl.uint32)
    bits, _, _, _ = tl.philox(seed, (position + 1).to(tl.uint32), stream, pass_index, 0)
    return ((bits >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)


@triton.jit
def _is_idle(positions_ptr, flags_ptr, ints_ptr, row):
    """Whether a row is padding or has halted."""
    halt = tl.load(ints_ptr + row * NUM_INTS + HALT).to(tl.int32)
    halted = (tl.load(flags_ptr + row) & halt) != 0
    return (tl.load(positions_ptr + row) < 0) | halted


@triton.jit
def _finish_row(
    row,
    token,
    raw_top,
    raw_sum,
    valid,
    logits_ptr,
    logits_stride,
    token_flags_ptr,
    floats_ptr,
    positions_ptr,
    tokens_ptr,
    flags_ptr,
    num_sampled_ptr,
    min_prob_ptr,
    history_tokens_ptr,
    history_probs_ptr,
    history_flags_ptr,
    capacity,
    ADVANCE: tl.constexpr,
):
    """Write the chosen token, its confidence and flags, and move the row's state on."""
    raw = tl.load(logits_ptr + row * logits_stride + token).to(tl.float32)
    # raw_sum is in the units of the weights, as float64.
    prob = (_exp(tl.where(valid, raw - raw_top, 0.0)) * ONE).to(tl.float64) / raw_sum
    prob = tl.where(valid, prob, 0.0).to(tl.float32)
    bits = tl.load(token_flags_ptr + token).to(tl.int32) & TABLE_FLAGS
    beta = tl.load(floats_ptr + row * NUM_FLOATS + BETA)
    theta = tl.load(floats_ptr + row * NUM_FLOATS + THETA)
    bits |= tl.where(prob < beta, BELOW_BETA, 0)
    bits |= tl.where(prob < theta, BELOW_THETA, 0)
    bits |= tl.where(valid, 0, INVALID)

    step = tl.load(num_sampled_ptr + row)
    has_room = step < capacity
    at = row * capacity + step
    tl.store(history_tokens_ptr + at, token, mask=has_room)
    tl.store(history_probs_ptr + at, prob, mask=has_room)
    tl.store(history_flags_ptr + at, bits.to(tl.uint8), mask=has_room)
    before = tl.load(flags_ptr + row)
    looked = ((before & MAY_END) != 0) & ((bits & SETTLES) != 0)
    bits |= tl.where(step + 1 >= capacity, FULL, 0) | tl.where(looked, LOOKED, 0)
    tl.store(num_sampled_ptr + row, tl.minimum(step + 1, capacity))
    tl.store(flags_ptr + row, before | bits)
    tl.store(min_prob_ptr + row, tl.minimum(tl.load(min_prob_ptr + row), prob))
    tl.store(tokens_ptr + row, token)
    if ADVANCE:
        tl.store(positions_ptr + row, tl.load(positions_ptr + row) + 1)
