"""Guarantee 2 for Gemma 3: the native decoder equals transformers on the dequantised weights."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import PROB_TOLERANCE, open_engine, transformers_decoder
from helpers_gemma import (
    TinyGemma,
    expected_greedy,
    gemma_engine,
    gemma_transformers,
    tiny_gemma_path,
)
from helpers_gguf import Gguf, Tensor, Typed

from flarecore import _C
from flarecore.errors import ModelFileError, UnsupportedError
from flarecore.model_files import find_model
from flarecore.reference.gemma_weights import load_gemma_gguf

PROMPTS = {
    "English": "The history of the bicycle begins in the early nineteenth century, when",
    "Chinese": "北京是中国的首都，它的历史可以追溯到",
    "mixed": "Python 是一种编程语言 (programming language)，它的特点是",
}
# More than the window of 512: what layers with a window see does not reach back to the beginning.
LONG = "".join(
    f"第{n}章 Chapter {n}: {n} 加 {n} 等于 {2 * n}, {n} squared is {n * n}。\n" for n in range(20)
)

LAYOUTS = {
    "mqa": TinyGemma(),
    "gqa": TinyGemma(num_kv_heads=2),
    "mha": TinyGemma(num_kv_heads=4),
    "head-256": TinyGemma(num_heads=2, head_dim=256, num_layers=2),
    "head-24": TinyGemma(head_dim=24, ffn_size=77, vocab_size=290),
    "six-layers": TinyGemma(num_layers=7, window_pattern=None),
    "window-1": TinyGemma(window=1),
    "window-32": TinyGemma(window=32),
    "window-33": TinyGemma(window=33),
    "linear": TinyGemma(linear_factor=8.0),
    "local-theta": TinyGemma(local_theta=500.0),
    "legacy-types": TinyGemma(tensor_types=("Q8_0", "Q5_0", "Q4_1")),
    "half-types": TinyGemma(tensor_types=("F16", "BF16", "Q5_1")),
}


def greedy(engine, token_ids, num_tokens):
    """Native greedy decoding past any end-of-text token: (ids, probs)."""
    with_sequence = engine.sequence(token_ids)
    decoded = with_sequence.decode(num_tokens, until="eos", ignore_eos=True)
    with_sequence.close()
    return list(decoded.token_ids), decoded.probs


def random_ids(num_tokens, vocab_size, seed=0):
    """Token ids without those of fixed meaning."""
    return np.random.default_rng(seed).integers(4, vocab_size, num_tokens).tolist()


@pytest.mark.parametrize("name", [*PROMPTS, "long"])
def test_gemma_greedy_equals_transformers(name):
    engine = gemma_engine("float32")
    prompt = engine.tokenizer.encode(PROMPTS.get(name, LONG), add_bos=True)
    assert len(prompt) > 560 if name == "long" else len(prompt) < 40
    chosen, probs = greedy(engine, prompt, 32)
    expected_ids, expected_probs = expected_greedy(gemma_transformers(), prompt, chosen)
    assert chosen == expected_ids
    assert len(set(chosen)) > 8 and probs.max() > 0.5
    assert probs.min() < 0.5 or name == "long", "a prompt without doubt tests little"
    np.testing.assert_allclose(probs, expected_probs, atol=PROB_TOLERANCE, rtol=0)


def test_gemma_writes_chinese():
    engine = gemma_engine("float32")
    prompt = engine.tokenizer.encode(PROMPTS["Chinese"], add_bos=True)
    text = engine.tokenizer.decode(greedy(engine, prompt, 16)[0])
    assert sum("\u4e00" <= char <= "\u9fff" for char in text) > len(text) / 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiny_greedy_equals_transformers(layout):
    path = tiny_gemma_path(LAYOUTS[layout])
    engine = open_engine(path)
    prompt = random_ids(45, LAYOUTS[layout].vocab_size)
    chosen, probs = greedy(engine, prompt, 64)
    decoder = transformers_decoder(load_gemma_gguf(path))
    expected_ids, expected_probs = expected_greedy(decoder, prompt, chosen)
    assert chosen == expected_ids
    assert len(set(chosen)) > 5, "a model that repeats itself tests little"
    assert 0.01 < np.median(probs) < 0.99
    np.testing.assert_allclose(probs, expected_probs, atol=PROB_TOLERANCE, rtol=0)


@pytest.mark.parametrize("layout", ["mqa", "gqa", "window-33", "linear", "tied"])
def test_scores_of_a_long_context(layout):
    """Given tokens, likely or not, far beyond the window and over three splits of attention."""
    spec = LAYOUTS.get(layout, TinyGemma(tied=True))
    path = tiny_gemma_path(replace(spec, context_length=2048))
    token_ids = random_ids(1150, spec.vocab_size, seed=3)
    decoder = transformers_decoder(load_gemma_gguf(path))
    _, expected = expected_greedy(decoder, token_ids[:1], token_ids[1:])
    scored = open_engine(path, threads=2).sequence(token_ids[:1]).score(token_ids[1:])
    np.testing.assert_allclose(scored.probs, expected, atol=1e-5, rtol=1e-3)


def test_every_property_of_the_file_counts():
    """Each of these is another model on the same weights; none may be read and left unused."""
    token_ids = random_ids(120, 283)
    probs = {}
    for name, changes in {
        "base": {},
        "window": {"window": 25},
        "pattern": {"window_pattern": 3},
        "no pattern": {"window_pattern": None},
        "linear": {"linear_factor": 8.0},
        "local theta": {"local_theta": 500.0},
    }.items():
        engine = open_engine(tiny_gemma_path(TinyGemma(**changes)))
        probs[name] = engine.sequence(token_ids[:1]).score(token_ids[1:]).probs
    for name, values in probs.items():
        assert name == "base" or np.abs(values - probs["base"]).max() > 1e-3, name
        assert values[:20].tobytes() == probs["base"][:20].tobytes() or name not in ("window",)


def test_shape_of_gemma():
    config = gemma_engine("float32").model.config
    assert config.architecture == "gemma3" and config.context_length == 32768
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (18, 640, 2048)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 1, 256)
    types = {tensor.type for tensor in _C.GgufFile(find_model("gemma3-270m")).tensors}
    assert types == {"F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"}


# ---- compute="int8" ----


@pytest.mark.parametrize("name", ["English", "Chinese"])
def test_int8_agrees_with_float32(name):
    """Stated tolerance, after each token of a text that float32 decodes greedily.

    At least 80% of the next tokens are equal, and the mean |difference| of the probability of the
    token that float32 takes is below 0.03.
    """
    exact, fast = gemma_engine("float32"), gemma_engine("int8")
    prompt = exact.tokenizer.encode(PROMPTS[name], add_bos=True)
    chosen, probs = greedy(exact, prompt, 40)
    scored = fast.sequence(prompt).score(chosen)
    difference = np.abs(scored.probs.astype(np.float64) - probs)
    assert 1e-5 < difference.mean() < 0.03 and difference.max() < 0.35
    equal = []
    sequence = fast.sequence(prompt)
    for token in chosen:
        equal.append(sequence.decode(1, until="eos", ignore_eos=True).token_ids[0] == token)
        if not equal[-1]:
            sequence.truncate(sequence.num_tokens - 1)
            sequence.extend([token])
    assert np.mean(equal) >= 0.8


@pytest.mark.parametrize("types", [("Q8_0", "Q5_0", "Q4_1"), ("Q4_0", "Q8_0", "Q5_1")])
def test_int8_stays_close_on_tiny_models(types):
    path = tiny_gemma_path(TinyGemma(tensor_types=types))
    token_ids = random_ids(200, 283, seed=4)
    exact, fast = (
        open_engine(path, compute=compute).sequence(token_ids[:1]).score(token_ids[1:]).probs
        for compute in ("float32", "int8")
    )
    difference = np.abs(np.log(exact) - np.log(fast))
    assert difference.max() > 1e-4, "int8 did not quantise its activations"
    assert np.median(difference) < 0.15


# ---- files that are refused ----


def metadata(**changes):
    """The keys of a tiny Gemma file, in the order that the reader asks for them."""
    keys = {
        "general.architecture": "gemma3", "block_count": 2, "context_length": 64,
        "embedding_length": 64, "feed_forward_length": 96, "attention.head_count": 4,
        "attention.head_count_kv": 1, "attention.key_length": 32,
        "attention.layer_norm_rms_epsilon": Typed("float32", 1e-6), "attention.sliding_window": 8,
        **changes,
    }  # fmt: skip
    return {k if "general" in k else f"gemma3.{k}": v for k, v in keys.items() if v is not None}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"attention.sliding_window": None}, ModelFileError, "attention.sliding_window"),
        ({"attention.sliding_window": 0}, ModelFileError, "sliding_window is 0, expected 1 to"),
        ({"attention.sliding_window_pattern": 0}, ModelFileError, "window_pattern is 0"),
        ({"attention.scale": -1.0}, ModelFileError, "attention.scale is -1"),
        ({"rope.freq_base_swa": 0.0}, ModelFileError, "freq_base_swa is 0"),
        ({"final_logit_softcapping": 30.0}, UnsupportedError, "soft-capping"),
        ({"rope.scaling.type": "yarn"}, UnsupportedError, "'yarn'"),
        ({}, ModelFileError, "token_embd.weight"),
    ],
)
def test_refuses(tmp_path, changes, error, message):
    tensors = [Tensor("token_embd.weight", (64, 8))] if changes else []
    path = Gguf(metadata(**changes), tensors).write(tmp_path / "bad.gguf")
    with pytest.raises(error, match=message):
        _C.Model(str(path))
