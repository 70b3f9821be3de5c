"""Biases of attention's products (Qwen 2, Llama with attention_bias): bits, and what is refused.

That the results are right is in test_checkpoint.py and test_decoder_equality.py.
"""

import asyncio

import numpy as np
import pytest
from helpers import TinyLlama, open_engine, random_ids, result_bits
from helpers_checkpoint import VOCAB_SIZE, assert_same_as_gguf, checkpoint, tiny
from helpers_gguf import Gguf, Tensor, Typed
from helpers_rewrite import rewritten_checkpoint, rewritten_gguf

from flarecore import _C
from flarecore.errors import ModelFileError, UnsupportedError
from flarecore.model import Model
from flarecore.sampling import SamplingParams

# Quantised weights, and a number of heads and of channels that no tile divides.
SIZES = {"num_heads": 14, "num_kv_heads": 2, "hidden_size": 288, "ffn_size": 352,
         "context_length": 1024, "vocab_size": 333}  # fmt: skip
SPECS = {
    "qwen2": TinyLlama(architecture="qwen2", tensor_type="Q4_1", **SIZES),
    "llama": TinyLlama(attention_bias=True, tensor_type="Q8_0", **SIZES),
}
CASES = [(name, compute) for name in SPECS for compute in ("float32", "int8")]
# More than the 128 tokens behind which attention takes tiles.
PROMPT = random_ids(230, 333, seed=2)
NUM_NEW = 24
OPTIONS = {"sampling": SamplingParams(temperature=1.5, top_k=60, seed=11, stream=4),
           "until": "eos", "ignore_eos": True}  # fmt: skip


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def case(request):
    """(model file, compute, bits of the plain way: one thread, one token at a time)."""
    name, compute = request.param
    with open_engine(SPECS[name], compute=compute, max_batch_tokens=1) as engine:
        expected = result_bits(engine.sequence(PROMPT).decode(NUM_NEW, **OPTIONS))
    assert len(set(expected[0])) > 5, "a model that repeats itself tests little"
    return SPECS[name], compute, expected


