"""The sampler's second launch: top-k, then top-p, then min-p, then the draw.

All three filters keep a prefix of the tokens in the order (logit descending, id ascending), so no
sort is needed: a token is packed into one integer that orders the same way, and every question
("the k-th token", "the shortest prefix with this mass", "the token at this cumulative weight") is
the largest packed value whose tokens at or above it reach a goal, found by bisection.

The first launch leaves a logit below which no filter can keep anything. Here every program packs
its chunk's tokens above it into a list, in whatever order they arrive, and the last one bisects.
Weights are fixed-point integers, whose sums do not depend on the order, so the result does not
either. A row with more candidates than the list holds is bisected over its logits directly, with
the same result.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .sampling_math import ONE, _finish_row, _fixed_weight, _inverse_temperature, _uniform
from .sampling_state import (
    CHUNK,
    MIN_P,
    NUM_FLOATS,
    NUM_INTS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    SamplerWorkspace,
)

TILE = 2048  # candidates that the last program looks at together
ID_BITS = tl.constexpr(18)
LAST_ID = tl.constexpr((1 << 18) - 1)
LOWEST = tl.constexpr(-(1 << 62))
HIGHEST = tl.constexpr(1 << 62)


@triton.jit
def _is_filtered(floats_ptr, ints_ptr, row):
    """Whether a filter is on, even one that drops nothing: the draw's order depends on it."""
    top_k = tl.load(ints_ptr + row * NUM_INTS + TOP_K)
    top_p = tl.load(floats_ptr + row * NUM_FLOATS + TOP_P)
    min_p = tl.load(floats_ptr + row * NUM_FLOATS + MIN_P)
    some = (top_k > 0) | (top_p < 1.0) | (min_p > 0.0)
    return some & (tl.load(floats_ptr + row * NUM_FLOATS + TEMPERATURE) > 0.0)


