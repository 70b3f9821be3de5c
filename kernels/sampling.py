"""Fused sampler: from logits to token, confidence, running minimum, mask bit and flags.

One launch for greedy and temperature rows, a second one only if a row filters (top-k, top-p, min-p;
sampling_filters.py). The vocabulary is split over many programs, so that a single row uses the
whole chip; the last program of a row to arrive joins the chunks in ascending order and finishes the
row.

Choice. Greedy: the largest logit, ties to the lowest id. Otherwise the inverse of the cumulative
distribution in id order: the first id whose cumulative weight exceeds u * total, weights exp((l -
max) / temperature) summed as integers, u from Philox keyed by (seed, stream, position, pass) as in
csrc/common/philox.h. Confidence: softmax of the raw logits at temperature 1.

The chunk size is fixed and weights are summed as integers, so a row gives the same bits alone and
in any batch, with and without the second launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .checks import FLOAT_DTYPES, ceil_div, check_tensor, next_power_of_2, require
from .sampling_chunks import _draw, _join_chunks, _leave_chunk
from .sampling_filters import _candidate_threshold, _is_filtered, launch_filters
from .sampling_math import _finish_row, _inverse_temperature, _is_idle, _uniform
from .sampling_state import (
    CHUNK,
    GROUPS,
    NUM_FLOATS,
    TEMPERATURE,
    SamplerState,
    SamplerWorkspace,
    TokenFlag,
)

__all__ = ["SamplerState", "SamplerWorkspace", "TokenFlag", "sample"]


@triton.jit
def _leave_to_filters(row, top, raw_top, raw_sum, total, threshold, row_stats_ptr, counters_ptr):
    """What the second launch needs of the row, and that it is to finish it."""
    stats = row_stats_ptr + row * 5
    tl.store(stats, top.to(tl.float64))
    tl.store(stats + 1, raw_top.to(tl.float64))
    tl.store(stats + 2, raw_sum)
    tl.store(stats + 3, total.to(tl.float64))
    tl.store(stats + 4, threshold.to(tl.float64))
    tl.store(counters_ptr + row * 4 + 3, 1)


@triton.jit
def _sample_kernel(
    logits_ptr,  # (num_rows, vocab_size) raw
    choice_ptr,  # (num_rows, vocab_size) to choose from; logits_ptr without HAS_CHOICE
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
    chunk_max_ptr,
    chunk_sum_ptr,
    chunk_arg_ptr,
    group_max_ptr,
    counters_ptr,
    row_stats_ptr,
    vocab_size,
    capacity,
    CHUNK: tl.constexpr,
    GROUPS: tl.constexpr,
    CHUNKS_POW2: tl.constexpr,
    HAS_CHOICE: tl.constexpr,
    HAS_FILTERS: tl.constexpr,
    ADVANCE: tl.constexpr,
):
    chunk = tl.program_id(0)
    num_chunks = tl.num_programs(0)
    row = tl.program_id(1).to(tl.int64)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = ids < vocab_size
    choice_row = choice_ptr + row * choice_stride
    # Issued before the settings are known, so that both loads are under way at once.
    x = tl.load(choice_row + ids, mask=inside, other=float("-inf")).to(tl.float32)
    if _is_idle(positions_ptr, flags_ptr, ints_ptr, row):
        return
    temperature = tl.load(floats_ptr + row * NUM_FLOATS + TEMPERATURE)
    inverse = _inverse_temperature(temperature)
    raw = x
    if HAS_CHOICE:
        raw_at = logits_ptr + row * logits_stride + ids
        raw = tl.load(raw_at, mask=inside, other=float("-inf")).to(tl.float32)
    _leave_chunk(x, raw, ids, inverse, row * num_chunks + chunk, vocab_size, chunk_max_ptr,
                 chunk_sum_ptr, chunk_arg_ptr, group_max_ptr, CHUNK, GROUPS,
                 HAS_FILTERS)  # fmt: skip

    # All threads' stores come before the one thread's release; its acquire before their loads.
    tl.debug_barrier()
    arrived = tl.atomic_add(counters_ptr + row * 4, 1, sem="acq_rel", scope="gpu")
    if arrived == num_chunks - 1:
        tl.store(counters_ptr + row * 4, 0)
        top, raw_top, sums, total, raw_sum, token, valid = _join_chunks(
            row, num_chunks, inverse, vocab_size, chunk_max_ptr, chunk_sum_ptr, chunk_arg_ptr,
            CHUNKS_POW2)  # fmt: skip
        unfinished = False
        if HAS_FILTERS:
            unfinished = valid & _is_filtered(floats_ptr, ints_ptr, row)
        if unfinished:
            threshold = _candidate_threshold(
                floats_ptr, ints_ptr, group_max_ptr + row * num_chunks * GROUPS, row, top, total,
                temperature, vocab_size, num_chunks * GROUPS, GROUPS * CHUNKS_POW2)  # fmt: skip
            _leave_to_filters(row, top, raw_top, raw_sum, total, threshold, row_stats_ptr,
                              counters_ptr)  # fmt: skip
        else:
            if valid & (temperature > 0.0):
                u = _uniform(ints_ptr, row, tl.load(positions_ptr + row))
                token = _draw(choice_row, sums, total, top, inverse, u, vocab_size, CHUNK,
                              CHUNKS_POW2)  # fmt: skip
            _finish_row(
                row, token, raw_top, raw_sum, valid, logits_ptr, logits_stride, token_flags_ptr,
                floats_ptr, positions_ptr, tokens_ptr, flags_ptr, num_sampled_ptr, min_prob_ptr,
                history_tokens_ptr, history_probs_ptr, history_flags_ptr, capacity, ADVANCE,
            )  # fmt: skip


def sample(
    logits: torch.Tensor,
    token_flags: torch.Tensor,
    state: SamplerState,
    workspace: SamplerWorkspace,
    *,
    choice_logits: torch.Tensor | None = None,
    advance: bool = True,
    filters: bool | None = None,
) -> None:
    """Sample one token per row and move `state` on, without touching the host.

    Parameters
    ----------
    logits
        (num_rows, vocab_size) float32, float16 or bfloat16, raw; rows may be strided. -inf is
        allowed; rows with NaN, +inf or nothing finite give TokenFlag.INVALID and confidence 0.
    token_flags
        (vocab_size) uint8: TokenFlag bits of each token.
    state
        Of num_rows rows.
    workspace
        For at least num_rows rows of vocab_size logits.
    choice_logits
        Like `logits`: what to choose from, after penalties and bias; `logits` by default. The
        confidence always comes from `logits`.
    advance
        Also add 1 to `state.positions`; False for rows whose positions the caller sets anew.
    filters
        Whether to launch the second kernel, as a captured graph must know; by default only if a row
        of `state` filters.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit, or `filters` is False although a row filters.
    """
    check_tensor("logits", logits, (state.num_rows, None), FLOAT_DTYPES, strided_dims=1)
    num_rows, vocab_size = logits.shape
    device = logits.device
    require(
        vocab_size == workspace.vocab_size,
        f"logits must have the workspace's {workspace.vocab_size} columns, got {vocab_size}",
    )
    workspace.check(num_rows, device)
    check_tensor("token_flags", token_flags, (vocab_size,), (torch.uint8,), device)
    check_tensor("state.positions", state.positions, (num_rows,), (torch.int32,), device)
    if choice_logits is not None:
        check_tensor(
            "choice_logits", choice_logits, logits.shape, FLOAT_DTYPES, device, strided_dims=1
        )
    filters = state.has_filters if filters is None else filters
    require(
        filters or not state.has_filters,
        "filters=False, but a row uses top_k, top_p or min_p; pass filters=True",
    )
    choice = logits if choice_logits is None else choice_logits
    num_chunks = ceil_div(vocab_size, CHUNK)
    _sample_kernel[(num_chunks, num_rows)](
        logits, choice, logits.stride(0), choice.stride(0), token_flags,
        *state_tensors(state),
        workspace.chunk_max, workspace.chunk_sum, workspace.chunk_arg, workspace.group_max,
        workspace.counters, workspace.row_stats,
        vocab_size, state.history_tokens.shape[1],
        HAS_CHOICE=choice_logits is not None,
        HAS_FILTERS=filters,
        ADVANCE=advance,
        **sample_constants(num_chunks),
    )  # fmt: skip
    if filters:
        launch_filters(
            logits, choice, token_flags, state_tensors(state), workspace, num_chunks, advance
        )


def sample_constants(num_chunks: int) -> dict[str, int]:
    """Compile-time constants and launch options of the sampler kernel that the shape decides."""
    return {
        "CHUNK": CHUNK,
        "GROUPS": GROUPS,
        "CHUNKS_POW2": max(16, next_power_of_2(num_chunks)),
        "num_warps": 4,
    }


def state_tensors(state: SamplerState) -> tuple[torch.Tensor, ...]:
    """The state's tensors in the order of the kernels' parameters."""
    return (
        state.floats, state.ints, state.positions, state.tokens, state.flags, state.num_sampled,
        state.min_prob, state.history_tokens, state.history_probs, state.history_flags,
    )  # fmt: skip
