"""The reference itself: its decoder against transformers, its int8 arithmetic by hand."""

import numpy as np
import pytest
from helpers import (
    PROB_TOLERANCE,
    TinyLlama,
    chi_square_z,
    random_ids,
    smollm2_transformers,
    smollm2_weights,
    tiny_llama_path,
    transformers_decoder,
)

from flarecore.errors import ConfigError
from flarecore.reference.decoder import ReferenceDecoder
from flarecore.reference.gguf_weights import load_llama_gguf
from flarecore.reference.quantized import dequantize_rows, matmul_int8, quantize_rows
from flarecore.reference.sampler import confidences

LAYOUTS = {
    "gqa": TinyLlama(),
    "mha-tied-f16": TinyLlama(num_kv_heads=4, head_dim=16, tied=True, tensor_type="F16"),
    "mqa-head-80": TinyLlama(num_kv_heads=1, head_dim=80, ffn_size=101, vocab_size=299),
    "linear": TinyLlama(linear_factor=4.0),
    "factors": TinyLlama(rope_factors=tuple(float(f) for f in np.linspace(1, 8, 16))),
    "q4_1": TinyLlama(tensor_type="Q4_1"),
    "qwen3": TinyLlama(architecture="qwen3", num_heads=6, num_kv_heads=3, rope_theta=1e6),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_decoder_equals_transformers(layout):
    weights = load_llama_gguf(tiny_llama_path(LAYOUTS[layout]))
    token_ids = random_ids(70, weights.shape.vocab_size)
    ours = ReferenceDecoder(weights).logits(token_ids)
    theirs = transformers_decoder(weights).logits(token_ids)
    assert ours.std() > 1, "flat logits would compare anything with anything"
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


def test_rope_variants_are_different_models():
    token_ids = random_ids(40)
    plain, linear, factors = (
        ReferenceDecoder(load_llama_gguf(tiny_llama_path(LAYOUTS[name]))).logits(token_ids)
        for name in ("gqa", "linear", "factors")
    )
    assert np.abs(plain - linear).max() > 0.1
    assert np.abs(plain - factors).max() > 0.1


def test_llama3_factors_equal_the_formula_of_transformers():
    """Dividing by rope_freqs.weight is what transformers calls rope_type 'llama3'."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        rope_theta=10000.0,
        rope_scaling=scaling,
    )
    theirs = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].numpy()
    plain = 10000.0 ** (-np.arange(0, 32, 2) / 32)
    factors = plain / theirs
    assert factors.min() == pytest.approx(1.0) and factors.max() == pytest.approx(8.0)
    spec = TinyLlama(rope_factors=tuple(factors.tolist()))
    ours = load_llama_gguf(tiny_llama_path(spec)).shape.inverse_frequencies
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_decoder_equals_transformers_on_smollm2():
    token_ids = random_ids(24, 49152, seed=5)
    decoder = ReferenceDecoder(smollm2_weights(), "float32")
    ours = confidences(decoder.logits(token_ids, last=8))
    theirs = confidences(smollm2_transformers().logits(token_ids)[-8:])
    np.testing.assert_allclose(ours, theirs, atol=PROB_TOLERANCE, rtol=0)


def test_decoder_rejects_bad_input():
    weights = load_llama_gguf(tiny_llama_path())
    with pytest.raises(ConfigError, match="at least one token"):
        ReferenceDecoder(weights).logits([])
    with pytest.raises(ConfigError, match="float16"):
        ReferenceDecoder(weights, "float16")


def test_quantize_rows_by_hand():
    x = np.zeros((1, 64), dtype=np.float32)
    # scale 1: what lies halfway goes to the even neighbour, in both signs.
    x[0, :7] = [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.0]
    q, scale = quantize_rows(x)
    assert q[0, :7].tolist() == [127, 0, 2, 2, 0, -2, -126]
    assert scale.tolist() == [[1.0, 0.0]], "a group of zeros has scale 0"
    # All on one side: the steps go from 0 to the far end.
    for sign in (1, -1):
        q, scale = quantize_rows(sign * np.linspace(0, 253, 32, dtype=np.float32)[None])
        assert scale.tolist() == [[1.0]] and sign * q[0, -1] == 253
    assert not q[0, 32:].any()
    with pytest.raises(ConfigError, match="33 columns"):
        quantize_rows(np.zeros((1, 33), dtype=np.float32))


def test_matmul_int8_is_close_to_the_exact_product():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 96)).astype(np.float32)
    weight = rng.standard_normal((7, 96)).astype(np.float32)
    q, scale = quantize_rows(x)
    # Half a step per activation, at most.
    assert (np.abs(dequantize_rows(q, scale) - x) <= np.repeat(scale, 32, axis=1) * 0.5001).all()
    exact = x.astype(np.float64) @ weight.T.astype(np.float64)
    error = np.abs(matmul_int8(x, weight) - exact)
    assert 0 < error.max() < 0.02 * np.abs(exact).max()


def test_chi_square_tells_equal_from_different():
    rng = np.random.default_rng(1)
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    fair = np.bincount(rng.choice(4, 4000, p=probs), minlength=4)
    biased = np.bincount(rng.choice(4, 4000, p=[0.46, 0.34, 0.15, 0.05]), minlength=4)
    assert abs(chi_square_z(fair, probs)) < 3
    assert chi_square_z(biased, probs) > 4