@pytest.mark.parametrize(("threads", "max_batch_tokens"), [(1, 7), (2, 32), (3, 100), (2, 1024)])
def test_threads_and_prefill_chunks(case, threads, max_batch_tokens):
    """Few rows, whose tasks add the biases themselves, and many."""
    spec, compute, expected = case
    before = _C.testing.num_prepared_passes()
    with open_engine(spec, compute=compute, threads=threads,
                     max_batch_tokens=max_batch_tokens) as engine:  # fmt: skip
        sequence = engine.sequence(PROMPT)
        num_prepared = _C.testing.num_prepared_passes() - before
        num_passes = -(-len(PROMPT) // max_batch_tokens)
        assert num_prepared < num_passes or max_batch_tokens < 100, "all prepared in their tasks"
        assert result_bits(sequence.decode(NUM_NEW, **OPTIONS)) == expected
        assert _C.testing.num_prepared_passes() - before >= NUM_NEW - 1 + num_prepared


def test_rollback_fork_and_proposals(case):
    spec, compute, expected = case
    wrong = tuple((token + 1) % 330 for token in expected[0])
    with open_engine(spec, compute=compute) as engine:
        sequence = engine.sequence(PROMPT)
        for kept in (0, 33, 229):
            sequence.extend(random_ids(70, 333, seed=6))
            sequence.truncate(kept)
            sequence.extend(PROMPT[kept:])
            for proposal, accepted in ((expected[0], NUM_NEW - 1), (wrong, 0),
                                       (expected[0][:9] + wrong[9:], 9)):  # fmt: skip
                fork = sequence.fork()
                decoded = fork.decode(NUM_NEW, proposal=proposal, **OPTIONS)
                assert result_bits(decoded) == expected
                assert decoded.stats.num_accepted >= accepted
                fork.close()
        engine.check_integrity()


def test_batch_mates(case):
    spec, compute, expected = case
    prompts = [PROMPT[: 230 - 23 * i] for i in range(6)]
    options = {**OPTIONS, "pass_index": 0}
    alone = []
    for prompt in prompts:
        with open_engine(spec, compute=compute) as engine:
            alone.append(result_bits(engine.sequence(prompt).decode(NUM_NEW, **options)))
    assert alone[0] == expected

    async def together(engine):
        sequences = [engine.sequence() for _ in prompts]
        operations = [
            sequence.regenerate_async(prompt, max_tokens=NUM_NEW, **options)
            for sequence, prompt in zip(sequences, prompts, strict=True)
        ]
        return [result_bits(await operation) for operation in operations]

    with open_engine(spec, compute=compute, threads=2, max_batch_tokens=48) as engine:
        before = engine.stats().num_steps
        assert asyncio.run(together(engine)) == alone
        assert engine.stats().num_steps - before < 6 * NUM_NEW, "the sequences were not batched"


def test_gguf_of_the_same_weights_gives_the_same_tokens(tmp_path):
    """The rows of a Llama file's biases have the order of its matrices."""
    for i, spec in enumerate((TinyLlama(attention_bias=True, vocab_size=VOCAB_SIZE),
                              TinyLlama(architecture="qwen2", vocab_size=VOCAB_SIZE))):
        assert_same_as_gguf(spec, tmp_path / str(i))


# ---- every bias counts, and none may be missing or left over ----


@pytest.mark.parametrize(("spec", "names"), [
    (tiny("Qwen2"), "qkv"), (tiny(attention_bias=True), "qkvo"),
], ids=["qwen2", "llama"])  # fmt: skip
def test_every_bias_counts(spec, names, tmp_path):
    path, _ = checkpoint(spec)
    ids = random_ids(60, VOCAB_SIZE - 20)

    def probs(path):
        return open_engine(path).sequence(ids[:1]).score(ids[1:]).probs

    expected = probs(path)
    for name in names:
        bias = f"model.layers.1.self_attn.{name}_proj.bias"
        target = rewritten_checkpoint(
            path, tmp_path / name, lambda t, b=bias: {**t, b: np.zeros_like(t[b])})
        assert np.abs(probs(target) - expected).max() > 1e-3, name


def test_checkpoints_whose_biases_do_not_fit(tmp_path):
    q = "model.layers.1.self_attn.q_proj.bias"
    o = "model.layers.1.self_attn.o_proj.bias"

    def without(tensors, end):
        return {name: value for name, value in tensors.items() if not name.endswith(end)}

    llama, qwen2 = checkpoint(tiny(attention_bias=True))[0], checkpoint(tiny("Qwen2"))[0]
    plain = checkpoint(tiny())[0]
    for source, change, config, error, words in (
        # Announced and missing.
        (plain, lambda t: t, {"attention_bias": True}, ModelFileError, "q_proj.bias, which"),
        (plain, lambda t: t, {"model_type": "qwen2"}, ModelFileError, "q_proj.bias, which"),
        (qwen2, lambda t: without(t, "1.self_attn.q_proj.bias"), {}, ModelFileError, q),
        (llama, lambda t: without(t, "1.self_attn.o_proj.bias"), {}, ModelFileError, o),
        # There and not announced.
        (llama, lambda t: t, {"attention_bias": False}, UnsupportedError,
         "proj.bias.*does not announce this bias"),
        (qwen2, lambda t: t, {"model_type": "llama"}, UnsupportedError,
         "proj.bias.*does not announce this bias"),
        (qwen2, lambda t: {**t, o: t[q][:64].copy()}, {}, UnsupportedError,
         "o_proj.bias.*does not announce"),
        # Of another shape or type.
        (qwen2, lambda t: {**t, q: t[q][:-1].copy()}, {}, ModelFileError,
         rf"{q} has the shape \(127\), expected \(128\)"),
        (qwen2, lambda t: {**t, q: t[q][None]}, {}, ModelFileError, q),
        (qwen2, lambda t: {**t, q: t[q].astype(np.float64)}, {}, ModelFileError,
         f"{q} is stored as F64"),
        (llama, lambda t: t, {"attention_bias": "yes"}, ModelFileError, "attention_bias"),
    ):
        target = rewritten_checkpoint(source, tmp_path / "bad", change, **config)
        with pytest.raises(error, match=words):
            Model.load(target, threads=1)
    # Qwen 2's code does not look at it.
    good = rewritten_checkpoint(qwen2, tmp_path / "good", lambda t: t, attention_bias=False)
    Model.load(good, threads=1)


def test_files_whose_biases_do_not_fit(tmp_path):
    qwen2, llama = TinyLlama(architecture="qwen2"), TinyLlama(attention_bias=True)
    k, o = "blk.1.attn_k.bias", "blk.1.attn_output.bias"
    for spec, change, error, words in (
        (qwen2, lambda t: {n: v for n, v in t.items() if n != k}, ModelFileError, k),
        (qwen2, lambda t: {n: v for n, v in t.items() if "bias" not in n}, ModelFileError,
         r"blk\.0\.attn_q\.bias"),
        (llama, lambda t: {n: v for n, v in t.items() if n != o}, ModelFileError, o),
        (llama, lambda t: {n: v for n, v in t.items() if n != k}, ModelFileError, k),
        (qwen2, lambda t: {**t, k: t[k][:-1]}, ModelFileError, rf"{k} has the shape \(63\)"),
        (qwen2, lambda t: {**t, o: t["output_norm.weight"]}, UnsupportedError, o),
        (TinyLlama(), lambda t: {**t, k: np.zeros(64, np.float32)}, UnsupportedError, k),
        (llama, lambda t: {**t, "blk.0.ffn_up.bias": np.zeros(96, np.float32)}, UnsupportedError,
         "ffn_up.bias"),
    ):
        path = rewritten_gguf(tmp_path / "bad.gguf", spec, change)
        with pytest.raises(error, match=words):
            Model.load(path, threads=1)
    path = rewritten_gguf(tmp_path / "good.gguf", llama, lambda t: t)
    ids = random_ids(40)
    ours, expected = (open_engine(source).sequence(ids[:1]).score(ids[1:]).probs
                      for source in (path, llama))
    assert ours.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("changes", "error", "words"), [
    ({"rope.scaling.type": "yarn"}, UnsupportedError, "'yarn'"),
    ({"expert_count": 4}, UnsupportedError, "mixture-of-experts"),
    ({"block_count": None}, ModelFileError, "qwen2.block_count"),
])  # fmt: skip
def test_qwen2_files_that_are_refused(tmp_path, changes, error, words):
    keys = {
        "block_count": 2, "context_length": 64, "embedding_length": 64, "feed_forward_length": 96,
        "attention.head_count": 4, "attention.layer_norm_rms_epsilon": Typed("float32", 1e-6),
        **changes,
    }  # fmt: skip
    metadata = {"general.architecture": "qwen2"}
    metadata |= {f"qwen2.{key}": value for key, value in keys.items() if value is not None}
    path = Gguf(metadata, [Tensor("token_embd.weight", (64, 8))]).write(tmp_path / "bad.gguf")
    with pytest.raises(error, match=words):
        _C.Model(str(path))
