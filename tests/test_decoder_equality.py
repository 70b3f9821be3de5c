"""Guarantee 2: the native decoder equals transformers on the dequantised weights."""

import numpy as np
import pytest
from helpers import (
    PROB_TOLERANCE,
    TinyLlama,
    open_engine,
    random_ids,
    smollm2_engine,
    smollm2_transformers,
    tiny_llama_path,
    transformers_decoder,
)

from flarecore.reference.decoder import ReferenceDecoder
from flarecore.reference.gguf_weights import load_llama_gguf
from flarecore.reference.sampler import confidences

PROMPTS = [
    "The history of the bicycle begins in the early nineteenth century, when",
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "<|im_start|>user\nExplain in detail how bread is baked.<|im_end|>\n<|im_start|>assistant\n",
]

LAYOUTS = {
    "gqa": TinyLlama(),
    "mha": TinyLlama(num_kv_heads=4, head_dim=16),
    "mqa-head-80": TinyLlama(num_kv_heads=1, head_dim=80, ffn_size=101, vocab_size=299),
    "head-128": TinyLlama(num_heads=2, num_kv_heads=1, head_dim=128),
    "tied-f16": TinyLlama(tied=True, tensor_type="F16"),
    "bf16": TinyLlama(tensor_type="BF16", vocab_size=333),
    "nine-heads": TinyLlama(num_heads=9, num_kv_heads=3, head_dim=64, hidden_size=288),
    "odd-ffn": TinyLlama(ffn_size=77, num_layers=3),
    "theta": TinyLlama(rope_theta=500000.0),
    "linear": TinyLlama(linear_factor=4.0),
    "bias": TinyLlama(attention_bias=True),
    "bias-q8_0": TinyLlama(attention_bias=True, tensor_type="Q8_0"),
    "qwen2": TinyLlama(architecture="qwen2"),
    "qwen2-tied-q4_0": TinyLlama(architecture="qwen2", tied=True, tensor_type="Q4_0"),
    "qwen2-seven-heads": TinyLlama(architecture="qwen2", num_heads=14, num_kv_heads=2),
    "qwen2-linear": TinyLlama(architecture="qwen2", linear_factor=4.0, rope_theta=1e6),
    "qwen3": TinyLlama(architecture="qwen3", rope_theta=1e6),
    "qwen3-tied-q4_0": TinyLlama(architecture="qwen3", tied=True, tensor_type="Q4_0"),
    "qwen3-head-128": TinyLlama(architecture="qwen3", num_heads=8, num_kv_heads=1, head_dim=128),
    "qwen3-linear": TinyLlama(architecture="qwen3", linear_factor=4.0, tensor_type="BF16"),
    "llama3-factors": TinyLlama(rope_factors=tuple(float(f) for f in np.linspace(1, 8, 16))),
    "q4_0": TinyLlama(tensor_type="Q4_0"),
    "q4_1": TinyLlama(tensor_type="Q4_1"),
    "q5_0": TinyLlama(tensor_type="Q5_0"),
    "q5_1": TinyLlama(tensor_type="Q5_1"),
    "q8_0": TinyLlama(tensor_type="Q8_0", tied=True),
    **{
        name.lower(): TinyLlama(tensor_type=name, num_heads=8, hidden_size=256, ffn_size=256)
        for name in ("Q4_K", "Q5_K", "Q6_K")
    },
}
QUANTIZED = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "bias-q8_0",
             "qwen2-tied-q4_0", "qwen3-tied-q4_0"]


def greedy(engine, token_ids, num_tokens):
    """Native greedy decoding past any end-of-text token: (ids, probs)."""
    sequence = engine.sequence(token_ids)
    decoded = sequence.decode(num_tokens, until="eos", ignore_eos=True)
    sequence.close()
    return list(decoded.token_ids), decoded.probs


