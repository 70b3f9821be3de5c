"""Qwen 3: Qwen 2 without biases, with a norm over each query and key head.

That its GGUF files and checkpoints give what transformers gives is in test_decoder_equality.py and
test_checkpoint.py, the GPU engine's part in test_gpu_engine.py.
"""

import asyncio
import json

import numpy as np
import pytest
from helpers import TinyLlama, open_engine, random_ids, result_bits
from helpers_checkpoint import VOCAB_SIZE, assert_same_as_gguf, checkpoint, tiny
from helpers_gguf import Gguf, Tensor, Typed
from helpers_rewrite import rewritten_checkpoint, rewritten_gguf
from test_checkpoint import compare

from flarecore import _C
from flarecore.errors import ModelFileError, UnsupportedError
from flarecore.model import Model
from flarecore.sampling import SamplingParams

# Quantised weights, heads whose size is not hidden_size / num_heads, more than one tile of rows.
SPEC = TinyLlama(architecture="qwen3", tensor_type="Q4_1", num_heads=10, num_kv_heads=2,
                 hidden_size=288, ffn_size=352, context_length=1024, vocab_size=333, rope_theta=1e6)
PROMPT = random_ids(230, 333, seed=2)
NUM_NEW = 16
OPTIONS = {"sampling": SamplingParams(temperature=1.5, top_k=60, seed=11, stream=4),
           "until": "eos", "ignore_eos": True}  # fmt: skip
LAYER_0 = "model.layers.0.self_attn."


@pytest.fixture(scope="module", params=["float32", "int8"])
def case(request):
    """(compute, bits of the plain way: one thread, one token at a time)."""
    with open_engine(SPEC, compute=request.param, max_batch_tokens=1) as engine:
        expected = result_bits(engine.sequence(PROMPT).decode(NUM_NEW, **OPTIONS))
    assert len(set(expected[0])) > 5, "a model that repeats itself tests little"
    return request.param, expected


@pytest.mark.parametrize(("threads", "max_batch_tokens"), [(1, 7), (2, 32), (3, 100), (2, 1024)])
def test_threads_and_prefill_chunks(case, threads, max_batch_tokens):
    """Few rows, whose tasks norm the heads themselves, and many."""
    compute, expected = case
    with open_engine(SPEC, compute=compute, threads=threads,
                     max_batch_tokens=max_batch_tokens) as engine:  # fmt: skip
        assert result_bits(engine.sequence(PROMPT).decode(NUM_NEW, **OPTIONS)) == expected


def test_rollback_proposals_and_batch_mates(case):
    compute, expected = case
    wrong = tuple((token + 1) % 330 for token in expected[0])
    with open_engine(SPEC, compute=compute, threads=2, max_batch_tokens=48) as engine:
        sequence = engine.sequence(PROMPT)
        for kept in (0, 229):
            sequence.extend(random_ids(70, 333, seed=6))
            sequence.truncate(kept)
            sequence.extend(PROMPT[kept:])
            for proposal, accepted in ((expected[0], NUM_NEW - 1), (wrong, 0)):
                with sequence.fork() as fork:
                    decoded = fork.decode(NUM_NEW, proposal=proposal, **OPTIONS)
                    assert result_bits(decoded) == expected
                    assert decoded.stats.num_accepted >= accepted

        async def together():
            sequences = [engine.sequence() for _ in range(4)]
            operations = [
                s.regenerate_async(PROMPT[i % 2 :], max_tokens=NUM_NEW, pass_index=0, **OPTIONS)
                for i, s in enumerate(sequences)]
            return [result_bits(await operation) for operation in operations]

        first, second, *others = asyncio.run(together())
        assert first == expected and others == [first, second] and second != first
        engine.check_integrity()


@pytest.mark.parametrize("tied", [True, False])
def test_gguf_of_the_same_weights_gives_the_same_tokens(tmp_path, tied):
    """Neither file has the rows of Q and K in another order."""
    spec = TinyLlama(architecture="qwen3", tied=tied, vocab_size=VOCAB_SIZE)
    assert_same_as_gguf(spec, tmp_path)


def test_configuration_as_published(tmp_path):
    """As Qwen3-0.6B has it: a head size of its own, a tied head, no window and no scaling."""
    path, model = checkpoint(tiny("Qwen3", tied=True, rope_theta=1e6, rms_norm_eps=1e-6))
    values = json.loads((path / "config.json").read_text())
    for key in ("rope_parameters", "layer_types", "pad_token_id", "dtype"):
        values.pop(key, None)
    values |= {"architectures": ["Qwen3ForCausalLM"], "attention_bias": False,
               "attention_dropout": 0.0, "max_window_layers": 3, "rope_scaling": None,
               "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False,
               "torch_dtype": "float32", "use_cache": True}  # fmt: skip
    target = rewritten_checkpoint(path, tmp_path / "model", lambda t: t)
    (target / "config.json").write_text(json.dumps(values))
    compare(open_engine(target), model)
    # Where it is missing it is 128, not hidden_size / num_attention_heads.
    del values["head_dim"]
    (target / "config.json").write_text(json.dumps(values))
    with pytest.raises(ModelFileError, match=r"q_norm.*expected \(128\)"):
        Model.load(target, threads=1)


