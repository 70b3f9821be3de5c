"""The reference sampler: the one function that fixes the kept set, filter order and ties.

It works step by step in float64 on the float32 logits a model gave, with the options rounded to
float32 as the native sampler takes them. The native sampler and the GPU kernels are tested against
it token for token.

1. confidences = softmax(logits): before anything below, at temperature 1.
2. adjusted = float32 logits after the repetition penalty (Keskar et al. 2019, arXiv 1909.05858,
   sign-aware: ``l / p`` for positive logits, ``l * p`` otherwise; once per distinct token id),
   then plus the bias. Each of the two steps is rounded to float32 once.
3. temperature 0: the largest adjusted logit; ties go to the lowest id.
4. otherwise candidates are ordered by (adjusted logit descending, id ascending) and weighted by
   exp((l - l_max) / temperature), and the filters cut that order, each to a prefix:
   top_k keeps the first k; top_p keeps the shortest prefix whose share of the weight that top_k
   left is >= top_p (Holtzman et al. 2020, arXiv 1904.09751: the token that crosses is kept);
   min_p keeps weights >= min_p * the largest (Nguyen et al. 2024, arXiv 2407.01082). The first
   candidate always stays.
5. The token is the first whose cumulative weight exceeds u * total, u from Philox: in id order
   when no filter is set, else in candidate order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flarecore.errors import ConfigError, FlarecoreError
from flarecore.reference.philox import philox_uniform

__all__ = ["Sampled", "adjust_logits", "confidences", "kept_candidates", "sample"]

FloatArray = npt.NDArray[np.floating]
Float64 = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sampled:
    """One sampled token.

    Attributes
    ----------
    token_id
        The chosen token.
    prob
        Its confidence: softmax of the raw logits at temperature 1.
    candidate_ids
        (n,) The kept tokens in the order in which they were drawn from; ``[token_id]`` if greedy.
    weights
        (n,) Their probabilities after all filters, summing to 1.
    margin
        How far the random number was from choosing a neighbour, as a share of the total weight:
        a sampler that computes in float32 may differ when this is below its rounding error.
    """

    token_id: int
    prob: float
    candidate_ids: IntArray
    weights: Float64
    margin: float


def confidences(logits: FloatArray) -> Float64:
    """Softmax of raw logits at temperature 1.

    Parameters
    ----------
    logits
        (..., V) -inf is allowed, all -inf is not.

    Returns
    -------
    ndarray
        (..., V) float64.

    Raises
    ------
    FlarecoreError
        If a logit is NaN or +inf, or every logit of a row is -inf.
    """
    wide = np.asarray(logits, dtype=np.float64)
    highest = wide.max(axis=-1, keepdims=True)
    if not np.isfinite(highest).all():
        raise FlarecoreError(
            f"the largest logit must be a finite number, got {highest.ravel()[:4]}: "
            "the model produced NaN or infinity"
        )
    weights = np.exp(wide - highest)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def adjust_logits(
    logits: FloatArray,
    *,
    repetition_penalty: float = 1.0,
    history: Iterable[int] = (),
    logit_bias: Mapping[int, float] | None = None,
) -> npt.NDArray[np.float32]:
    """Apply the repetition penalty, then the bias (step 2).

    Parameters
    ----------
    logits
        (V,)
    repetition_penalty
        1 is off.
    history
        Token ids of the sequence; repeats count once.
    logit_bias
        Added to the logit of each id named.

    Returns
    -------
    ndarray
        (V,) float32, a copy.
    """
    adjusted = np.array(logits, dtype=np.float32)
    if repetition_penalty != 1.0:
        penalty = np.float32(repetition_penalty)
        for token_id in set(history):
            value = adjusted[token_id]
            adjusted[token_id] = value / penalty if value > 0 else value * penalty
    for token_id, bias in (logit_bias or {}).items():
        adjusted[token_id] += np.float32(bias)
    return adjusted


def kept_candidates(
    adjusted: npt.NDArray[np.float32],
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> tuple[IntArray, Float64]:
    """Order the candidates and cut them by the filters (step 4).

    Parameters
    ----------
    adjusted
        (V,) Adjusted logits.
    temperature
        Above 0.
    top_k
        0 is off.
    top_p
        In (0, 1], 1 is off.
    min_p
        In [0, 1], 0 is off.

    Returns
    -------
    candidate_ids : ndarray
        (n,) Kept ids by (logit descending, id ascending).
    weights : ndarray
        (n,) Their probabilities, summing to 1.
    """
    wide = adjusted.astype(np.float64)
    order = np.lexsort((np.arange(len(wide)), -wide))
    # Relative to the largest, so that a tiny temperature underflows to 0 instead of overflowing.
    tempered = (wide[order] - wide[order[0]]) / temperature
    num_kept = len(order)
    if top_k > 0:
        num_kept = min(num_kept, top_k)
    if top_p < 1.0:
        weights = np.exp(tempered[:num_kept])
        cumulative = np.cumsum(weights) / weights.sum()
        num_kept = min(num_kept, int(np.searchsorted(cumulative, top_p, side="left")) + 1)
    if min_p > 0.0:
        # w_i >= m * w_max  <=>  l_i >= l_max + ln(m), and here l_max is 0.
        num_kept = min(num_kept, max(1, int((tempered >= np.log(min_p)).sum())))
    weights = np.exp(tempered[:num_kept])
    return order[:num_kept], weights / weights.sum()


def _choose(weights: Float64, uniform: float) -> tuple[int, float]:
    """Index of the first cumulative weight above uniform * total, and the margin of that choice."""
    cumulative = np.cumsum(weights)
    target = uniform * cumulative[-1]
    index = int(np.searchsorted(cumulative, target, side="right"))
    below = cumulative[index - 1] if index > 0 else -np.inf
    # The last token with any weight has no right neighbour.
    above = cumulative[index] if cumulative[index] < cumulative[-1] else np.inf
    return index, float(min(target - below, above - target) / cumulative[-1])


def _check_options(
    temperature: float, top_k: int, top_p: float, min_p: float, repetition_penalty: float
) -> None:
    for name, value, valid, limit in (
        ("temperature", temperature, 0.0 <= temperature < np.inf, "finite and >= 0"),
        ("top_k", top_k, top_k >= 0, ">= 0 (0 is off)"),
        ("top_p", top_p, 0.0 < top_p <= 1.0, "in (0, 1]"),
        ("min_p", min_p, 0.0 <= min_p <= 1.0, "in [0, 1]"),
        ("repetition_penalty", repetition_penalty, 0.0 < repetition_penalty < np.inf, "above 0"),
    ):
        if not valid:
            raise ConfigError(f"{name} must be {limit}, got {value}")


def sample(
    logits: FloatArray,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    stream: int = 0,
    position: int = 0,
    pass_index: int = 0,
    repetition_penalty: float = 1.0,
    history: Iterable[int] = (),
    logit_bias: Mapping[int, float] | None = None,
) -> Sampled:
    """Sample one token (the steps of the module's docstring).

    Parameters
    ----------
    logits
        (V,) Raw logits of the model.
    temperature, top_k, top_p, min_p
        0 is greedy; 0, 1 and 0 switch the filters off.
    seed, stream, position, pass_index
        Key and counter of the random number; ``position`` is the index that the sampled token will
        have in its sequence.
    repetition_penalty, history, logit_bias
        See `adjust_logits`.

    Returns
    -------
    Sampled
        Token, confidence and the distribution it was drawn from.

    Raises
    ------
    ConfigError
        If an option is out of range.
    FlarecoreError
        If a logit is NaN or +inf, or every logit is -inf.
    """
    _check_options(temperature, top_k, top_p, min_p, repetition_penalty)
    temperature, top_p, min_p = (float(np.float32(v)) for v in (temperature, top_p, min_p))
    raw = confidences(logits)
    adjusted = adjust_logits(
        logits, repetition_penalty=repetition_penalty, history=history, logit_bias=logit_bias
    )
    confidences(adjusted)  # the same check: a bias can ban every token or add a NaN
    if temperature == 0.0:
        best = int(adjusted.argmax())
        return Sampled(best, float(raw[best]), np.array([best]), np.array([1.0]), np.inf)
    ids, weights = kept_candidates(
        adjusted, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    if top_k == 0 and top_p == 1.0 and min_p == 0.0:
        by_id = np.argsort(ids)
        ids, weights = ids[by_id], weights[by_id]
    index, margin = _choose(weights, philox_uniform(seed, stream, position, pass_index))
    return Sampled(int(ids[index]), float(raw[ids[index]]), ids, weights, margin)
