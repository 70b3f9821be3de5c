"""The sampler's first launch, part by part: what a program leaves of its chunk, how the last one of
a row joins the chunks, and the draw in the order of the ids.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .sampling_math import _exp, _fixed_weight


@triton.jit
def _weigh(x, inverse):
    """Largest value of a chunk and the fixed-point sum of exp((x - largest) * inverse)."""
    top = tl.max(x, axis=0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    return top, tl.sum(_fixed_weight(x, shift, inverse), axis=0)


@triton.jit
def _rescaled(sums, tops, top, inverse):
    """Sums relative to their chunk's largest logit -> relative to the row's."""
    shift = tl.where(top == float("-inf"), 0.0, top)
    scale = _exp((tops - shift) * inverse)
    scale = tl.where(scale == scale, scale, 0.0)
    return (sums.to(tl.float64) * scale.to(tl.float64)).to(tl.int64)


@triton.jit
def _leave_chunk(x, raw, ids, inverse, at, vocab_size, chunk_max_ptr, chunk_sum_ptr, chunk_arg_ptr,
                 group_max_ptr, CHUNK: tl.constexpr, GROUPS: tl.constexpr,
                 HAS_FILTERS: tl.constexpr):  # fmt: skip
    """Statistics of chunk `at` into the workspace: maxima, sums of weights, the first largest."""
    top, weight = _weigh(x, inverse)
    raw_top, raw_weight = _weigh(raw, 1.0)
    tl.store(chunk_max_ptr + at * 2, top)
    tl.store(chunk_max_ptr + at * 2 + 1, raw_top)
    tl.store(chunk_sum_ptr + at * 2, weight)
    tl.store(chunk_sum_ptr + at * 2 + 1, raw_weight)
    tl.store(chunk_arg_ptr + at, tl.min(tl.where(x == top, ids, vocab_size), axis=0))
    if HAS_FILTERS:
        group_max = tl.max(tl.reshape(x, (GROUPS, CHUNK // GROUPS)), axis=1)
        tl.store(group_max_ptr + at * GROUPS + tl.arange(0, GROUPS), group_max)


@triton.jit
def _join_chunks(row, num_chunks, inverse, vocab_size, chunk_max_ptr, chunk_sum_ptr, chunk_arg_ptr,
                 CHUNKS_POW2: tl.constexpr):  # fmt: skip
    """The row's (largest logit, largest raw one, sums of each chunk, their total, raw total, first
    token with the largest logit, whether it is a row of numbers).
    """
    index = tl.arange(0, CHUNKS_POW2)
    live = index < num_chunks
    ats = row * num_chunks + index
    low = float("-inf")
    # .cg: other programs wrote these through L2; a stale L1 line must not answer.
    tops = tl.load(chunk_max_ptr + ats * 2, live, low, cache_modifier=".cg")
    raw_tops = tl.load(chunk_max_ptr + ats * 2 + 1, live, low, cache_modifier=".cg")
    sums = tl.load(chunk_sum_ptr + ats * 2, live, 0, cache_modifier=".cg")
    raw_sums = tl.load(chunk_sum_ptr + ats * 2 + 1, live, 0, cache_modifier=".cg")
    args = tl.load(chunk_arg_ptr + ats, live, vocab_size, cache_modifier=".cg")

    top = tl.max(tops, axis=0)
    raw_top = tl.max(raw_tops, axis=0)
    # NaN and +inf make a sum negative, and a row of -inf sums to 0.
    valid = tl.min(tl.minimum(sums, raw_sums), axis=0) >= 0
    sums = _rescaled(sums, tops, top, inverse)
    total = tl.sum(sums, axis=0)
    raw_total = tl.sum(_rescaled(raw_sums, raw_tops, raw_top, 1.0), axis=0)
    valid = valid & (total > 0) & (raw_total > 0)
    raw_sum = tl.where(valid, raw_total, 1).to(tl.float64)
    token = tl.min(tl.where(tops == top, args, vocab_size), axis=0)
    token = tl.where(token < vocab_size, token, 0)
    return top, raw_top, sums, total, raw_sum, token, valid


@triton.jit
def _draw(choice_ptr, sums, total, top, inverse, u, vocab_size, CHUNK: tl.constexpr,
          CHUNKS_POW2: tl.constexpr):  # fmt: skip
    """First id whose cumulative weight exceeds u * total; choice_ptr is the row's."""
    # Integers: weight > u * total  <=>  weight >= floor(u * total) + 1, and u * total < total.
    goal = tl.floor(u.to(tl.float64) * total.to(tl.float64)).to(tl.int64) + 1
    index = tl.arange(0, CHUNKS_POW2)
    cumulative = tl.cumsum(sums, axis=0)
    chunk = tl.min(tl.where(cumulative >= goal, index, CHUNKS_POW2 - 1), axis=0)
    before = tl.sum(tl.where(index == chunk, cumulative - sums, 0), axis=0)

    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(choice_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    weights = _fixed_weight(x, top, inverse)
    reached = before + tl.cumsum(weights, axis=0) >= goal
    # The chunk's own sum was rounded otherwise; should nothing reach the goal, the last one does.
    last = tl.max(tl.where(weights > 0, ids, 0), axis=0)
    return tl.min(tl.where(reached, ids, last), axis=0)
