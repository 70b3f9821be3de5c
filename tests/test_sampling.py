"""The sampler: the reference by hand, the native one against it token for token."""

import numpy as np
import pytest
from helpers import chi_square_z

from flarecore import _C
from flarecore.errors import ConfigError, FlarecoreError
from flarecore.reference.sampler import sample

VOCABULARIES = [1, 2, 111, 32000, 49152, 262144]
# A float32 cumulative sum may cross the random number at a neighbour when they are this close.
MARGIN = 1e-6


def native_sample(
    logits, *, position=0, pass_index=0, history=(), reference=False, **params
) -> tuple[int, float]:
    """Token and confidence of the native sampler; `reference` selects its slow twin."""
    return _C.testing.sample(
        np.asarray(logits, dtype=np.float32),
        params,
        position=position,
        pass_index=pass_index,
        history=list(history),
        reference=reference,
    )


def log_of(*probs):
    with np.errstate(divide="ignore"):
        return np.log(np.array(probs, dtype=np.float64)).astype(np.float32)


FILTERS = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 3.0},
    "top_k": {"temperature": 1.0, "top_k": 40},
    "top_p": {"temperature": 1.0, "top_p": 0.9},
    "min_p": {"temperature": 1.0, "min_p": 0.05},
    "all": {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.02},
}


# ---- the kept set, by hand: (probabilities, options, kept ids in order) ----