@pytest.mark.parametrize("prompt", PROMPTS, ids=["prose", "code", "chat"])
def test_smollm2_greedy_equals_transformers(prompt):
    engine = smollm2_engine()
    token_ids = engine.tokenizer.encode(prompt, parse_special=True)
    expected_ids, expected_probs = smollm2_transformers().greedy(token_ids, 64)
    chosen, probs = greedy(engine, token_ids, 64)
    assert chosen == expected_ids
    assert probs.min() < 0.5 < probs.max(), "a prompt without doubt tests little"
    np.testing.assert_allclose(probs, expected_probs, atol=PROB_TOLERANCE, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiny_greedy_equals_transformers(layout):
    path = tiny_llama_path(LAYOUTS[layout])
    weights = load_llama_gguf(path)
    engine = open_engine(LAYOUTS[layout])
    token_ids = random_ids(45, weights.shape.vocab_size)
    expected_ids, expected_probs = transformers_decoder(weights).greedy(token_ids, 64)
    chosen, probs = greedy(engine, token_ids, 64)
    assert chosen == expected_ids
    assert len(set(chosen)) > 5, "a model that repeats itself tests little"
    np.testing.assert_allclose(probs, expected_probs, atol=PROB_TOLERANCE, rtol=0)


@pytest.mark.parametrize("layout", ["gqa", "mqa-head-80", "linear", "q4_1", "bias", "qwen2",
                                    "qwen3"])
def test_scores_equal_the_float64_reference(layout):
    """Probabilities of given tokens, likely or not, over several KV blocks."""
    weights = load_llama_gguf(tiny_llama_path(LAYOUTS[layout]))
    engine = open_engine(LAYOUTS[layout])
    token_ids = random_ids(300, weights.shape.vocab_size, seed=8)
    distribution = confidences(ReferenceDecoder(weights).logits(token_ids))
    expected = distribution[np.arange(len(token_ids) - 1), token_ids[1:]]
    scored = engine.sequence(token_ids[:1]).score(token_ids[1:])
    assert list(scored.token_ids) == token_ids[1:]
    np.testing.assert_allclose(scored.probs, expected, atol=1e-5, rtol=1e-3)


def test_scores_of_a_long_context():
    """Beyond one split of attention."""
    spec = TinyLlama(context_length=4096, num_layers=1)
    weights = load_llama_gguf(tiny_llama_path(spec))
    token_ids = random_ids(2600, seed=3)
    logits = ReferenceDecoder(weights, "float32").logits(token_ids, last=40)
    expected = confidences(logits)[np.arange(39), token_ids[-39:]]
    engine = open_engine(spec, threads=2)
    scored = engine.sequence(token_ids[:-39]).score(token_ids[-39:])
    np.testing.assert_allclose(scored.probs, expected, atol=1e-5, rtol=1e-3)


def test_greedy_confidence_equals_score():
    """The same float, whether a token was chosen or given."""
    engine = open_engine(TinyLlama())
    sequence = engine.sequence(random_ids(40))
    decoded = sequence.fork().decode(50, until="eos", ignore_eos=True)
    scored = sequence.score(decoded.token_ids)
    assert scored.probs.tobytes() == decoded.probs.tobytes()


# ---- compute="int8" ----


def test_int8_agrees_with_float32_on_smollm2():
    """Quantised activations move probabilities a little and change few greedy tokens.

    Stated tolerance: at least 85% of next tokens are equal, the mean |difference| of the
    probability of a given token is below 0.02, the largest below 0.35.
    """
    exact, fast = smollm2_engine("float32"), smollm2_engine("int8")
    token_ids = exact.tokenizer.encode(PROMPTS[0])
    token_ids += greedy(exact, token_ids, 64)[0]
    probs = [
        engine.sequence(token_ids[:1]).score(token_ids[1:]).probs.astype(np.float64)
        for engine in (exact, fast)
    ]
    difference = np.abs(probs[0] - probs[1])
    assert 1e-5 < difference.mean() < 0.02
    assert difference.max() < 0.35
    equal = [
        len({tuple(greedy(engine, token_ids[:n], 1)[0]) for engine in (exact, fast)}) == 1
        for n in range(8, len(token_ids), 2)
    ]
    assert np.mean(equal) >= 0.85


@pytest.mark.parametrize("kv_format", ["float16", "int16"])
@pytest.mark.parametrize("layout", QUANTIZED)
def test_int8_rounds_what_the_reference_rounds(layout, kv_format):
    """Equal to a reference that rounds the same values, but for those almost halfway between.

    Such a value may go the other way after other rounding errors, and moves everything after it;
    in short sequences most probabilities are not touched by one.
    """
    weights = load_llama_gguf(tiny_llama_path(LAYOUTS[layout]))
    engine = open_engine(LAYOUTS[layout], compute="int8", kv_format=kv_format)
    decoders = {c: ReferenceDecoder(weights, compute=c, kv_format=kv_format)
                for c in ("int8", "float32")}
    errors = {c: [] for c in decoders}
    for seed in range(30):
        token_ids = random_ids(5, seed=seed)
        native = engine.sequence(token_ids[:1]).score(token_ids[1:]).probs
        for compute, decoder in decoders.items():
            distribution = confidences(decoder.logits(token_ids))
            expected = distribution[np.arange(4), token_ids[1:]]
            errors[compute] += np.abs(np.log(native) - np.log(expected)).tolist()
    assert np.median(errors["int8"]) < 2e-5
    assert np.max(errors["int8"]) < 0.3
    assert np.median(errors["float32"]) > 1e-2, "int8 did not round its activations"
