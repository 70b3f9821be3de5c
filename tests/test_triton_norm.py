"""RMSNorm and the gated activations against numpy float64."""

from __future__ import annotations

import numpy as np
import pytest
from triton_env import bits, device_tensor, float64, torch

from kernels.norm import embed_norm, rms_norm
from kernels.swiglu import gated_activation

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
EPS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def random(dtype, *shape, seed=0, scale=1.0):
    return device_tensor(np.random.default_rng(seed).standard_normal(shape) * scale, dtype)


def reference(x, weight, eps):
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 111, 576, 4096])
def test_rms_norm(dtype, columns):
    x, weight = random(dtype, 3, columns, scale=4.0), random(torch.float32, columns, seed=1)
    out = rms_norm(x, weight, 1e-5, weight_offset=1.0)
    expected = reference(float64(x), float64(weight) + 1.0, 1e-5)
    np.testing.assert_allclose(float64(out), expected, rtol=EPS[dtype], atol=EPS[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_residual_is_added_in_place_and_normalised(dtype):
    # Rows with a stride of their own, a float32 residual stream, a row of zeros.
    x = random(dtype, 4, 300)[:, :111]
    residual = random(torch.float32, 4, 111, seed=1)
    residual[2], x[2] = 0.0, 0.0
    weight = random(dtype, 111, seed=2)
    total = float64(x) + float64(residual)
    expected = reference(total, float64(weight), 1e-6)
    out = rms_norm(x, weight, 1e-6, residual=residual)
    np.testing.assert_allclose(float64(residual), total, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(float64(out), expected, rtol=EPS[dtype], atol=EPS[dtype])
    assert not out[2].any()


def test_fused_residual_has_the_bits_of_two_steps():
    x, residual = random(torch.bfloat16, 3, 576), random(torch.bfloat16, 3, 576, seed=1)
    weight = random(torch.bfloat16, 576, seed=2)
    fused = rms_norm(x, weight, 1e-6, residual=residual)
    assert bits(rms_norm(residual, weight, 1e-6)) == bits(fused)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_post_norm_has_the_bits_of_two_launches(dtype):
    x, residual = random(dtype, 3, 300, scale=3.0)[:, :111], random(torch.float32, 3, 111, seed=1)
    post, weight = random(torch.float32, 111, seed=2), random(torch.float32, 111, seed=3)
    expected_residual = residual.clone()
    normed = rms_norm(x, post, 1e-6)
    expected = rms_norm(normed, weight, 1e-6, residual=expected_residual)
    out = rms_norm(x, weight, 1e-6, residual=residual, post_weight=post)
    assert bits(out) == bits(expected) and bits(residual) == bits(expected_residual)
    with pytest.raises(ValueError, match="post_weight needs a residual"):
        rms_norm(x, weight, 1e-6, post_weight=post)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 11.3])
def test_embed_norm_has_the_bits_of_its_steps(dtype, scale):
    """Gather, widen, scale, normalise; ids outside of the vocabulary read nothing."""
    embedding = random(dtype, 7, 200)[:, :111]
    weight, ids = random(torch.float32, 111, seed=2), [3, 0, 6, 7, -1, 3]
    residual = random(torch.float32, len(ids), 111, seed=3)
    out = torch.empty_like(residual, dtype=dtype)
    embed_norm(device_tensor(np.array(ids, np.int32)), embedding, weight, 1e-5, residual=residual,
               out=out, scale=scale)  # fmt: skip
    wanted = torch.zeros_like(residual)
    for row, token in enumerate(ids):
        if 0 <= token < 7:
            wanted[row] = embedding[token].float() * scale
    assert bits(residual) == bits(wanted)
    assert bits(out) == bits(rms_norm(wanted, weight, 1e-5, out=torch.empty_like(out)))
    with pytest.raises(TypeError, match="token_ids must have dtype int32"):
        embed_norm(torch.zeros(6, dtype=torch.int64, device=out.device), embedding, weight, 1e-5,
                   residual=residual, out=out)  # fmt: skip
    with pytest.raises(ValueError, match=r"residual must have shape \(6, 111\)"):
        embed_norm(device_tensor(np.zeros(6, np.int32)), embedding, weight, 1e-5,
                   residual=residual[:5], out=out)  # fmt: skip


def test_a_row_has_the_same_bits_alone_and_in_place():
    x, weight = random(torch.float32, 5, 576), random(torch.float32, 576, seed=1)
    together = rms_norm(x, weight, 1e-6)
    assert bits(rms_norm(x[3:4], weight, 1e-6)[0]) == bits(together[3])
    assert bits(rms_norm(x, weight, 1e-6, out=x)) == bits(together)


def test_norm_errors():
    x, weight = random(torch.float32, 2, 8), random(torch.float32, 8)
    with pytest.raises(ValueError, match=r"weight must have shape \(8\), got \(7,\)"):
        rms_norm(x, weight[:7], 1e-6)
    with pytest.raises(ValueError, match="eps must be > 0"):
        rms_norm(x, weight, 0.0)
    with pytest.raises(ValueError, match="1 to 16384 columns, got 16385"):
        rms_norm(torch.zeros(1, 16385, device=x.device), weight, 1e-6)
    with pytest.raises(ValueError, match="x must be contiguous from dimension 1 on"):
        rms_norm(x.T, weight[:2], 1e-6)
    with pytest.raises(TypeError, match="x must have dtype float32, float16, bfloat16"):
        rms_norm(x.double(), weight, 1e-6)
    with pytest.raises(TypeError, match=r"weight must be a torch\.Tensor, got list"):
        rms_norm(x, [1.0], 1e-6)
    assert rms_norm(x[:0], weight, 1e-6).shape == (0, 8)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_activation(dtype, activation):
    # The two halves of one projection, more than one block of columns, extreme gates.
    gate_up = random(dtype, 3, 2 * 1111, scale=3.0)
    gate_up[0, 0], gate_up[0, 1] = 200.0, -200.0
    gate, up = gate_up[:, :1111], gate_up[:, 1111:]
    out = gated_activation(gate, up, activation=activation)
    g, u = float64(gate), float64(up)
    if activation == "silu":
        expected = g / (1 + np.exp(-g)) * u
    else:
        expected = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) * u
    np.testing.assert_allclose(float64(out), expected, rtol=EPS[dtype], atol=EPS[dtype])
    assert bits(gated_activation(gate, up, activation=activation, out=gate)) == bits(out)


def test_activation_errors():
    x = random(torch.float32, 2, 8)
    with pytest.raises(ValueError, match="activation must be one of silu, gelu_tanh, got 'relu'"):
        gated_activation(x, x, activation="relu")
    with pytest.raises(ValueError, match=r"up must have shape \(2, 8\), got \(2, 7\)"):
        gated_activation(x, x[:, :7])
