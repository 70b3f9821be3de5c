"""Quality beside speed: what quantised arithmetic costs in perplexity and in greedy tokens.

Perplexity is exp of the mean negative log probability of given tokens. A window slides over the
text by half its length; its first half is context and its second half is scored, so that every
token behind the first half window is scored once, for every engine the same. The exact result is
float32 on the dequantised weights of the same file; the loss of an engine is how much larger its
perplexity is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore.bench.rows import Report, Row
from flarecore.bench.runner import FlareRunner, Runner
from flarecore.bench.session import Session
from flarecore.bench.texts import PROMPTS, read_text
from flarecore.errors import ConfigError
from flarecore.model import Model

__all__ = ["Agreement", "QualityOptions", "agreement", "loss", "measure", "windows"]


@dataclass(frozen=True)
class QualityOptions:
    """Sizes.

    Attributes
    ----------
    max_tokens : int
        Tokens of the text that are used.
    window : int
        Tokens of a window; the second half of them is scored.
    prompts, prompt_tokens : int
        Prompts of the greedy comparison (at most 20) and tokens decoded after each.
    """

    max_tokens: int = 20_000
    window: int = 512
    prompts: int = 20
    prompt_tokens: int = 64

    def __post_init__(self) -> None:
        if self.window < 4 or self.max_tokens < self.window:
            raise ConfigError(f"window must be >= 4 and max_tokens at least a window, got "
                              f"{self.window} and {self.max_tokens}")
        if not 1 <= self.prompts <= len(PROMPTS) or self.prompt_tokens < 1:
            raise ConfigError(f"prompts must be 1 to {len(PROMPTS)} and prompt_tokens >= 1, got "
                              f"{self.prompts} and {self.prompt_tokens}")


@dataclass(frozen=True)
class Agreement:
    """How many greedy tokens are those of the exact engine.

    ``equal_given`` is the share of positions with an equal token, each behind the exact engine's
    own tokens; ``equal_free`` the share of equal tokens where each engine goes on from its own,
    which a single difference ends.
    """

    equal_given: float
    equal_free: float


def windows(
    token_ids: Sequence[int], window: int, head: Sequence[int] = ()
) -> list[list[int]]:
    """Windows of exactly `window` tokens, each behind `head`, whose second halves adjoin.

    Parameters
    ----------
    token_ids : sequence of int
    window : int
        Tokens of a window, `head` included.
    head : sequence of int
        A beginning-of-text token, or nothing.
    """
    size = window - len(head)
    return [[*head, *token_ids[begin:begin + size]]
            for begin in range(0, len(token_ids) - size + 1, window - window // 2)]


def log_probs(runner: Runner, parts: Sequence[Sequence[int]], report: Any) -> list[Any]:
    """Per window (n,) float64 log probabilities of its second half."""
    found = []
    for number, part in enumerate(parts):
        probs = runner.score(part, len(part) // 2)
        found.append(np.log(np.maximum(probs, 1e-45)))
        report(number + 1)
    return found


def loss(
    logs: Sequence[npt.NDArray[np.float64]], exact: Sequence[npt.NDArray[np.float64]]
) -> dict[str, float]:
    """Perplexity, its loss against the exact one, and how sure that is.

    Parameters
    ----------
    logs, exact : sequence of ndarray
        Log probabilities per window, of the same tokens.

    Returns
    -------
    dict
        ``perplexity``; ``loss``, its relative increase; ``loss_error``, the standard error of that
        from the spread between windows; ``mean_probability_difference``; ``log_deviation``, the
        root of the mean squared difference of log probabilities, which says how much is lost where
        the differences of either sign cancel in the perplexity.
    """
    own, other = np.concatenate(list(logs)), np.concatenate(list(exact))
    increase = float(np.exp(other.mean() - own.mean()) - 1.0)
    per_window = np.array([b.mean() - a.mean() for a, b in zip(logs, exact, strict=True)])
    error = float(per_window.std(ddof=1) / np.sqrt(len(per_window))) if len(per_window) > 1 else 0.0
    return {"perplexity": float(np.exp(-own.mean())), "loss": increase, "loss_error": error,
            "mean_probability_difference": float(np.abs(np.exp(own) - np.exp(other)).mean()),
            "log_deviation": float(np.sqrt(np.square(own - other).mean()))}


def agreement(
    runner: Runner, prompts: Sequence[Sequence[int]], exact: Sequence[Sequence[int]]
) -> Agreement:
    """Greedy tokens of a runner against those of the exact engine.

    Parameters
    ----------
    runner : Runner
    prompts : sequence of token ids
    exact : sequence of token ids
        What the exact engine decodes after each.
    """
    given, free, total = 0, 0, 0
    for prompt, expected in zip(prompts, exact, strict=True):
        rows = runner.greedy_rows([*prompt, *expected], len(prompt))
        runner.set_contexts([prompt])
        runner.reset()
        decoded = runner.decode(len(expected))[0]
        given += sum(a == b for a, b in zip(rows, expected, strict=True))
        free += next((i for i, (a, b) in enumerate(zip(decoded, expected, strict=True)) if a != b),
                     len(expected))
        total += len(expected)
    return Agreement(given / total, free / total)


def measure(session: Session, options: QualityOptions) -> Report:
    """A row per engine, the exact one first."""
    model = session.model
    limit = model.config.context_length
    window = min(options.window, limit)
    tokenizer = model.tokenizer
    bos = tokenizer.bos_token_id
    head = [bos] if tokenizer.adds_bos and bos is not None else []
    # Eight characters a token are more than any text has.
    text = read_text(session.options.text)[:8 * options.max_tokens]
    parts = windows(tokenizer.encode(text)[:options.max_tokens], window, head)
    if not parts:
        raise ConfigError(f"the text has less than a window of {window} tokens: --text FILE")
    prompts = [tokenizer.encode(text, add_bos=True) if head else tokenizer.encode(text)
               for text in PROMPTS[:options.prompts]]
    count = min(options.prompt_tokens, limit - max(map(len, prompts)))
    exact = FlareRunner(Model.load(session.options.model, threads=session.threads), "float32")
    try:
        exact_logs = _scores(session, exact, parts)
        exact_tokens = []
        for prompt in prompts:
            exact.set_contexts([prompt])
            exact_tokens += exact.decode(count)
        rows = [_row(exact, parts, exact_logs, exact_logs, Agreement(1.0, 1.0))]
    finally:
        exact.close()
    for runner in session.runners:
        if runner.name == exact.name:
            continue
        logs = _scores(session, runner, parts)
        found = agreement(runner, prompts, exact_tokens)
        rows.append(_row(runner, parts, logs, exact_logs, found))
    session.notes.append(
        f"text: {session.text_name}, {len(parts)} windows of {window} tokens, the second half of "
        f"each scored; {len(prompts)} prompts, {count} greedy tokens after each")
    return session.report("quality", rows, [])


def _scores(session: Session, runner: Runner, parts: Sequence[Sequence[int]]) -> list[Any]:
    stage = f"perplexity, {runner.name}"

    def report(done: int) -> None:
        session.progress(stage, done, len(parts))

    return log_probs(runner, parts, report)


def _row(
    runner: Runner, parts: Sequence[Sequence[int]], logs: Sequence[npt.NDArray[np.float64]],
    exact: Sequence[npt.NDArray[np.float64]], found: Agreement,
) -> Row:
    params: Mapping[str, int] = {"windows": len(parts), "window": len(parts[0]),
                                 "scored_tokens": sum(len(log) for log in logs)}
    values = {**loss(logs, exact), "equal_greedy_given": found.equal_given,
              "equal_greedy_free": found.equal_free}
    return Row("quality", f"{params['scored_tokens']} scored tokens", runner.name, params,
               values=values)