@triton.jit
def _order_key(x):
    """float32 -> int32 with the same order; -0 and 0 are equal."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def _key_value(key):
    """Inverse of _order_key."""
    return tl.where(key >= 0, key, key ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _candidate_threshold(floats_ptr, ints_ptr, group_max_ptr, row, top, total, temperature,
                         vocab_size, num_groups, GROUPS_POW2: tl.constexpr):  # fmt: skip
    """A logit such that every token the row's filters may need is at or above it.

    min-p keeps weights of at least min_p. Weights below w hold at most vocab_size * w together, so
    top-p needs none of them once that is less than (1 - top_p) * total. k groups with a maximum at
    or above a value show that the k-th largest logit is at or above it too. Top-p counts the mass
    of top-k's tokens, so with both all k are needed.
    """
    top_k = tl.load(ints_ptr + row * NUM_INTS + TOP_K)
    top_p = tl.load(floats_ptr + row * NUM_FLOATS + TOP_P)
    min_p = tl.load(floats_ptr + row * NUM_FLOATS + MIN_P)
    has_top_k = (top_k > 0) & (top_k < vocab_size)
    threshold = float("-inf")
    # The margins, in units of the exponent, are far above what log and the sums may round.
    if (min_p > 0.0) & ((top_p >= 1.0) | (not has_top_k)):
        threshold = top + (tl.log(min_p) - 0.01) * temperature
    if (top_p < 1.0) & (not has_top_k):
        spare = (1.0 - top_p) * (total.to(tl.float32) / ONE) / vocab_size
        threshold = tl.maximum(threshold, top + (tl.log(spare) - 0.1) * temperature)
    if has_top_k:
        index = tl.arange(0, GROUPS_POW2)
        live = index < num_groups
        groups = tl.load(group_max_ptr + index, live, float("-inf"), cache_modifier=".cg")
        keys = _order_key(groups)
        # 64 bits: the distance of two keys need not fit into 32.
        low = tl.min(tl.where(groups > float("-inf"), keys, 0x7F800000), axis=0).to(tl.int64)
        if tl.sum((groups > float("-inf")).to(tl.int32), axis=0) >= top_k:
            high = _order_key(top).to(tl.int64) + 1
            # Any stop gives a valid bound; 12 halvings leave it close to the k-th maximum.
            for _ in range(12):
                middle = low + (high - low) // 2
                enough = tl.sum((keys >= middle).to(tl.int32), axis=0) >= top_k
                low = tl.where(enough, middle, low)
                high = tl.where(enough, high, middle)
            threshold = tl.maximum(threshold, _key_value(low.to(tl.int32)))
    return threshold


@triton.jit
def _pack(x, ids):
    """One integer that orders like (x ascending, id descending)."""
    return (_order_key(x).to(tl.int64) << ID_BITS) + (ids ^ LAST_ID)


@triton.jit
def _load_tile(source_ptr, weights_ptr, begin, count, top, inverse, FROM_LIST: tl.constexpr,
               TILE: tl.constexpr):  # fmt: skip
    """Packed tokens and weights of one tile, from the list of candidates or from the logits."""
    index = begin + tl.arange(0, TILE)
    inside = index < count
    if FROM_LIST:
        packed = tl.load(source_ptr + index, inside, LOWEST)
        weight = tl.load(weights_ptr + index, inside, 0)
    else:
        x = tl.load(source_ptr + index, inside, float("-inf")).to(tl.float32)
        packed = tl.where(x > float("-inf"), _pack(x, index), LOWEST)
        weight = _fixed_weight(x, top, inverse)
    return packed, weight


@triton.jit
def _largest_reaching(source_ptr, weights_ptr, count, top, inverse, low, high, goal,
                      BY_COUNT: tl.constexpr, FROM_LIST: tl.constexpr,
                      TILE: tl.constexpr):  # fmt: skip
    """Largest packed value in [low, high) whose tokens at or above it amount to `goal` (>= 1).

    `low` is taken to reach it. Amounts are numbers of tokens or sums of weights. The bounds snap to
    tokens, so that the number of steps is about the logarithm of the number of tokens between them.
    """
    while high - low > 1:
        middle = low + (high - low) // 2
        amount = tl.zeros((TILE,), tl.int64)
        next_above = tl.full((TILE,), HIGHEST, tl.int64)
        next_below = tl.full((TILE,), LOWEST, tl.int64)
        for begin in range(0, count, TILE):
            packed, weight = _load_tile(source_ptr, weights_ptr, begin, count, top, inverse,
                                        FROM_LIST, TILE)  # fmt: skip
            above = packed >= middle
            amount += tl.where(above, 1 if BY_COUNT else weight, 0)
            next_above = tl.minimum(next_above, tl.where(above, packed, HIGHEST))
            next_below = tl.maximum(next_below, tl.where(above, LOWEST, packed))
        if tl.sum(amount, axis=0) >= goal:
            low = tl.min(next_above, axis=0)
        else:
            high = tl.max(next_below, axis=0) + 1
    return low


@triton.jit
def _kept_mass(source_ptr, weights_ptr, count, top, inverse, cut, min_p, FROM_LIST: tl.constexpr,
               TILE: tl.constexpr):  # fmt: skip
    """Sum of weights at or above `cut`, and the lowest packed value that weighs at least min_p."""
    amount = tl.zeros((TILE,), tl.int64)
    lowest = tl.full((TILE,), HIGHEST, tl.int64)
    least = tl.maximum((min_p * ONE).to(tl.int64), 1)
    for begin in range(0, count, TILE):
        packed, weight = _load_tile(source_ptr, weights_ptr, begin, count, top, inverse, FROM_LIST,
                                    TILE)  # fmt: skip
        amount += tl.where(packed >= cut, weight, 0)
        lowest = tl.minimum(lowest, tl.where(weight >= least, packed, HIGHEST))
    return tl.sum(amount, axis=0), tl.min(lowest, axis=0)


@triton.jit
def _choose(source_ptr, weights_ptr, count, top, inverse, low, total, u, top_k, top_p, min_p,
            vocab_size, FROM_LIST: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """Apply the filters and draw a token id. `low` is a packed value below every candidate."""
    high = (_order_key(top).to(tl.int64) + 1) << ID_BITS
    cut = low
    whole = total
    if (top_k > 0) & (top_k < vocab_size):
        cut = _largest_reaching(source_ptr, weights_ptr, count, top, inverse, cut, high, top_k,
                                True, FROM_LIST, TILE)  # fmt: skip
        mass, _ = _kept_mass(source_ptr, weights_ptr, count, top, inverse, cut, min_p, FROM_LIST,
                             TILE)  # fmt: skip
        whole = mass.to(tl.float64)
    if top_p < 1.0:
        goal = tl.maximum(tl.ceil(top_p.to(tl.float64) * whole).to(tl.int64), 1)
        cut = _largest_reaching(source_ptr, weights_ptr, count, top, inverse, cut, high, goal,
                                False, FROM_LIST, TILE)  # fmt: skip
    if min_p > 0.0:
        _, lowest = _kept_mass(source_ptr, weights_ptr, count, top, inverse, cut, min_p, FROM_LIST,
                               TILE)  # fmt: skip
        cut = tl.maximum(cut, lowest)
    mass, _ = _kept_mass(source_ptr, weights_ptr, count, top, inverse, cut, min_p, FROM_LIST, TILE)
    # Integers: amount > u * mass  <=>  amount >= floor(u * mass) + 1, and u * mass < mass.
    goal = tl.floor(u.to(tl.float64) * mass.to(tl.float64)).to(tl.int64) + 1
    chosen = _largest_reaching(source_ptr, weights_ptr, count, top, inverse, cut, high, goal, False,
                               FROM_LIST, TILE)  # fmt: skip
    # Always a token's id; the bound keeps settings written past `configure` (NaN) in the row.
    return tl.minimum((chosen ^ LAST_ID) & LAST_ID, vocab_size - 1).to(tl.int32)


@triton.jit
def _filter_kernel(
    logits_ptr,  # (num_rows, vocab_size) raw
    choice_ptr,  # (num_rows, vocab_size) to choose from
    logits_stride,
    choice_stride,
    token_flags_ptr,  # (vocab_size) uint8
    floats_ptr,  # the state and workspace: see sampling_state.py
    ints_ptr,
    positions_ptr,
    tokens_ptr,
    flags_ptr,
    num_sampled_ptr,
    min_prob_ptr,
    history_tokens_ptr,
    history_probs_ptr,
    history_flags_ptr,
    counters_ptr,
    row_stats_ptr,
    candidates_ptr,
    weights_ptr,
    vocab_size,
    capacity,
    candidate_capacity,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    ADVANCE: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    counters = counters_ptr + row * 4
    if tl.load(counters + 3) == 0:
        return
    stats = row_stats_ptr + row * 5
    top = tl.load(stats).to(tl.float32)
    threshold = tl.load(stats + 4).to(tl.float32)
    inverse = _inverse_temperature(tl.load(floats_ptr + row * NUM_FLOATS + TEMPERATURE))
    choice_row = choice_ptr + row * choice_stride
    candidates = candidates_ptr + row * candidate_capacity
    weights = weights_ptr + row * candidate_capacity

    ids = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(choice_row + ids, ids < vocab_size, float("-inf")).to(tl.float32)
    wanted = (x >= threshold) & (x > float("-inf"))
    rank = tl.cumsum(wanted.to(tl.int32), axis=0)
    num_wanted = tl.max(rank, axis=0)
    if num_wanted > 0:
        first = tl.atomic_add(counters + 2, num_wanted, sem="relaxed", scope="gpu")
        slot = first + rank - 1
        stored = wanted & (slot < candidate_capacity)
        tl.store(candidates + slot, _pack(x, ids), mask=stored)
        tl.store(weights + slot, _fixed_weight(x, top, inverse), mask=stored)

    # All threads' stores come before the one thread's release; its acquire before their loads.
    tl.debug_barrier()
    arrived = tl.atomic_add(counters + 1, 1, sem="acq_rel", scope="gpu")
    if arrived == tl.num_programs(0) - 1:
        count = tl.load(counters + 2, cache_modifier=".cg")
        tl.store(counters + 1, 0)
        tl.store(counters + 2, 0)
        tl.store(counters + 3, 0)
        u = _uniform(ints_ptr, row, tl.load(positions_ptr + row))
        top_k = tl.load(ints_ptr + row * NUM_INTS + TOP_K)
        top_p = tl.load(floats_ptr + row * NUM_FLOATS + TOP_P)
        min_p = tl.load(floats_ptr + row * NUM_FLOATS + MIN_P)
        total = tl.load(stats + 3)
        low = _order_key(threshold).to(tl.int64) << ID_BITS
        if count <= candidate_capacity:
            token = _choose(candidates, weights, count, top, inverse, low, total, u, top_k, top_p,
                            min_p, vocab_size, True, TILE)  # fmt: skip
        else:
            token = _choose(choice_row, weights, vocab_size, top, inverse, low, total, u, top_k,
                            top_p, min_p, vocab_size, False, TILE)  # fmt: skip
        _finish_row(
            row, token, tl.load(stats + 1).to(tl.float32), tl.load(stats + 2), True, logits_ptr,
            logits_stride, token_flags_ptr, floats_ptr, positions_ptr, tokens_ptr, flags_ptr,
            num_sampled_ptr, min_prob_ptr, history_tokens_ptr, history_probs_ptr,
            history_flags_ptr, capacity, ADVANCE,
        )  # fmt: skip


def launch_filters(
    logits: torch.Tensor,
    choice: torch.Tensor,
    token_flags: torch.Tensor,
    state: tuple[torch.Tensor, ...],
    workspace: SamplerWorkspace,
    num_chunks: int,
    advance: bool,
) -> None:
    """Finish the rows that the first launch left; `sample` has checked the arguments."""
    _filter_kernel[(num_chunks, logits.shape[0])](
        logits, choice, logits.stride(0), choice.stride(0), token_flags, *state,
        workspace.counters, workspace.row_stats, workspace.candidates, workspace.candidate_weights,
        workspace.vocab_size, state[-1].shape[1], workspace.candidates.shape[1],
        ADVANCE=advance,
        **filter_constants(),
    )  # fmt: skip


def filter_constants() -> dict[str, int]:
    """Compile-time constants and launch options of the filter kernel."""
    return {"CHUNK": CHUNK, "TILE": TILE, "num_warps": 8}
