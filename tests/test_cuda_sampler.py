"""The CUDA sampler against the CPU samplers: the kernels' code, in the emulation or on a device.

Weights are float32 here and float64 there, so draws closer than MARGIN to a neighbour may differ.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers_cuda import (
    BACKENDS,
    BELOW_BETA,
    BELOW_THETA,
    FULL,
    INVALID,
    Device,
    Emulation,
    Rows,
    bits_of_seen,
    to_dtype,
)
from test_sampling import FILTERS, MARGIN, adversarial, native_sample

from flarecore import _C
from flarecore.reference.sampler import sample

MODES = {"greedy": {}, **FILTERS, "top_k 1": {"temperature": 1.0, "top_k": 1},
         "top_k of all": {"temperature": 1.0, "top_k": 1 << 18},
         "top_p tiny": {"temperature": 1.0, "top_p": 1e-6},
         "top_p most": {"temperature": 2.0, "top_p": 0.999},
         "min_p 1": {"temperature": 0.7, "min_p": 1.0},
         "top_k, top_p": {"temperature": 1.3, "top_k": 1000, "top_p": 0.7},
         "top_k, min_p": {"temperature": 1.0, "top_k": 20, "min_p": 0.1}}  # fmt: skip
VOCABULARIES = [1, 111, 1024, 1025, 32000, 49152, 128256, 262144]


@pytest.fixture(params=BACKENDS, ids=["emulated", "device"])
def backend(request):
    return request.param()


def normal_logits(rows, vocab, seed=0, scale=3.0):
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * scale).astype(np.float32)


def check_rows(rows, logits, options, **more):
    """Token and confidence of every row equal the reference's and the CPU sampler's."""
    num_close = 0
    for row, option in enumerate(options):
        expected = sample(logits[row], **option, **more)
        token = int(rows["tokens"][row])
        assert rows.probs[row] == pytest.approx(
            float(native_confidence(logits[row], token)), rel=2e-6, abs=1e-30
        )
        if expected.margin < MARGIN:
            num_close += 1
            assert token in expected.candidate_ids
            continue
        assert token == expected.token_id, f"row {row}: {option}"
        assert token == native_sample(logits[row], **option, **more)[0], f"row {row}: {option}"
    assert num_close <= 0.2 * len(options), "too many draws were too close to call"


def native_confidence(logits, token):
    wide = logits.astype(np.float64)
    with np.errstate(under="ignore"):
        return np.exp(wide[token] - wide.max()) / np.exp(wide - wide.max()).sum()


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_same_tokens_as_the_cpu(backend, vocab):
    kinds = adversarial(vocab)
    modes = list(MODES.values())
    if vocab > 40000:  # each kind with a few of the modes; all meet in the smaller sizes
        pairs = [(k, modes[(i * 4 + j) % len(modes)]) for i, k in enumerate(kinds.values())
                 for j in range(4)]  # fmt: skip
    else:
        pairs = [(k, mode) for k in kinds.values() for mode in modes]
    logits = np.stack([k for k, _ in pairs])
    options = [{**m, "seed": 2**63 + 5, "stream": 3, "position": 40 + i % 7}
               for i, (_, m) in enumerate(pairs)]  # fmt: skip
    rows = Rows(backend, logits, options, positions=[o["position"] - 1 for o in options]).step()
    assert not rows["flags"].any()
    assert rows["positions"].tolist() == [o["position"] for o in options]
    check_rows(rows, logits, options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits(backend, dtype):
    memory, logits = to_dtype(normal_logits(len(MODES), 2049, seed=3), dtype)
    options = [{**m, "seed": 9, "position": 6} for m in MODES.values()]
    for pad in (0, 3):
        check_rows(Rows(backend, memory, options, dtype=dtype, pad=pad).step(), logits, options)


def test_every_float16_is_read_exactly():
    every = np.arange(1 << 16, dtype=np.uint16)
    values = every.view(np.float16).astype(np.float32)
    finite = every[np.isfinite(values)]
    largest = Rows(Emulation(), finite.reshape(1, -1), [{}], dtype="float16").step()
    assert values[finite[largest["tokens"][0]]] == 65504.0
    small = every[(values > 0) & (values < 2.0**-14)]  # subnormal
    rows = Rows(Emulation(), np.stack([np.zeros_like(small), small], axis=1), [{}] * len(small),
                dtype="float16").step()  # fmt: skip
    x = values[small].astype(np.float64)
    assert (rows["tokens"] == 1).all()
    np.testing.assert_allclose(rows.probs, 1 / (1 + np.exp(-x)), rtol=1e-7)


def test_many_draws_meet_the_whole_distribution(backend):
    logits = np.repeat(normal_logits(1, 1500, seed=5, scale=2.0), 200, axis=0)
    for mode in FILTERS.values():
        options = [{**mode, "position": 1 + p} for p in range(200)]
        rows = Rows(backend, logits, options, positions=list(range(200))).step()
        check_rows(rows, logits, options)
        assert len(set(rows["tokens"].tolist())) > 8, "always the same few tokens"


def test_ties_go_to_the_lowest_id(backend):
    logits = normal_logits(3, 2500)
    logits[0, [2100, 700, 1500]] = 50.0
    logits[1, [2047, 2048]] = 50.0
    logits[2] = -1.0
    logits[2, 1700], logits[2, 900] = 0.0, -0.0  # one logit
    for setting in ({}, {"temperature": 1.0, "top_k": 1}, {"temperature": 1.0, "top_p": 1e-3}):
        assert Rows(backend, logits, [setting] * 3).step()["tokens"].tolist() == [700, 2047, 900]


def test_filters_cut_ties_by_id(backend):
    logits = np.full((60, 1200), -3.0, np.float32)
    ids = np.sort(np.random.default_rng(1).permutation(1200)[:40])
    logits[:, ids] = 2.0
    for setting, kept in (({"top_k": 11}, 11), ({"min_p": 0.5}, 40), ({"top_k": 1200}, 1200)):
        options = [{"temperature": 1.0, "position": 1 + p, **setting} for p in range(60)]
        rows = Rows(backend, logits, options, positions=list(range(60))).step()
        check_rows(rows, logits, options)
        assert len(set(rows["tokens"].tolist())) > min(kept, 40) / 3
        if kept <= 40:
            assert set(rows["tokens"].tolist()) <= set(ids[:kept].tolist())


@pytest.mark.parametrize("setting", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 5},
                                     {"temperature": 1.0, "top_p": 0.9}])  # fmt: skip
def test_invalid_logits_are_flagged_and_never_out_of_range(backend, setting):
    logits = normal_logits(6, 1100)
    logits[0] = -np.inf
    logits[1, 1024:] = -200.0  # a chunk that weighs nothing beside the first
    logits[1, 1050] = np.nan
    logits[2, 3] = np.inf
    logits[3] = np.nan
    logits[4] = np.inf
    with np.errstate(all="ignore"):
        rows = Rows(backend, logits, [setting] * 6).step()
    assert [bool(f & INVALID) for f in rows["flags"]] == [True] * 5 + [False]
    assert rows.probs[:5].tolist() == rows["min_prob"][:5].tolist() == [0.0] * 5
    assert all(0 <= t < 1100 for t in rows["tokens"])


def test_settings_that_no_host_checked_stay_in_range(backend):
    odd = [np.nan, np.inf, -1.0, 1e-45, 3e38]
    settings = [{"temperature": 1.0, name: value} for value in odd
                for name in ("temperature", "top_p", "min_p")]  # fmt: skip
    settings += [{"temperature": 1.0, "top_k": k} for k in (2**62, 2**64 - 1)]
    with np.errstate(all="ignore"):
        rows = Rows(backend, normal_logits(len(settings), 1500), settings).step()
    assert all(0 <= t < 1500 for t in rows["tokens"])
    assert not rows["workspace"][: 16 * len(settings)].any(), "counters are zero again"


@pytest.mark.parametrize("mode", ["plain", "all", "top_p most"])
def test_more_candidates_than_the_list_holds(backend, mode):
    logits = normal_logits(4, 3000, scale=0.5)
    options = [{**MODES[mode], "position": 6, "seed": s} for s in range(4)]
    short = Rows(backend, logits, options, candidates=16).step()
    check_rows(short, logits, options)
    whole = Rows(backend, logits, options).step()
    assert short["tokens"].tolist() == whole["tokens"].tolist()
    assert short.probs.tobytes() == whole.probs.tobytes()


def test_a_row_gives_the_same_bits_in_any_batch_and_order(backend):
    options = [{**m, "seed": 4} for m in MODES.values()]
    logits = normal_logits(len(options), 5000, seed=5)
    together = Rows(backend, logits, options).step()
    for order in (1, 2):
        shuffled = Rows(backend, logits, options).step(block_order=order)
        for name in ("tokens", "history_probs", "history_flags", "min_prob"):
            assert shuffled[name].tobytes() == together[name].tobytes()
    for row in range(len(options)):
        alone = Rows(backend, logits[row : row + 1], options[row : row + 1], pad=3).step()
        assert alone["tokens"][0] == together["tokens"][row]
        assert alone.probs[:1].tobytes() == together.probs[row : row + 1].tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("vocab", [111, 49152, 262144])
def test_the_device_gives_the_bits_of_the_emulation(vocab, dtype):
    device = Device()
    options = [{**m, "seed": 4, "beta": 0.2, "theta": 0.6} for m in MODES.values()]
    memory, _ = to_dtype(normal_logits(len(options), vocab, seed=6), dtype)
    for pad in (0, 1):
        pair = [Rows(backend, memory, options, dtype=dtype, pad=pad, capacity=8)
                for backend in (device, Emulation())]  # fmt: skip
        for _ in range(3):
            for rows in pair:
                rows.step()
        for name in ("tokens", "positions", "flags", "min_prob", "num_sampled", "history_tokens",
                     "history_probs", "history_flags"):  # fmt: skip
            assert pair[0][name].tobytes() == pair[1][name].tobytes(), name


@pytest.mark.parametrize("vocab", [2, 111, 8000])
@pytest.mark.parametrize("mode", ["greedy", "plain", "all"])
def test_penalty_and_bias(backend, vocab, mode):
    rng = np.random.default_rng(7)
    logits = normal_logits(12, vocab, seed=vocab, scale=2.0)
    histories = [[*rng.integers(0, vocab, 20).tolist(), int(r.argmax())] for r in logits]
    bias = np.zeros((12, vocab), np.float32)
    biases = []
    for row in range(12):
        named = {int(i): float(rng.normal(0, 4)) for i in rng.integers(0, vocab, 5)}
        named[int(rng.integers(0, vocab))] = -np.inf if vocab > 2 else -3.0
        bias[row, list(named)] = list(named.values())
        biases.append(named)
    settings = [{**MODES[mode], "seed": 8}] * 12
    seen = np.stack([bits_of_seen(vocab, h) for h in histories])
    rows = Rows(backend, logits, settings, seen=seen, penalties=[1.7] * 12, bias=bias).step()
    for row in range(12):
        option = {**MODES[mode], "seed": 8, "position": 6, "repetition_penalty": 1.7,
                  "history": histories[row], "logit_bias": biases[row]}  # fmt: skip
        check_rows_one(rows, row, logits[row], option)
    after = [bits_of_seen(vocab, [*h, int(t)])
             for h, t in zip(histories, rows["tokens"], strict=True)]  # fmt: skip
    assert (rows["seen"] == np.stack(after)).all(), "the sampled token is seen from now on"


def check_rows_one(rows, row, logits, option):
    expected = sample(logits, **option)
    if expected.margin >= MARGIN:
        assert rows["tokens"][row] == expected.token_id == native_sample(logits, **option)[0]
    np.testing.assert_allclose(rows.probs[row], expected.prob, rtol=2e-6)


def test_one_bias_for_all_rows_and_choice_logits(backend):
    raw, choice = normal_logits(2, 1300, seed=1), normal_logits(2, 1300, seed=2)
    bias = np.zeros((1, 1300), np.float32)
    bias[0, 77] = 100.0
    rows = Rows(backend, raw, [{}, {"temperature": 1.0}], bias=bias).step()
    assert rows["tokens"].tolist() == [77, 77]
    rows = Rows(backend, raw, [{}, {"temperature": 1.0, "seed": 4}], choice=choice).step()
    expected = [sample(choice[0]), sample(choice[1], temperature=1.0, seed=4, position=6)]
    assert rows["tokens"].tolist() == [e.token_id for e in expected]
    for row, e in enumerate(expected):
        assert rows.probs[row] == pytest.approx(native_confidence(raw[row], e.token_id), rel=2e-6)


def test_banning_every_token_is_flagged(backend):
    bias = np.full((1, 50), -np.inf, np.float32)
    rows = Rows(backend, normal_logits(1, 50), [{"temperature": 1.0}], bias=bias).step()
    assert rows["flags"][0] & INVALID and 0 <= rows["tokens"][0] < 50


def test_state_moves_on_and_halts(backend):
    table = np.zeros(40, np.uint8)
    table[7], table[5] = 1, 2 | 4
    setting = {"beta": 0.6, "theta": 0.95}
    rows = Rows(backend, np.zeros((3, 40), np.float32), [setting] * 3, positions=[0, 10, -1],
                capacity=3, token_flags=table)  # fmt: skip

    def step(tokens, probs):
        logits = np.zeros((3, 40), np.float32)
        for row, (token, prob) in enumerate(zip(tokens, probs, strict=True)):
            logits[row, token] = np.log(prob * 39 / (1 - prob))
        rows.memory["logits"] = backend.put(logits)
        rows.step(filters=False)

    step([5, 7, 9], [0.9, 0.5, 0.9])
    step([6, 8, 9], [0.55, 0.9, 0.9])
    assert rows["tokens"].tolist() == [6, 7, 0], "row 1 halted at its EOS, row 2 is padding"
    assert rows["positions"].tolist() == [2, 11, -1]
    assert rows["num_sampled"].tolist() == [2, 1, 0]
    np.testing.assert_allclose(rows["min_prob"], [0.55, 0.5, 1.0], rtol=1e-5)
    assert rows["history_tokens"].tolist() == [[5, 6, -1], [7, -1, -1], [-1] * 3]
    low = BELOW_BETA | BELOW_THETA
    assert rows["history_flags"][:, :2].tolist() == [[6 | BELOW_THETA, low], [1 | low, 0], [0, 0]]
    assert rows["flags"].tolist() == [6 | low, 1 | low, 0]
    step([6, 6, 6], [0.9, 0.9, 0.9])
    assert rows["flags"][0] & FULL
    step([4, 4, 4], [0.9, 0.9, 0.9])
    assert rows["tokens"].tolist() == [6, 7, 0] and rows["num_sampled"].tolist() == [3, 1, 0]


def test_thresholds_are_exact_and_advance_is_optional(backend):
    rows = Rows(backend, np.zeros((1, 4), np.float32), [{"beta": 0.25, "theta": 0.25}])
    rows.step(advance=False)
    assert rows["positions"].tolist() == [5] and rows.probs[0] == 0.25
    assert rows["flags"][0] == 0, "p == beta is not below beta"


def test_a_filter_without_the_second_launch_is_flagged(backend):
    rows = Rows(backend, normal_logits(1, 300), [{"temperature": 1.0, "top_k": 3}])
    assert rows.step(filters=False)["flags"][0] & INVALID


def test_random_numbers_are_the_cpus(backend):
    """Two equal tokens: the draw shows on which side of a half the number lies."""
    keys = [(seed, stream, position, index) for seed in (0, 2**64 - 1) for stream in (0, 2**32 - 1)
            for position in range(8) for index in (0, 2**32 - 1)]  # fmt: skip
    options = [{"temperature": 1.0, "seed": k[0], "stream": k[1], "pass_index": k[3]}
               for k in keys]  # fmt: skip
    rows = Rows(backend, np.zeros((len(keys), 2), np.float32), options,
                positions=[k[2] for k in keys]).step()  # fmt: skip
    uniforms = [_C.testing.philox_uniform(s, t, p + 1, i) for s, t, p, i in keys]
    assert rows["tokens"].tolist() == [int(u >= 0.5) for u in uniforms]
    assert 0 < sum(rows["tokens"].tolist()) < len(keys)


@pytest.mark.parametrize("vocab", [271, 3000])
def test_launches_of_any_number_of_rows_share_a_workspace(backend, vocab):
    """As an engine does: one row, then the rows of a verification, then one again."""
    logits = normal_logits(9, vocab)
    settings = [{"temperature": 1.0, "seed": 7, "top_k": 20 * (row % 2)} for row in range(9)]
    shared = Rows(backend, logits, settings)
    for num_rows in (1, 6, 2, 9, 1, 9):
        alone = Rows(backend, logits[:num_rows], settings[:num_rows]).step()
        together = Rows(backend, logits[:num_rows], settings[:num_rows])
        together.memory["workspace"] = shared.memory["workspace"]
        together.sizes["workspace_bytes"] = shared.sizes["workspace_bytes"]
        together.step()
        assert (together["num_sampled"] == 1).all()
        assert (together["tokens"] == alone["tokens"]).all()
        assert together.probs.tobytes() == alone.probs.tobytes()
