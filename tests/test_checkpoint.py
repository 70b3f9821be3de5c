"""Checkpoints in the Hugging Face format: guarantee 2 against the model that was saved."""

import json
import shutil

import numpy as np
import pytest
from helpers import (
    PROB_TOLERANCE,
    TinyLlama,
    open_engine,
    random_ids,
    transformers_decoder,
)
from helpers_checkpoint import VOCAB_SIZE, assert_same_as_gguf, checkpoint, tiny

from flarecore.model import Model
from flarecore.reference.sampler import confidences

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
GEMMA = tiny("Gemma3", sliding_window=24, query_pre_attn_scalar=20, num_key_value_heads=1,
             layer_types=["sliding_attention", "full_attention", "sliding_attention"])

LAYOUTS = {
    "llama": tiny(),
    "sharded-bf16": tiny(dtype="bfloat16", sharded=True),
    "tied-f16": tiny(dtype="float16", tied=True),
    "head-size-by-hidden": tiny(head_dim=None),
    "odd-ffn": tiny(intermediate_size=77, rms_norm_eps=1e-3),
    "theta": tiny(rope_theta=500.0),
    "linear": tiny(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}),
    "llama3": tiny(rope_parameters=LLAMA3),
    "mistral-window": tiny("Mistral", sliding_window=20),
    "mistral-no-window": tiny("Mistral", sliding_window=None),
    "llama-bias": tiny(attention_bias=True),
    "llama-bias-tied-bf16": tiny(attention_bias=True, tied=True, dtype="bfloat16", sharded=True),
    "qwen2": tiny("Qwen2"),
    "qwen2-sharded-f16-tied": tiny("Qwen2", dtype="float16", sharded=True, tied=True),
    # Of a published configuration: there is a window, and it is not used.
    "qwen2-window-unused": tiny("Qwen2", sliding_window=20, max_window_layers=1),
    "qwen2-window": tiny("Qwen2", use_sliding_window=True, sliding_window=20, max_window_layers=1),
    "qwen3": tiny("Qwen3", tied=True),
    "qwen3-window": tiny("Qwen3", use_sliding_window=True, sliding_window=20, max_window_layers=0),
    "gemma3": GEMMA,
    "gemma3-sharded-bf16-tied": tiny(
        "Gemma3", dtype="bfloat16", sharded=True, tied=True, sliding_window=16,
        num_hidden_layers=7, rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
}


def compare(engine, model, num_tokens=48):
    """Greedy tokens and the probabilities of given ones, beyond the windows."""
    decoder = transformers_decoder(model)
    ids = random_ids(60, VOCAB_SIZE - 20, seed=4)
    expected_ids, expected_probs = decoder.greedy(ids, num_tokens)
    sequence = engine.sequence(ids)
    decoded = sequence.decode(num_tokens, until="eos", ignore_eos=True)
    assert list(decoded.token_ids) == expected_ids
    assert len(set(expected_ids)) > 5, "a model that repeats itself tests little"
    np.testing.assert_allclose(decoded.probs, expected_probs, atol=PROB_TOLERANCE, rtol=0)
    given = random_ids(200, VOCAB_SIZE - 20, seed=5)
    expected = confidences(decoder.logits(given))[np.arange(199), given[1:]]
    scored = engine.sequence(given[:1]).score(given[1:])
    np.testing.assert_allclose(scored.probs, expected, atol=1e-5, rtol=5e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_transformers(layout):
    path, model = checkpoint(LAYOUTS[layout])
    assert len(list(path.glob("*.safetensors"))) > 1 or not LAYOUTS[layout].sharded
    compare(open_engine(path), model)


def test_int8_of_float_weights_is_float32_arithmetic():
    path, _ = checkpoint(LAYOUTS["sharded-bf16"])
    ids = random_ids(40, VOCAB_SIZE - 20)
    results = [open_engine(path, compute=compute).sequence(ids[:1]).score(ids[1:]).probs
               for compute in ("float32", "int8")]
    np.testing.assert_allclose(results[1], results[0], atol=2e-3, rtol=0)  # KV in float16


@pytest.mark.parametrize("tied", [True, False])
def test_gguf_of_the_same_weights_gives_the_same_tokens(tmp_path, tied):
    """A GGUF file has the rows of Q and K in another order."""
    assert_same_as_gguf(TinyLlama(tied=tied, vocab_size=VOCAB_SIZE), tmp_path)


def test_old_spelling_of_the_same_configuration(tmp_path):
    """transformers 4: rope_scaling, rope_theta and sliding_window_pattern beside the rest."""
    path, model = checkpoint(LAYOUTS["llama3"])
    values = json.loads((path / "config.json").read_text())
    rope = values.pop("rope_parameters")
    values |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    compare(open_engine(changed(tmp_path, path, values)), model, 16)
    path, model = checkpoint(LAYOUTS["gemma3-sharded-bf16-tied"])
    values = json.loads((path / "config.json").read_text())
    for key in ("rope_parameters", "layer_types"):
        del values[key]
    values |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6,
               "rope_scaling": {"type": "linear", "factor": 8.0}}
    compare(open_engine(changed(tmp_path / "gemma", path, values)), model, 16)


def test_configuration_of_a_published_qwen2(tmp_path):
    """As Qwen 2.5 is published: no head size, and a window that is not used."""
    path, model = checkpoint(tiny("Qwen2", head_dim=16, rope_theta=1e6))
    values = json.loads((path / "config.json").read_text())
    for key in ("rope_parameters", "layer_types", "head_dim", "pad_token_id"):
        values.pop(key, None)
    values |= {"rope_theta": 1e6, "sliding_window": 32, "max_window_layers": 1,
               "use_sliding_window": False, "use_mrope": False, "torch_dtype": "float32"}
    compare(open_engine(changed(tmp_path, path, values)), model)


def changed(target, source, config):
    """A copy of a checkpoint with another config.json."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_text_part_of_gemma_with_images(tmp_path):
    """Tensors under another name, those of the image encoder left out."""
    import torch
    from safetensors.torch import load_file, save_file

    path, model = checkpoint(GEMMA)
    text = json.loads((path / "config.json").read_text())
    tensors = load_file(path / "model.safetensors")
    for prefix, head in (("model.language_model.", "lm_head.weight"),
                         ("language_model.model.", "language_model.lm_head.weight")):
        renamed = {head if n == "lm_head.weight" else n.replace("model.", prefix, 1): t
                   for n, t in tensors.items()}
        renamed["vision_tower.patch.weight"] = torch.zeros(3)
        target = tmp_path / prefix
        changed(target, path, {"model_type": "gemma3", "text_config": text,
                               "tie_word_embeddings": False})
        save_file(renamed, target / "model.safetensors")
        compare(open_engine(target), model, 16)


def test_config_is_reported():
    path, _ = checkpoint(LAYOUTS["tied-f16"])
    model = Model.load(path, threads=1)
    assert model.path == path
    assert model.config.architecture == "llama" and model.config.head_dim == 32
    assert model.config.vocab_size == VOCAB_SIZE == model.tokenizer.vocab_size
    assert model.quantization is None
