"""Damaged and hostile checkpoints, features that are not computed: a typed error names them."""

import json
import os
import shutil

import numpy as np
import pytest
from helpers_checkpoint import checkpoint, tiny
from safetensors.numpy import load_file, save_file

from flarecore.errors import ConfigError, ModelFileError, UnsupportedError
from flarecore.model import Model

INDEX = "model.safetensors.index.json"


@pytest.fixture
def single(tmp_path):
    return shutil.copytree(checkpoint()[0], tmp_path / "single")


@pytest.fixture
def sharded(tmp_path):
    return shutil.copytree(checkpoint(tiny(sharded=True))[0], tmp_path / "sharded")


def edit(path, **changes):
    values = json.loads(path.read_text())
    for key, value in changes.items():
        values[key] = value
    path.write_text(json.dumps(values))


def test_one_file_of_a_checkpoint_names_its_directory(single):
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(ModelFileError, match=f"give its directory, {single}"):
            load(single / name)


def load(path):
    return Model.load(path, threads=1)


@pytest.mark.parametrize("changes", [
    {"model_type": "qwen2_moe"}, {"model_type": "gpt2"}, {"mlp_bias": True}, {"use_mrope": True},
    {"hidden_act": "gelu"}, {"sliding_window": 100}, {"final_logit_softcapping": 30.0},
    {"attn_logit_softcapping": 50.0}, {"partial_rotary_factor": 0.5}, {"num_local_experts": 8},
    {"quantization_config": {"quant_method": "gptq"}}, {"auto_map": {"AutoModel": "m.M"}},
    {"layer_types": ["sliding_attention"] * 3}, {"rope_interleaved": True}, {"head_dim": 20},
    {"no_rope_layers": [1, 0, 1]}, {"logits_scaling": 8.0},
    *({"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}}
      for kind in ("yarn", "dynamic", "longrope", "su", "mrope")),
    {"rope_parameters": {"rope_type": ["llama3"], "rope_theta": 1e4}},
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0,
                         "attention_factor": 3}},
    {"rope_scaling": {"type": "yarn", "factor": 4.0}},
], ids=str)  # fmt: skip
def test_unsupported_features_are_named(single, changes):
    edit(single / "config.json", **changes)
    name, value = next(iter(changes.items()))
    if isinstance(value, dict) and "rope" in name:
        value = value.get("attention_factor", value.get("rope_type", value.get("type")))
        name = "attention_factor" if value == 3 else "rope_type"
    name = {"head_dim": "head size"}.get(name, name)
    with pytest.raises(UnsupportedError, match=name):
        load(single)


@pytest.mark.parametrize(("family", "changes"), [
    ("Qwen2", {"rope_parameters": None, "rope_scaling": {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}),
    ("Qwen2", {"use_mrope": True}), ("Qwen2", {"layer_types": ["sliding_attention"] * 3}),
    ("Qwen3", {"attention_bias": True}), ("Mistral", {"attention_bias": True}),
], ids=str)  # fmt: skip
def test_features_of_other_types_are_named(tmp_path, family, changes):
    path = shutil.copytree(checkpoint(tiny(family, sliding_window=None))[0], tmp_path / "model")
    load(path)
    edit(path / "config.json", **changes)
    name = "rope_type 'yarn'" if "rope_scaling" in changes else next(iter(changes))
    with pytest.raises(UnsupportedError, match=name):
        load(path)


def test_window_of_qwen(tmp_path):
    """Its values count where it is used only."""
    path = shutil.copytree(checkpoint(tiny("Qwen2"))[0], tmp_path / "qwen2")
    for changes in ({"max_window_layers": -1}, {"sliding_window": 0}, {"sliding_window": "all"}):
        edit(path / "config.json", layer_types=None, max_window_layers=1, sliding_window=20)
        edit(path / "config.json", use_sliding_window=False, **changes)
        load(path)
        edit(path / "config.json", use_sliding_window=True)
        with pytest.raises(ModelFileError, match=next(iter(changes))):
            load(path)
    edit(path / "config.json", use_sliding_window="yes")
    with pytest.raises(ModelFileError, match="use_sliding_window"):
        load(path)


def test_gemma_features_are_named(tmp_path):
    path = shutil.copytree(checkpoint(tiny("Gemma3", sliding_window=8))[0], tmp_path / "gemma")
    good = (path / "config.json").read_text()
    for changes in ({"attn_logit_softcapping": 50.0}, {"final_logit_softcapping": 30.0},
                    {"use_bidirectional_attention": True}, {"layer_types": ["full_attention"]},
                    {"hidden_activation": "gelu"}, {"sliding_window": None},
                    {"layer_types": [["full_attention"]] * 3},
                    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}):
        edit(path / "config.json", **changes)
        with pytest.raises(UnsupportedError, match=next(iter(changes))):
            load(path)
        (path / "config.json").write_text(good)
    load(path)