KEPT = {
    "top_k cuts by logit": ([0.1, 0.4, 0.2, 0.3], {"top_k": 2}, [1, 3]),
    "top_k cuts ties by id": ([0.2, 0.3, 0.2, 0.2, 0.1], {"top_k": 3}, [1, 0, 2]),
    "top_k above the vocabulary": ([0.4, 0.6], {"top_k": 9}, [1, 0]),
    "top_p keeps the crossing token": ([0.5, 0.3, 0.2], {"top_p": 0.6}, [0, 1]),
    "top_p below the first keeps it": ([0.2, 0.8], {"top_p": 0.01}, [1]),
    "top_p is of what top_k left": ([0.4, 0.3, 0.2, 0.1], {"top_k": 2, "top_p": 0.56}, [0]),
    "top_p alone would keep two": ([0.4, 0.3, 0.2, 0.1], {"top_p": 0.56}, [0, 1]),
    "min_p is relative to the largest": ([0.5, 0.26, 0.24], {"min_p": 0.5}, [0, 1]),
    "min_p 1 keeps the ties of the first": ([0.3, 0.4, 0.4], {"min_p": 1.0}, [1, 2]),
    "min_p is tempered": ([0.5, 0.26, 0.24], {"min_p": 0.5, "temperature": 0.5}, [0]),
    "no filter runs in id order": ([0.1, 0.4, 0.2, 0.3], {}, [0, 1, 2, 3]),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept_set(name):
    probs, options, expected = KEPT[name]
    drawn = sample(log_of(*probs), **{"temperature": 1.0, **options})
    assert drawn.candidate_ids.tolist() == expected
    assert drawn.weights.sum() == pytest.approx(1.0)


def test_top_p_stops_at_exact_equality():
    """Cumulative 0.5 >= 0.5: the second of two equal tokens is not needed."""
    logits = np.zeros(2, dtype=np.float32)
    assert sample(logits, temperature=1.0, top_p=0.5).candidate_ids.tolist() == [0]
    for position in range(50):
        assert native_sample(logits, temperature=1.0, top_p=0.5, position=position)[0] == 0


# ---- native against reference ----


def adversarial(vocab_size):
    """Named logits that go wrong easily, each (V,)."""
    rng = np.random.default_rng(vocab_size)
    normal = (rng.standard_normal(vocab_size) * 3).astype(np.float32)
    holes = normal.copy()
    holes[rng.random(vocab_size) < 0.7] = -np.inf
    holes[vocab_size // 2] = 1.0
    lonely = np.full(vocab_size, -np.inf, dtype=np.float32)
    lonely[vocab_size - 1] = -3.5
    peaked = normal.copy()
    peaked[vocab_size // 3] = 30.0
    return {
        "normal": normal,
        "ties": np.round(normal).astype(np.float32),
        "holes": holes,
        "lonely": lonely,
        "peaked": peaked,
        "huge spread": normal * np.float32(1e4),
        "large offset": np.round(normal) + np.float32(30000),
    }


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("filters", FILTERS)
def test_native_equals_reference(vocab_size, filters):
    num_close, num_drawn = 0, 0
    for kind, logits in adversarial(vocab_size).items():
        for position in range(4 if vocab_size < 100000 else 2):
            options = {**FILTERS[filters], "seed": 2**40 + 7, "position": position, "stream": 3}
            expected = sample(logits, **options)
            token_id, prob = native_sample(logits, **options)
            assert prob == pytest.approx(expected.prob, rel=1e-5, abs=1e-30) or (
                token_id != expected.token_id
            ), f"{kind}, position {position}"
            num_drawn += 1
            num_close += expected.margin < MARGIN
            if expected.margin >= MARGIN:
                assert token_id == expected.token_id, f"{kind}, position {position}"
            else:
                assert token_id in expected.candidate_ids
    assert num_close <= 0.15 * num_drawn, "too many draws were too close to call"


@pytest.mark.parametrize("vocab_size", [1, 2, 111, 32000])
@pytest.mark.parametrize("filters", FILTERS)
def test_native_twin_equals_reference(vocab_size, filters):
    """The step-by-step sampler in C++ computes in double: no draw is too close to call."""
    for kind, logits in adversarial(vocab_size).items():
        options = {**FILTERS[filters], "seed": 5, "position": 9}
        expected = sample(logits, **options)
        assert expected.margin > 1e-12
        token_id, prob = native_sample(logits, reference=True, **options)
        assert token_id == expected.token_id, kind
        assert prob == pytest.approx(expected.prob, rel=1e-6, abs=1e-30), kind


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_native_greedy_equals_reference(vocab_size):
    for kind, logits in adversarial(vocab_size).items():
        expected = sample(logits)
        token_id, prob = native_sample(logits)
        assert token_id == expected.token_id, kind
        assert prob == pytest.approx(expected.prob, rel=1e-5), kind


@pytest.mark.parametrize("vocab_size", [2, 111, 8000])
@pytest.mark.parametrize("filters", ["greedy", "plain", "all"])
def test_native_penalty_and_bias_equal_reference(vocab_size, filters):
    rng = np.random.default_rng(7)
    for position in range(30):
        logits = (rng.standard_normal(vocab_size) * 2).astype(np.float32)
        history = [*rng.integers(0, vocab_size, 20).tolist(), int(logits.argmax())]
        bias = {int(i): float(rng.normal(0, 4)) for i in rng.integers(0, vocab_size, 5)}
        bias[int(rng.integers(0, vocab_size))] = -np.inf if vocab_size > 2 else -3.0
        options = {
            **FILTERS.get(filters, {}),
            "repetition_penalty": 1.7,
            "history": history,
            "logit_bias": bias,
            "position": position,
        }
        expected = sample(logits, **options)
        assert expected.margin > MARGIN, "choose another seed"
        token_id, prob = native_sample(logits, **options)
        assert token_id == expected.token_id
        assert prob == pytest.approx(expected.prob, rel=1e-5)


def test_many_draws_of_one_distribution_are_equal():
    """The filters meet every part of the unit interval, not only a few positions."""
    logits = (np.random.default_rng(5).standard_normal(500) * 2).astype(np.float32)
    for filters in FILTERS.values():
        pairs = [
            (sample(logits, **filters, position=p), native_sample(logits, **filters, position=p))
            for p in range(300)
        ]
        pairs = [(ours, native) for ours, native in pairs if ours.margin >= MARGIN]
        assert len(pairs) > 290
        assert [ours.token_id for ours, _ in pairs] == [native[0] for _, native in pairs]
        assert len({ours.token_id for ours, _ in pairs}) > 8, "always the same few tokens"


# ---- properties ----


def test_confidence_is_of_raw_logits():
    """Softmax at temperature 1, whatever the options do (design 3.2)."""
    logits = log_of(0.6, 0.3, 0.1)
    for options in (
        {},
        {"temperature": 5.0, "seed": 4},
        {"temperature": 0.1, "top_k": 1},
        {"logit_bias": {2: 50.0}},
        {"repetition_penalty": 9.0, "history": [0]},
        {"temperature": 1.0, "min_p": 0.9},
    ):
        drawn = sample(logits, **options)
        for token_id, prob in (
            (drawn.token_id, drawn.prob),
            native_sample(logits, **options),
            native_sample(logits, reference=True, **options),
        ):
            assert prob == pytest.approx([0.6, 0.3, 0.1][token_id], rel=1e-5), options
    assert native_sample(logits, logit_bias={2: 50.0})[0] == 2
    assert native_sample(logits, logit_bias={2: 50.0})[1] == pytest.approx(0.1, rel=1e-5)


def test_ties_go_to_the_lowest_id():
    logits = np.array([1.0, 2.0, 2.0, 0.0, 2.0], dtype=np.float32)
    assert sample(logits).token_id == native_sample(logits)[0] == 1
    assert native_sample(np.zeros(262144, dtype=np.float32))[0] == 0
    late = np.zeros(49152, dtype=np.float32)
    late[[40000, 49151]] = 1.0
    assert native_sample(late)[0] == 40000
    # top_k 1 of a tie is the lowest id too, whatever the random number says.
    draws = {native_sample(logits, temperature=1.0, top_k=1, position=p)[0] for p in range(30)}
    assert draws == {1}


def test_penalty_counts_a_repeated_token_once():
    logits = np.array([4.0, 1.5, -1.0], dtype=np.float32)
    options = {"repetition_penalty": 2.0, "history": [0, 0, 0, 2, 2]}
    # 4 / 2 = 2 still beats 1.5; divided three times it would not.
    assert sample(logits, **options).token_id == native_sample(logits, **options)[0] == 0


def test_penalty_lowers_a_negative_logit():
    logits = np.array([-1.0, -1.5], dtype=np.float32)
    options = {"repetition_penalty": 2.0, "history": [0]}
    assert sample(logits, **options).token_id == native_sample(logits, **options)[0] == 1


def test_all_but_one_impossible():
    logits = np.full(111, -np.inf, dtype=np.float32)
    logits[77] = -5.0
    for filters in ({}, *FILTERS.values()):
        assert native_sample(logits, **filters) == (77, 1.0)
        assert sample(logits, **filters).prob == 1.0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_logits_are_an_error(bad):
    for vocab_size, index in ((3, 1), (111, 110), (49152, 30000)):
        logits = np.zeros(vocab_size, dtype=np.float32)
        logits[index] = bad
        for options in ({}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 5}):
            with pytest.raises(FlarecoreError):
                sample(logits, **options)
            with pytest.raises(FlarecoreError):
                native_sample(logits, **options)


def test_nothing_possible_is_an_error():
    logits = np.full(111, -np.inf, dtype=np.float32)
    for options in ({}, {"temperature": 1.0}):
        for draw in (sample, native_sample):
            with pytest.raises(FlarecoreError):
                draw(logits, **options)


@pytest.mark.parametrize(
    "option",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 1.0, "top_k": -1},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "top_p": 1.1},
        {"temperature": 1.0, "min_p": -0.1},
        {"temperature": 1.0, "min_p": 1.1},
        {"repetition_penalty": 0.0},
    ],
    ids=str,
)
def test_bad_options(option):
    logits = np.zeros(8, dtype=np.float32)
    for draw in (sample, native_sample):
        with pytest.raises(ConfigError):
            draw(logits, **option)


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize(("options", "message"), [
    ({"logit_bias": dict.fromkeys(range(4), -np.inf)}, "no token to choose"),
    ({"repetition_penalty": 1e-40, "history": [0, 1]}, "no numbers"),
    ({"logit_bias": {0: 3.4e38}, "repetition_penalty": 1e-38, "history": [0]}, "no numbers"),
])
def test_options_that_leave_nothing_to_choose_are_named(options, message, reference):
    """Not the model's fault, as it would be with such logits of its own."""
    logits = np.array([2.0, -1.0, 0.5, 1.0], dtype=np.float32)
    for temperature in (0.0, 1.0):
        draw = {"temperature": temperature, "reference": reference}
        with pytest.raises(ConfigError, match=f"repetition_penalty.*{message}"):
            native_sample(logits, **draw, **options)
        with pytest.raises(FlarecoreError, match="the model produced"):
            native_sample(np.full(4, np.nan), **draw, **options)


@pytest.mark.parametrize("filters", FILTERS)
def test_native_frequencies(filters):
    """Chi-square of the native sampler against the exact distribution of the reference."""
    logits = (np.random.default_rng(11).standard_normal(60) * 1.5).astype(np.float32)
    kept = sample(logits, **FILTERS[filters])
    probs = np.zeros(60)
    probs[kept.candidate_ids] = kept.weights
    drawn = [
        native_sample(logits, **FILTERS[filters], seed=17, position=p, pass_index=1)[0]
        for p in range(6000)
    ]
    assert chi_square_z(np.bincount(drawn, minlength=60), probs) < 4


def test_keys_give_different_draws():
    """Seed, stream, position and pass each choose another number, and the same key the same."""
    logits = np.zeros(32000, dtype=np.float32)
    base = {"temperature": 1.0, "seed": 1, "stream": 1, "position": 1, "pass_index": 1}
    first = native_sample(logits, **base)[0]
    assert native_sample(logits, **base)[0] == first
    others = [
        native_sample(logits, **{**base, name: 2})[0]
        for name in ("seed", "stream", "position", "pass_index")
    ]
    assert len({first, *others}) == 5
