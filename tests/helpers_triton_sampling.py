"""The fused sampler beside a float64 reference that sorts."""

from __future__ import annotations

import numpy as np
from triton_env import DEVICE, device_tensor, torch

from kernels.sampling import SamplerState, SamplerWorkspace, sample

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
