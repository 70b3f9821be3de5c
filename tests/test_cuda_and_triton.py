"""The two GPU samplers serve the same rows: same tokens and flags from the same state."""

from __future__ import annotations

import numpy as np
import pytest
from helpers_cuda import FLOAT_COLUMNS, INT_COLUMNS, Device, Emulation, Rows
from test_sampling import FILTERS
from triton_env import DEVICE, INTERPRETED, device_tensor, torch

from kernels import sampling, sampling_state

SETTINGS = [{}, *FILTERS.values(), {"temperature": 1.0, "top_k": 1 << 18}]


def test_the_columns_and_flags_are_the_same():
    columns = ("TEMPERATURE", "TOP_P", "MIN_P", "BETA", "THETA")
    assert [getattr(sampling_state, c).value for c in columns] == list(range(len(FLOAT_COLUMNS)))
    assert [c.lower() for c in columns] == list(FLOAT_COLUMNS)
    columns = ("SEED", "STREAM", "PASS", "TOP_K", "HALT")
    assert [getattr(sampling_state, c).value for c in columns] == list(range(len(INT_COLUMNS)))
    flag = sampling.TokenFlag
    assert [flag.MAY_END, flag.SETTLES, flag.TABLE, flag.BELOW_BETA, flag.BELOW_THETA,
            flag.INVALID, flag.FULL, flag.LOOKED] == [
        2, 4, 31, 32, 64, 128, 256, 512]  # fmt: skip


@pytest.mark.parametrize("vocab", [111, 3000])
def test_same_tokens_as_the_triton_sampler(vocab):
    settings = [{**s, "seed": 3, "stream": 7, "beta": 0.1, "theta": 0.3} for s in SETTINGS]
    logits = (np.random.default_rng(vocab).standard_normal((len(settings), vocab)) * 3).astype("f4")
    logits[:, ::3] = np.round(logits[:, ::3])
    table = np.random.default_rng(1).integers(0, 8, vocab).astype(np.uint8)
    state = sampling.SamplerState.allocate(len(settings), 3, DEVICE)
    workspace = sampling.SamplerWorkspace.allocate(len(settings), vocab, DEVICE)
    for row, setting in enumerate(settings):
        state.configure(row, halt_flags=0, **setting)
        state.reset(row, 5)
    backend = Emulation() if INTERPRETED else Device()
    settings = [{**s, "halt_flags": 0} for s in settings]
    rows = Rows(backend, logits, settings, token_flags=table, capacity=3)
    for _ in range(3):
        rows.step()
        sampling.sample(device_tensor(logits), torch.as_tensor(table, device=DEVICE), state,
                        workspace)  # fmt: skip
    names = ("tokens", "positions", "flags", "num_sampled", "history_tokens", "history_flags")
    for name in names:
        assert rows[name].tolist() == getattr(state, name).tolist(), name
    looked = [bool(flags & sampling.TokenFlag.LOOKED) for flags in rows["flags"].tolist()]
    assert any(looked) and not all(looked)
    for name in ("min_prob", "history_probs"):
        ours, triton = rows[name], getattr(state, name).cpu().numpy()
        if INTERPRETED:  # which has no fused multiply-add
            np.testing.assert_allclose(ours, triton, rtol=1e-6)
        else:
            assert ours.tobytes() == triton.tobytes(), name
