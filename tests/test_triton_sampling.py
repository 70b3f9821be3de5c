"""The fused sampler without filters: tokens, confidences, random numbers, state."""

from __future__ import annotations

import numpy as np
import pytest
from helpers_triton_sampling import M32, NEG_INF, check, philox, random_logits, run, uniform
from triton_env import DEVICE, bits, device_only, device_tensor, tl, torch, triton

from kernels.sampling import SamplerState, SamplerWorkspace, TokenFlag, sample
from kernels.sampling_math import _exp, _uniform


@triton.jit
def _uniform_kernel(ints_ptr, positions_ptr, out_ptr):
    row = tl.program_id(0)
    tl.store(out_ptr + row, _uniform(ints_ptr, row, tl.load(positions_ptr + row)))


@triton.jit
def _exp_kernel(x_ptr, out_ptr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out_ptr + i, _exp(tl.load(x_ptr + i)))


def test_exp_is_accurate_and_defined_everywhere():
    x = np.concatenate([-np.geomspace(1e-8, 87, 1021), [0.0, NEG_INF, -1e38]]).astype(np.float32)
    out = torch.zeros(1024, device=DEVICE)
    _exp_kernel[(1,)](device_tensor(x), out, SIZE=1024)
    np.testing.assert_allclose(out.cpu().numpy(), np.exp(x.astype(np.float64)), rtol=2.5e-7)
    assert out[1021].item() == 1.0 and out[1022].item() == 0.0 and out[1023].item() == 0.0


