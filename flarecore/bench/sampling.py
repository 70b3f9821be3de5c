"""What confidence, minimum, mask and sentence boundary cost on top of a plain argmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore import _C
from flarecore.bench.decode import decode_case
from flarecore.bench.harness import Case, Quantiles, run_rounds
from flarecore.bench.proofs import ProofError, prove_equal
from flarecore.bench.rows import Report, Row
from flarecore.bench.session import Session
from flarecore.errors import ConfigError

__all__ = ["MODES", "SamplingOptions", "make_logits", "measure", "probe_case", "prove"]

BETA = 0.4
# Relative |difference| of a confidence between the fused sampler and its twin in double precision.
_PROB_TOLERANCE = 1e-5
_STEP = "decode step"
_PLAIN, _GREEDY, _SAMPLED = "argmax", "greedy", "temperature 0.8"
MODES: dict[str, dict[str, Any] | None] = {
    _PLAIN: None, _GREEDY: {}, _SAMPLED: {"temperature": 0.8, "seed": 11}}


@dataclass(frozen=True)
class SamplingOptions:
    """Sizes.

    Attributes
    ----------
    vocab_sizes : tuple of int
        Logits of a row, beside the model's own.
    num_tokens : int
        Tokens of one timed run: real text, so that sentences end where they do.
    context : int
        Tokens before the decode step that the cost is compared with.
    """

    vocab_sizes: tuple[int, ...] = (49152, 262144)
    num_tokens: int = 256
    context: int = 64

    def __post_init__(self) -> None:
        if any(size < 2 for size in self.vocab_sizes) or self.num_tokens < 1 or self.context < 2:
            raise ConfigError(
                f"vocab_sizes and context must be >= 2, num_tokens >= 1, got {self.vocab_sizes}, "
                f"{self.context} and {self.num_tokens}")


def make_logits(vocab_size: int) -> npt.NDArray[np.float32]:
    """(V,) float32 logits with the spread that language models have."""
    rng = np.random.default_rng(vocab_size)
    return (rng.standard_normal(vocab_size) * 2.5).astype(np.float32)


def prove(probe: Any, logits: npt.NDArray[np.float32], token_ids: Sequence[int]) -> None:
    """The fused sampler gives the tokens and confidences of the step-by-step one.

    Parameters
    ----------
    probe : _C.testing.SamplingProbe
    logits : numpy.ndarray
        (V,) float32, what the probe was made with.
    token_ids : sequence of int
        Every one is checked by argmax and greedily, the first 16 with a temperature.

    Raises
    ------
    ProofError
        A token differs, or a confidence by more than 1e-5 of itself.
    """
    ids = list(token_ids)
    greedy = probe.run(ids, {}, BETA)
    prove_equal("tokens of a plain argmax", probe.run(ids)["token_ids"], ids)
    prove_equal("greedy tokens", greedy["token_ids"], ids)
    sampled = probe.run(ids[:16], MODES[_SAMPLED], BETA)
    for result, params, count in ((greedy, {}, len(ids)), (sampled, MODES[_SAMPLED], 16)):
        for position, token_id in enumerate(ids[:min(count, 16)]):
            row = logits.copy()
            row[token_id] = np.float32(logits.max()) + np.float32(2)
            token, prob = _C.testing.sample(row, params, position, 0, [], True)
            prove_equal("the sampled token", result["token_ids"][position], token)
            got = float(result["probs"][position])
            if not abs(got - prob) <= _PROB_TOLERANCE * prob:
                raise ProofError(f"the confidence of token {token} is {got:.9g}, the reference "
                                 f"sampler says {prob:.9g}; nothing is timed until this is "
                                 f"repaired")
    kept = np.asarray(greedy["probs"])[:greedy["num_kept"]]
    prove_equal("the smallest confidence", greedy["min_prob"], float(kept.min(initial=1.0)))
    prove_equal("masked tokens", greedy["num_masked"], int((kept < np.float32(BETA)).sum()))


def measure(session: Session, options: SamplingOptions) -> Report:
    """Rows per vocabulary: a plain argmax, and everything, as a share of a decode step.

    Raises
    ------
    ProofError
        The fused sampler differs from the reference sampler.
    """
    own, model = session.own, session.model
    vocab_size = model.config.vocab_size
    ids = [i for i in session.context(options.num_tokens) if i < min(vocab_size, 256_000)]
    if not session.fits(options.context + 32):
        return session.report("sampling", (), ())
    own.set_contexts([session.context(options.context)])
    steps = 32
    step = decode_case(own, steps)
    cases = [Case(_STEP, step.run, step.prepare)]
    sizes = tuple(dict.fromkeys((vocab_size, *options.vocab_sizes)))
    sizes = tuple(size for size in sizes if size > max(ids))
    for size in sizes:
        logits = make_logits(size)
        probe = _C.testing.SamplingProbe(model._native, logits, session.threads)
        prove(probe, logits, ids)
        cases += [probe_case(probe, mode, ids, f"{size} {mode}") for mode in MODES]
    seconds = run_rounds(cases, session.options.rounds, stage="sampling",
                         progress=session.progress)
    rows = []
    for size in sizes:
        for mode in MODES:
            rows.append(_row(session, seconds, size, mode, len(ids), steps))
    return session.report("sampling", rows, [
        "tokens and confidences of the fused sampler are those of the reference sampler"])


def probe_case(probe: Any, mode: str, token_ids: list[int], name: str = "") -> Case:
    """A pass over these tokens, timed by the probe itself: without what sets it up."""
    def run() -> float:
        return float(probe.run(token_ids, MODES[mode], BETA)["seconds"])

    return Case(name or mode, run)


def _row(session: Session, seconds: dict[str, tuple[float, ...]], size: int, mode: str,
         num_tokens: int, steps: int) -> Row:
    name = f"{size} {mode}"
    values: dict[str, Any] = {"step_seconds": Quantiles.of(seconds[_STEP]).median / steps}
    if mode != _PLAIN:
        # Round by round: what everything takes beyond the argmax, over what a step takes.
        triples = zip(seconds[name], seconds[f"{size} {_PLAIN}"], seconds[_STEP], strict=True)
        shares = [((full - plain) / num_tokens) / (step / steps) for full, plain, step in triples]
        share = Quantiles.of(shares)
        values |= {"share_of_step": share.median, "share_p20": share.p20, "share_p80": share.p80}
    is_own = size == session.model.config.vocab_size
    what = "the model's vocabulary" if is_own else "made-up logits"
    return Row("sampling", f"{size} logits, {what}", mode if mode == _PLAIN else f"{mode} and all",
               {"vocab_size": size},
               Quantiles.of(seconds[name]).scaled(1 / num_tokens), len(seconds[name]), 1,
               values=values)