@pytest.mark.parametrize("changes", [
    {"hidden_size": -1}, {"hidden_size": "64"}, {"hidden_size": 10**30}, {"num_hidden_layers": 0},
    {"num_hidden_layers": True}, {"num_attention_heads": 3}, {"rms_norm_eps": float("nan")},
    {"rms_norm_eps": 2.0}, {"vocab_size": 2**40}, {"vocab_size": 10}, {"vocab_size": 641},
    {"tie_word_embeddings": "no"}, {"tie_word_embeddings": True}, {"rope_parameters": [1]},
    {"rope_parameters": {"rope_theta": 0}}, {"rope_parameters": {"rope_theta": 10**400}},
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}},
    {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8,
                         "low_freq_factor": 4, "high_freq_factor": 1}},
    {"num_hidden_layers": 4}, {"intermediate_size": 95}, {"num_key_value_heads": 4},
    {"model_type": None}, {"eos_token_id": 10**6},
], ids=lambda changes: str(changes)[:60])  # fmt: skip
def test_impossible_values(single, changes):
    edit(single / "config.json", **changes)
    with pytest.raises(ModelFileError):
        load(single)


@pytest.mark.parametrize("name", [
    "../other.safetensors", "/etc/passwd", "/x.safetensors", "a/b.safetensors", "..\\x.safetensors",
    ".hidden.safetensors", "x.bin", "x\0.safetensors", 7, "",
], ids=repr)  # fmt: skip
def test_index_names_only_files_beside_it(sharded, name):
    shutil.copy(next(sharded.glob("*.safetensors")), sharded.parent / "other.safetensors")
    values = json.loads((sharded / INDEX).read_text())
    values["weight_map"]["model.norm.weight"] = name
    (sharded / INDEX).write_text(json.dumps(values))
    with pytest.raises(ModelFileError, match=r"weight_map\['model.norm.weight'\]"):
        load(sharded)


def test_shards_that_do_not_fit_the_index(sharded):
    good = (sharded / INDEX).read_text()
    files = sorted(p.name for p in sharded.glob("*.safetensors"))
    values = json.loads(good)
    values["weight_map"]["extra.weight"] = files[0]
    (sharded / INDEX).write_text(json.dumps(values))
    with pytest.raises(ModelFileError, match=rf"{files[0]}.*extra.weight"):
        load(sharded)
    values = json.loads(good)
    for name in values["weight_map"]:
        if values["weight_map"][name] == files[0]:
            values["weight_map"][name] = files[1]
    (sharded / INDEX).write_text(json.dumps(values))
    with pytest.raises(ModelFileError, match="is missing"):
        load(sharded)
    (sharded / INDEX).write_text(good)
    tensors = load_file(sharded / files[0])
    more = {**load_file(sharded / files[1]), **dict([next(iter(tensors.items()))])}
    save_file(more, sharded / files[1])
    with pytest.raises(ModelFileError, match=f"{next(iter(tensors))}.*also in"):
        load(sharded)
    os.remove(sharded / files[1])
    with pytest.raises(ModelFileError, match=files[1]):
        load(sharded)
    for text in ("[]", "{}", '{"weight_map": {}}', '{"weight_map": []}', "x"):
        (sharded / INDEX).write_text(text)
        with pytest.raises(ModelFileError, match=r"index\.json"):
            load(sharded)


