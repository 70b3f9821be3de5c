"""The fused sampler against a float64 reference that sorts, and against the CPU sampler."""

from __future__ import annotations

import numpy as np
import pytest
from triton_env import DEVICE, bits, device_only, device_tensor, tl, torch, triton

from kernels.sampling import SamplerState, SamplerWorkspace, TokenFlag, sample
from kernels.sampling_math import _exp, _uniform

NEG_INF = float("-inf")
M32 = 0xFFFFFFFF


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & M32, (p0 >> 32) ^ c[3] ^ k[1], p0 & M32]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return c


def uniform(seed, stream, position, pass_index):
    out = philox((position, stream, pass_index, 0), (seed & M32, seed >> 32))
    return ((out[0] >> 9) + 0.5) / (1 << 23)


def reference(choice, raw, u, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0):
    """(token, confidence, margin): margin is how far u and top_p are from choosing otherwise."""
    choice, raw = choice.astype(np.float64), raw.astype(np.float64)
    probs = np.exp(raw - raw.max())
    probs /= probs.sum()
    if temperature == 0.0:
        token = int(np.argmax(choice))
        return token, probs[token], 1.0
    weights = np.exp((choice - choice.max()) / temperature)
    order = np.arange(len(choice))
    margin = 1.0
    if top_k > 0 or top_p < 1.0 or min_p > 0.0:
        order = np.lexsort((order, -choice))
        if top_k > 0:
            order = order[:top_k]
        if top_p < 1.0:
            cumulative = np.cumsum(weights[order]) / weights[order].sum()
            margin = np.abs(cumulative - np.float32(top_p)).min()
            order = order[: np.argmax(cumulative >= np.float32(top_p)) + 1]
        if min_p > 0.0:
            order = order[weights[order] >= min_p]
    cumulative = np.cumsum(weights[order])
    cumulative /= cumulative[-1]
    token = int(order[np.argmax(cumulative > u)])
    return token, probs[token], min(margin, np.abs(cumulative - u).min())


def run(logits, settings, positions=None, choice=None, candidates=1 << 15, capacity=4, dtype=None,
        steps=1, **options):  # fmt: skip
    """One launch (or `steps`) of the sampler over numpy logits -> state."""
    num_rows, vocab = logits.shape
    state = SamplerState.allocate(num_rows, capacity, DEVICE)
    workspace = SamplerWorkspace.allocate(num_rows, vocab, DEVICE, candidates)
    for row, setting in enumerate(settings):
        state.configure(row, **setting)
        state.reset(row, 5 if positions is None else positions[row])
    tensor = device_tensor(logits, dtype)
    flags = torch.zeros(vocab, dtype=torch.uint8, device=DEVICE)
    choice = None if choice is None else device_tensor(choice, dtype)
    for _ in range(steps):
        sample(tensor, flags, state, workspace, choice_logits=choice, **options)
    assert not workspace.counters.any(), "counters must be zero after a step"
    return state


def check(logits, settings, choice=None, positions=None, **options):
    """Every row's token and confidence equal the reference's."""
    positions = positions or [5] * len(logits)
    state = run(logits, settings, positions, choice, **options)
    for row, setting in enumerate(settings):
        drawn = dict(setting)
        seed, stream = drawn.pop("seed", 0), drawn.pop("stream", 0)
        u = uniform(seed, stream, positions[row] + 1, drawn.pop("pass_index", 0))
        raw = logits[row]
        token, prob, margin = reference(raw if choice is None else choice[row], raw, u, **drawn)
        assert margin > 1e-6, f"row {row}: too close to call, take another seed"
        assert state.tokens[row].item() == token, f"row {row}: {setting}"
        np.testing.assert_allclose(state.history_probs[row, 0].item(), prob, rtol=1e-6)
    return state


def random_logits(rows, vocab, seed=0, scale=3.0):
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * scale).astype(np.float32)


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


FILTERS = [
    {"top_k": 1},
    {"top_k": 7, "seed": 2},
    {"top_p": 0.5, "seed": 2},
    {"top_p": 0.95, "temperature": 2.0, "seed": 4},
    {"min_p": 0.05, "seed": 5},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.8, "seed": 6},
    {"top_k": 1000, "top_p": 0.7, "min_p": 0.02, "seed": 7},
    {"top_p": 1e-6},
    {},
]


def filter_settings():
    return [{"temperature": 1.0, **f} for f in FILTERS]


@pytest.mark.parametrize("vocab", [1, 111, 1500, device_only(128256), device_only(262144)])
def test_filters(vocab):
    logits = random_logits(len(FILTERS), vocab, seed=vocab)
    check(logits, filter_settings())


@pytest.mark.parametrize("vocab", [111, 1500])
def test_same_tokens_as_the_cpu_sampler(vocab):
    native = pytest.importorskip("flarecore._C", reason="the C++ core is not built").testing
    settings = [{"temperature": 0.8, **f, "stream": 3} for f in [{}, *FILTERS, {"top_k": vocab}]]
    settings += [{}, {"temperature": 3.0, "seed": (1 << 63) + 5}]
    logits = random_logits(len(settings), vocab, seed=7)
    logits[:, ::3] = np.round(logits[:, ::3])
    state = run(logits, settings, [40 + row for row in range(len(settings))])
    for row, setting in enumerate(settings):
        token, prob = native.sample(logits[row], setting, position=41 + row)
        assert state.tokens[row].item() == token, f"row {row}: {setting}"
        np.testing.assert_allclose(state.history_probs[row, 0].item(), prob, rtol=2e-6)


def test_filters_cut_ties_by_id():
    # 40 equal logits over two chunks: the kept ones are the lowest ids.
    logits = np.full((3, 1200), -3.0, np.float32)
    ids = np.random.default_rng(1).permutation(1200)[:40]
    logits[:, ids] = 2.0
    settings = [{"top_k": 11, "seed": 1}, {"top_p": 0.3, "seed": 8}, {"min_p": 0.5, "seed": 3}]
    check(logits, [{"temperature": 1.0, **s} for s in settings])


def test_more_candidates_than_the_list_holds():
    logits = random_logits(3, 3000, scale=0.5)
    settings = [{"top_p": 0.9, "seed": 11}, {"top_k": 60, "seed": 12}, {"min_p": 0.1, "seed": 13}]
    settings = [{"temperature": 1.0, **s} for s in settings]
    short = check(logits, settings, candidates=16)
    long = check(logits, settings)
    assert bits(short.history_probs) == bits(long.history_probs)


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
