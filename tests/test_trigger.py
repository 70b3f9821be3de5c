"""Triggers by themselves: what counts, where the thresholds lie, characters cut by tokens."""

from __future__ import annotations

import numpy as np
import pytest

from flarecore.config import FlareConfig
from flarecore.loop.candidate import Candidate
from flarecore.loop.trigger import judge, stop_below


def candidate(tokens, special=()):
    """A sentence of (text or bytes, confidence) tokens."""
    data = tuple(t if isinstance(t, bytes) else t.encode() for t, _ in tokens)
    return Candidate(
        b"".join(data).decode("utf-8", "replace"), tuple(range(len(data))), data,
        tuple(i in special for i in range(len(data))), np.array([p for _, p in tokens], np.float32),
        "sentence")


def triggered(tokens, special=(), **options):
    return judge(candidate(tokens, special), FlareConfig(**options), is_draft=True).triggered


def step_below(value):
    return float(np.nextafter(np.float32(value), np.float32(0)))


def test_the_mean_is_of_the_tokens_that_count():
    tokens = [(" He", 0.9), (" left", 0.5), (",", 0.01), (" ", 0.01), (".", 0.01)]
    assert not triggered(tokens, trigger="mean", theta=0.7)
    assert triggered(tokens, trigger="mean", theta=0.71)
    assert triggered(tokens, trigger="mean", theta=0.7, trigger_punctuation=True)
    assert not triggered([(",", 0.1)], trigger="mean")
    assert not triggered([(" a", 0.9), (" b", 0.2)], trigger="mean", theta=0.5)


@pytest.mark.parametrize("theta", [0.8, 0.3, 0.1])
@pytest.mark.parametrize("trigger", ["min", "mean", "token"])
def test_a_confidence_or_mean_equal_to_theta(trigger, theta):
    # three equal float32 numbers: their mean is the number itself, not its neighbour
    equal = [(word, theta) for word in (" a", " b", " c")]
    below = [(word, step_below(theta)) for word in (" a", " b", " c")]
    assert not triggered(equal, trigger=trigger, theta=theta)
    assert triggered(equal, trigger=trigger, theta=theta, theta_inclusive=True)
    assert triggered(below, trigger=trigger, theta=theta)


def test_the_order_of_tokens_does_not_change_the_mean():
    rng = np.random.default_rng(5)
    probs = rng.uniform(0.01, 1.0, 41).astype(np.float32)
    theta = float(np.float32(probs.astype(np.float64).mean()))
    verdicts = {triggered([(" a", p) for p in rng.permutation(probs)], trigger="mean", theta=theta)
                for _ in range(50)}
    assert len(verdicts) == 1


@pytest.mark.parametrize(("tokens", "chars"), [
    ([(" in", 0.9), (" 19", 0.1), ("13", 0.1), (".", 0.9)], 4),
    ([(" 19", 0.1), (" or", 0.9), (" 13", 0.1)], 2),           # a sure word between ends the run
    ([(" U", 0.1), (".", 0.9), ("S", 0.1), (".", 0.1)], 3),    # punctuation between does not
    ([(" a", 0.1), (",", 0.1), (" bc", 0.1)], 5),              # what lies between counts as text
    ([(",", 0.1), (" ", 0.1), (".", 0.1)], 0),
    ([("北", 0.1), ("京", 0.1)], 2),
    ([("年".encode()[:1], 0.1), ("年".encode()[1:], 0.9)], 1),
    ([("a", 0.9)], 0), ([], 0)])
def test_a_span_has_so_many_characters(tokens, chars):
    for wanted in range(1, 8):
        assert triggered(tokens, trigger="span", min_span_chars=wanted) == (wanted <= chars)


def test_a_special_token_ends_a_run_and_never_counts():
    tokens = [(" ab", 0.1), ("<|x|>", 0.1), (" cd", 0.1)]
    assert not triggered(tokens, special={1}, trigger="span", min_span_chars=5)
    assert triggered(tokens, trigger="span", min_span_chars=5)
    assert not triggered([("<|x|>", 0.1)], special={0})
    assert triggered([("<|x|>", 0.1)], special={0}, trigger_punctuation=True)
    assert not triggered([("<|x|>", 0.1)], special={0}, trigger="always")


def test_asked_for_punctuation_is_a_word_like_any_other():
    run = [(" U", 0.1), (".", 0.9), ("S", 0.1)]
    assert not triggered(run, trigger="span", min_span_chars=2, trigger_punctuation=True)
    assert triggered([("?!", 0.1)], trigger="span", min_span_chars=2, trigger_punctuation=True)


@pytest.mark.parametrize("trigger", ["min", "mean", "token", "span"])
def test_the_ends_of_the_scale(trigger):
    sure, lost = [(" word", 1.0), (".", 1.0)], [(" word", 0.0)]
    assert triggered(sure, trigger=trigger, theta=1.0)
    assert not triggered(lost, trigger=trigger, theta=0.0)
    assert triggered(sure, trigger=trigger, theta=0.0, theta_zero_always=True)
    assert not triggered([(". ", 0.0)], trigger=trigger, theta=1.0)
    assert not triggered([], trigger=trigger, theta=1.0)


@pytest.mark.parametrize(("pieces", "low_at", "is_word"), [
    (["。".encode()[:1], "。".encode()[1:]], 1, False),
    (["年".encode()[:2], "年".encode()[2:]], 1, True),
    ([b"a" + "。".encode()[:1], "。".encode()[1:]], 1, False),  # only the character itself counts
    ([b"a" + "。".encode()[:1], "。".encode()[1:]], 0, True),
    (["。".encode()[:1], "。".encode()[1:2], "。".encode()[2:] + b"b"], 0, False),
    ([b"\xe5", b"."], 0, True), ([b".", b"\x82"], 0, False), ([b"", b"."], 0, False),
    ([b"\xf0\x9f\x98", b"\x80"], 0, True)])
def test_a_token_inside_a_character_is_judged_by_the_whole_of_it(pieces, low_at, is_word):
    tokens = [(data, 0.1 if n == low_at else 0.9) for n, data in enumerate(pieces)]
    assert triggered(tokens) == is_word


@pytest.mark.parametrize(("options", "below"), [
    ({"trigger": "min"}, None), ({"trigger": "mean"}, None), ({"trigger": "always"}, None),
    ({"trigger": "token", "theta": 0.0}, None), ({"trigger": "token", "theta": 1.0}, 2.0),
    ({"trigger": "token", "theta": 0.0, "theta_zero_always": True}, 2.0),
    ({"trigger": "token", "theta": 0.5}, 0.5),
    ({"trigger": "token", "theta": 0.8}, float(np.float32(0.8))),
    ({"trigger": "token", "theta": 0.5, "theta_inclusive": True},
     float(np.nextafter(np.float32(0.5), np.float32(1))))])
def test_where_a_draft_stops(options, below):
    assert stop_below(FlareConfig(**options)) == below


def test_a_probability_of_minus_100_is_a_logarithm_and_an_error_of_the_mask():
    from flarecore.errors import ConfigError
    from flarecore.text import low_spans, mask_to_query

    for call in (lambda: mask_to_query([b"a"], [-100.0], 0.4),
                 lambda: low_spans([-100.0], 0.4, span_gap=5, token_bytes=[b"a"])):
        with pytest.raises(ConfigError, match="not their logarithms"):
            call()