def rewrite(path, change):
    """Passes the tensors of a checkpoint through `change`."""
    tensors = load_file(path / "model.safetensors")
    save_file(change(tensors), path / "model.safetensors")


def test_tensors_that_do_not_fit(single):
    file = single / "model.safetensors"
    good = file.read_bytes()
    q = "model.layers.1.self_attn.q_proj.weight"
    for change, error, words in (
        (lambda t: {k: v for k, v in t.items() if k != q}, ModelFileError, q),
        (lambda t: {**t, q: t[q][:-1]}, ModelFileError, rf"{q} has the shape \(127, 64\)"),
        (lambda t: {**t, q: np.ascontiguousarray(t[q].T)}, ModelFileError, q),
        (lambda t: {**t, q: t[q].astype(np.float64)}, ModelFileError, f"{q} is stored as F64"),
        (lambda t: {**t, q: t[q].astype(np.int8)}, ModelFileError, f"{q} is stored as I8"),
        (lambda t: {**t, q: t[q].reshape(2, 64, 64)}, ModelFileError, q),
        (lambda t: {**t, "model.norm.weight": t["model.norm.weight"][None]}, ModelFileError,
         "model.norm.weight"),
        (lambda t: {**t, "score.weight": t[q]}, UnsupportedError, "score.weight"),
        (lambda t: {**t, q[:-6] + "bias": t[q][:, 0].copy()}, UnsupportedError, "q_proj.bias"),
        (lambda t: {k: v for k, v in t.items() if "embed" not in k}, ModelFileError,
         "embed_tokens"),
        (lambda t: {k: v for k, v in t.items() if k != "lm_head.weight"}, ModelFileError,
         "lm_head.weight"),
    ):
        rewrite(single, change)
        with pytest.raises(error, match=words):
            load(single)
        file.write_bytes(good)
    rewrite(single, lambda t: {**t, "model.rotary_emb.inv_freq": np.ones(16, np.float32)})
    load(single)


def test_tied_head_that_is_stored(tmp_path):
    path = shutil.copytree(checkpoint(tiny(tied=True))[0], tmp_path / "tied")
    rewrite(path, lambda t: {**t, "lm_head.weight": t["model.embed_tokens.weight"].copy()})
    load(path)
    rewrite(path, lambda t: {**t, "lm_head.weight": t["lm_head.weight"] + 1})
    with pytest.raises(ModelFileError, match="tie_word_embeddings"):
        load(path)


def test_every_cut_of_the_file_is_refused(single):
    file = single / "model.safetensors"
    good = file.read_bytes()
    for size in (0, 3, 8, 100, len(good) // 2, len(good) - 1):
        file.write_bytes(good[:size])
        with pytest.raises(ModelFileError, match=r"model\.safetensors"):
            load(single)
    file.write_bytes((10**9).to_bytes(8, "little") + good[8:])
    with pytest.raises(ModelFileError, match="header"):
        load(single)


def test_missing_files(single):
    for name in ("tokenizer.json", "model.safetensors", "config.json"):
        (single / name).rename(single / "moved")
        with pytest.raises(ModelFileError, match=name):
            load(single)
        (single / "moved").rename(single / name)
    (single / "adapter_config.json").write_text("{}")
    with pytest.raises(UnsupportedError, match="adapter"):
        load(single)
    os.remove(single / "adapter_config.json")
    os.remove(single / "config.json")
    os.mkfifo(single / "config.json")  # opening it would wait for ever
    with pytest.raises(ModelFileError, match=r"config\.json"):
        load(single)


def test_old_binary_weights_are_not_read(single):
    (single / "model.safetensors").rename(single / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match=r"pytorch_model\.bin"):
        load(single)


@pytest.mark.parametrize("value", ["q2", "", 4, True, ["q4"]])
def test_unknown_quantize(single, value):
    with pytest.raises(ConfigError, match="quantize"):
        Model.load(single, quantize=value)