def test_random_numbers_equal_the_cpu():
    # Known answers of Random123 for Philox 4x32-10.
    assert philox((0,) * 4, (0,) * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox((M32,) * 4, (M32,) * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    draws = [(0, 0, 0, 0), (1, 2, 3, 4), ((1 << 64) - 1, M32, 0x7FFFFFFE, M32),
             (0x0123456789ABCDEF, 7, 262143, 1)]  # fmt: skip
    state = SamplerState.allocate(len(draws), 1, DEVICE)
    for row, (seed, stream, position, pass_index) in enumerate(draws):
        state.configure(row, seed=seed, stream=stream, pass_index=pass_index)
        state.reset(row, position - 1)
    out = torch.zeros(len(draws), device=DEVICE)
    _uniform_kernel[(len(draws),)](state.ints, state.positions, out)
    got = out.cpu().tolist()
    assert got == [uniform(*draw) for draw in draws]

    native = pytest.importorskip("flarecore._C", reason="the C++ core is not built").testing
    assert got == [native.philox_uniform(*draw) for draw in draws]


@pytest.mark.parametrize(
    "vocab", [1, 111, 1024, 1025, 32000, device_only(128256), device_only(262144)]
)
def test_greedy_and_temperature(vocab):
    logits = random_logits(3, vocab, seed=vocab)
    check(logits, [{}, {"temperature": 1.0, "seed": 3}, {"temperature": 0.3, "stream": 9}])


def test_ties_go_to_the_lowest_id():
    logits = random_logits(3, 2500)
    logits[0, [2100, 700, 1500]] = 50.0
    logits[1, [2047, 2048]] = 50.0
    # -0 and 0 are one logit.
    logits[2] = -1.0
    logits[2, 1700], logits[2, 900] = 0.0, -0.0
    state = check(logits, [{}] * 3)
    assert state.tokens.tolist() == [700, 2047, 900]
    state = run(logits, [{"temperature": 1.0, "top_k": 1}] * 3)
    assert state.tokens.tolist() == [700, 2047, 900]


def test_infinite_logits():
    logits = random_logits(4, 1500)
    logits[:, 1::2] = NEG_INF
    logits[3] = NEG_INF
    logits[3, 1234] = -7.0
    # A whole chunk without weight.
    logits[2, :1024] = NEG_INF
    settings = [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 1200}, {"temperature": 2.0}]
    state = check(logits, settings)
    assert state.history_probs[3, 0].item() == 1.0


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")
@pytest.mark.parametrize("filtered", [False, True])
def test_invalid_logits_are_flagged(filtered):
    logits = random_logits(5, 1100)
    logits[0] = NEG_INF
    # Its chunk weighs nothing beside the first one.
    logits[1, 1024:] = -200.0
    logits[1, 1050] = float("nan")
    logits[2, 3] = float("inf")
    logits[3] = float("nan")
    setting = {"temperature": 1.0, "top_k": 5} if filtered else {"temperature": 1.0}
    with np.errstate(all="ignore"):
        state = run(logits, [setting] * 5)
    flags = state.flags.tolist()
    assert [bool(f & TokenFlag.INVALID) for f in flags] == [True] * 4 + [False]
    assert state.history_probs[:4, 0].tolist() == [0.0] * 4
    assert state.min_prob[:4].tolist() == [0.0] * 4
    assert all(0 <= t < 1100 for t in state.tokens.tolist())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits(dtype):
    logits = device_tensor(random_logits(3, 1111), dtype).float().cpu().numpy()
    settings = [{}, {"temperature": 1.0, "seed": 1}, {"temperature": 0.8, "top_k": 30, "seed": 5}]
    check(logits, settings, dtype=dtype)


def test_a_row_gives_the_same_bits_in_any_batch():
    logits = random_logits(4, 2100, seed=5)
    settings = [{}, {"temperature": 0.9, "seed": 1}, {"temperature": 1.0, "seed": 2},
                {"temperature": 1.0, "top_p": 0.9, "seed": 3}]  # fmt: skip
    together = run(logits, settings)
    for row in range(4):
        alone = run(logits[row : row + 1], settings[row : row + 1])
        assert alone.tokens[0].item() == together.tokens[row].item()
        assert bits(alone.history_probs[0]) == bits(together.history_probs[row])


@pytest.mark.parametrize("top_k", [0, 25])
def test_confidence_comes_from_raw_logits(top_k):
    raw, choice = random_logits(2, 1300, seed=1), random_logits(2, 1300, seed=2)
    settings = [{}, {"temperature": 1.3, "seed": 4, "top_k": top_k}]
    check(raw, settings, choice=choice)


def test_state_moves_on_and_halts():
    vocab = 40
    state = SamplerState.allocate(3, 3, DEVICE)
    workspace = SamplerWorkspace.allocate(3, vocab, DEVICE)
    table = np.zeros(vocab, np.uint8)
    table[7] = TokenFlag.EOS
    table[5] = TokenFlag.MAY_END | 4
    flags = device_tensor(table)
    for row in range(2):
        state.configure(row, beta=0.6, theta=0.95)
        state.reset(row, 10 * row, token=1)

    def step(tokens, probs):
        logits = np.zeros((3, vocab), np.float32)
        for row, (token, prob) in enumerate(zip(tokens, probs, strict=True)):
            logits[row, token] = np.log(prob * (vocab - 1) / (1 - prob))
        sample(device_tensor(logits), flags, state, workspace)

    step([5, 7, 9], [0.9, 0.5, 0.9])
    step([6, 8, 9], [0.55, 0.9, 0.9])
    assert state.tokens.tolist() == [6, 7, 0], "row 1 halted at its EOS, row 2 is padding"
    assert state.positions.tolist() == [2, 11, -1]
    assert state.num_sampled.tolist() == [2, 1, 0]
    np.testing.assert_allclose(state.min_prob.tolist(), [0.55, 0.5, 1.0], rtol=1e-5)
    assert state.history_tokens[0, :2].tolist() == [5, 6]
    np.testing.assert_allclose(state.history_probs[0, :2].tolist(), [0.9, 0.55], rtol=1e-5)
    low = int(TokenFlag.BELOW_BETA | TokenFlag.BELOW_THETA)
    assert state.history_flags[0, :2].tolist() == [int(table[5]) | TokenFlag.BELOW_THETA, low]
    assert state.history_flags[1, 0].item() == TokenFlag.EOS | low
    assert state.flags.tolist() == [int(table[5]) | low, int(TokenFlag.EOS) | low, 0]

    step([6, 6, 6], [0.9, 0.9, 0.9])
    assert state.flags[0].item() & TokenFlag.FULL
    step([4, 4, 4], [0.9, 0.9, 0.9])
    assert state.tokens.tolist() == [6, 7, 0] and state.num_sampled.tolist() == [3, 1, 0]

    state.reset(0, 20, token=3)
    step([4, 4, 4], [0.9, 0.9, 0.9])
    assert state.tokens[0].item() == 4 and state.positions[0].item() == 21
    np.testing.assert_allclose(state.min_prob[0].item(), 0.9, rtol=1e-5)


def test_a_row_halts_where_it_has_looked_behind_a_token_that_may_end():
    """Not at the token itself, nor at one that settles nothing, nor at one that settles alone."""
    table = np.array([0, TokenFlag.SETTLES, TokenFlag.MAY_END,
                      TokenFlag.MAY_END | TokenFlag.SETTLES], np.uint8)  # fmt: skip
    paths = [[1, 2, 0, 1, 1], [3, 2, 1, 1, 1], [3, 3, 1, 1, 1], [1, 1, 1, 1, 1]]
    state = SamplerState.allocate(len(paths), 8, DEVICE)
    workspace = SamplerWorkspace.allocate(len(paths), 4, DEVICE)
    for row in range(len(paths)):
        state.configure(row, halt_flags=TokenFlag.LOOKED)
        state.reset(row, 10)
    for tokens in zip(*paths, strict=True):
        logits = np.zeros((len(paths), 4), np.float32)
        logits[np.arange(len(paths)), tokens] = 5.0
        sample(device_tensor(logits), device_tensor(table), state, workspace)
    assert state.num_sampled.tolist() == [4, 3, 2, 5]
    assert state.positions.tolist() == [14, 13, 12, 15]
    assert [bool(f & TokenFlag.LOOKED) for f in state.flags.tolist()] == [True] * 3 + [False]


def test_advance_is_optional_and_confidence_equals_thresholds_exactly():
    logits = np.zeros((1, 4), np.float32)
    state = run(logits, [{"beta": 0.25, "theta": 0.25}], advance=False)
    assert state.positions.tolist() == [5]
    assert state.history_probs[0, 0].item() == 0.25
    assert state.flags[0].item() == 0, "p == beta is not below beta"


def test_errors():
    logits = random_logits(1, 10)
    for setting, message in [
        ({"temperature": -1.0}, "temperature must be finite and >= 0, got -1.0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"min_p": 1.5}, "min_p must be in"),
        ({"top_k": -1}, "top_k must be >= 0"),
        ({"seed": 1 << 64}, "seed must fit into 64 bits"),
        ({"stream": -1}, "stream must fit into 32 bits"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(logits, [setting])
    with pytest.raises(ValueError, match="filters=False, but a row uses top_k"):
        run(logits, [{"temperature": 1.0, "top_k": 2}], filters=False)
    with pytest.raises(ValueError, match="vocab_size must be 1 to 262144, got 262145"):
        SamplerWorkspace.allocate(1, 262145, DEVICE)
    with pytest.raises(ValueError, match="row must be 0 to 0, got 1"):
        SamplerState.allocate(1, 1, DEVICE).configure(1)
    state, workspace = SamplerState.allocate(1, 1, DEVICE), SamplerWorkspace.allocate(1, 9, DEVICE)
    with pytest.raises(ValueError, match="logits must have the workspace's 9 columns, got 10"):
        sample(device_tensor(logits), None, state, workspace)