# ---- every norm counts, and none may be missing or left over ----


def test_every_norm_counts(tmp_path):
    path, _ = checkpoint(tiny("Qwen3"))
    ids = random_ids(60, VOCAB_SIZE - 20)

    def probs(path):
        return open_engine(path).sequence(ids[:1]).score(ids[1:]).probs

    expected = probs(path)
    for name in ("q_norm", "k_norm"):
        norm = f"{LAYER_0}{name}.weight"
        target = rewritten_checkpoint(
            path, tmp_path / name, lambda t, n=norm: {**t, n: np.ones_like(t[n])})
        assert np.abs(probs(target) - expected).max() > 1e-3, name


def without(tensors, name):
    return {key: value for key, value in tensors.items() if key != name}


def test_checkpoints_that_are_refused(tmp_path):
    qwen3, llama = checkpoint(tiny("Qwen3"))[0], checkpoint(tiny())[0]
    q, bias = f"{LAYER_0}q_norm.weight", f"{LAYER_0}q_proj.bias"
    for source, change, config, error, words in (
        (qwen3, lambda t: without(t, q), {}, ModelFileError, "q_norm.weight is missing"),
        (qwen3, lambda t: {**t, q: t[q][:-1].copy()}, {}, ModelFileError,
         r"q_norm.weight has the shape \(31\), expected \(32\)"),
        (qwen3, lambda t: {**t, bias: np.zeros(128, np.float32)}, {}, UnsupportedError,
         "q_proj.bias.*does not announce this bias"),
        (qwen3, lambda t: t, {"model_type": "qwen2"}, ModelFileError, "q_proj.bias, which"),
        (qwen3, lambda t: t, {"model_type": "llama"}, UnsupportedError, "_norm.weight"),
        (llama, lambda t: t, {"model_type": "qwen3"}, ModelFileError, "_norm.weight is missing"),
        (qwen3, lambda t: t, {"model_type": "qwen3_moe", "num_experts": 128}, UnsupportedError,
         r"'qwen3_moe' is not supported: it has a mixture of experts"),
        (qwen3, lambda t: t, {"rope_parameters": None, "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
         UnsupportedError, "rope_type 'yarn' is not supported; supported: default, linear"),
    ):
        target = rewritten_checkpoint(source, tmp_path / "bad", change, **config)
        with pytest.raises(error, match=words):
            Model.load(target, threads=1)


def test_files_whose_tensors_do_not_fit(tmp_path):
    qwen3, qwen2 = TinyLlama(architecture="qwen3"), TinyLlama(architecture="qwen2")
    k, bias = "blk.1.attn_k_norm.weight", "blk.1.attn_k.bias"
    norms = {f"blk.{i}.attn_{x}_norm.weight": np.ones(32, np.float32)
             for i in range(2) for x in "qk"}
    for spec, change, error, words in (
        (qwen3, lambda t: without(t, k), ModelFileError, k),
        (qwen3, lambda t: {**t, k: np.ones(64, np.float32)}, ModelFileError,
         rf"{k} has the shape \(64\), expected \(32\)"),
        (qwen3, lambda t: {**t, bias: np.zeros(64, np.float32)}, UnsupportedError, bias),
        (qwen2, lambda t: {**t, **norms}, UnsupportedError, "_norm.weight is not part"),
    ):
        path = rewritten_gguf(tmp_path / "bad.gguf", spec, change)
        with pytest.raises(error, match=words):
            Model.load(path, threads=1)


@pytest.mark.parametrize(("architecture", "changes", "error", "words"), [
    ("qwen3", {"rope.scaling.type": "yarn", "rope.scaling.factor": Typed("float32", 4.0)},
     UnsupportedError, "RoPE scaling 'yarn' is not supported"),
    ("qwen3", {"expert_count": 128}, UnsupportedError, "mixture-of-experts"),
    ("qwen3moe", {}, UnsupportedError, "'qwen3moe' is not supported: it is a mixture of experts"),
    ("qwen3next", {}, UnsupportedError, "is not supported; supported: llama, qwen2, qwen3, gemma3"),
    ("qwen3", {"attention.value_length": 8}, UnsupportedError, "value heads of size 8"),
    ("qwen3", {"attention.layer_norm_rms_epsilon": None}, ModelFileError, "rms_epsilon"),
])  # fmt: skip
def test_metadata_that_is_refused(tmp_path, architecture, changes, error, words):
    keys = {
        "block_count": 2, "context_length": 64, "embedding_length": 64, "feed_forward_length": 96,
        "attention.head_count": 4, "attention.layer_norm_rms_epsilon": Typed("float32", 1e-6),
        "attention.key_length": 32, "attention.value_length": 32, **changes,
    }  # fmt: skip
    metadata = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{k}": value for k, value in keys.items() if value is not None}
    path = Gguf(metadata, [Tensor("token_embd.weight", (64, 8))]).write(tmp_path / "bad.gguf")
    with pytest.raises(error, match=words):
        _C.Model(str(path))
