"""The GPU engine against the CPU engine: same tokens, same confidences, same answers."""

import subprocess
import sys

import numpy as np
import pytest
from helpers import PROB_TOLERANCE, TinyLlama, open_engine, random_ids, result_bits, tiny_llama_path
from helpers_checkpoint import VOCAB_SIZE, checkpoint, tiny
from helpers_gemma import TinyGemma, tiny_gemma_path
from helpers_gpu import SMALL, gpu_engine, gpu_model, runner_of
from triton_env import DEVICE, torch

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError, ModelFileError, UnsupportedError
from flarecore.flare import Flare
from flarecore.gpu import weights
from flarecore.gpu.shape import DecoderShape
from flarecore.model import Model
from flarecore.retrieval.passage import Passage
from flarecore.sampling import SamplingParams
from flarecore.templates import PromptTemplate

# On a device keys and values are 16 bits: gpu_check (test_gpu_device.py) compares them there.
pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="exact in float32, in the interpreter")
SAMPLINGS = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(temperature=1.0, seed=2**63 + 5, stream=7),
    "filters": SamplingParams(temperature=1.2, top_k=40, top_p=0.9, min_p=0.01, seed=4),
    "adjusted": SamplingParams(
        temperature=0.8, seed=9, repetition_penalty=1.4, logit_bias={5: 3.0, 9: -2.0}),
}  # fmt: skip


@pytest.fixture(scope="module")
def pair():
    """(CPU engine, GPU engine) of one model."""
    with open_engine(SMALL) as cpu, gpu_engine(SMALL) as gpu:
        yield cpu, gpu
        gpu.check_integrity()


def assert_same(ours, expected):
    assert ours.token_ids == expected.token_ids
    np.testing.assert_allclose(ours.probs, expected.probs, atol=PROB_TOLERANCE, rtol=0)
    assert ours.text_bytes == expected.text_bytes
    assert ours.stop_reason == expected.stop_reason
    assert ours.min_prob == pytest.approx(expected.min_prob, abs=PROB_TOLERANCE)
    np.testing.assert_array_equal(ours.mask, expected.mask)
    assert ours.triggered == expected.triggered


@pytest.mark.parametrize("name", SAMPLINGS)
def test_decodes_what_the_cpu_decodes(pair, name):
    """A prompt over a block boundary, then two decodes and given tokens in between."""
    options = {"sampling": SAMPLINGS[name], "until": "eos", "ignore_eos": True, "beta": 0.02,
               "theta": 0.01}  # fmt: skip
    results = []
    for engine in pair:
        with engine.sequence(random_ids(30)) as sequence:
            first = sequence.decode(6, **options)
            sequence.extend(random_ids(3, seed=5))
            results.append((first, sequence.decode(4, pass_index=1, **options)))
    for ours, expected in zip(results[1], results[0], strict=True):
        assert_same(ours, expected)
        assert len(ours.token_ids) > 3


@pytest.mark.parametrize(
    "spec",
    [
        TinyLlama(num_heads=6, head_dim=24, hidden_size=48, tied=True),
        TinyLlama(linear_factor=4.0, rope_theta=500.0, rope_factors=tuple(1 + i for i in range(16)),
                  num_layers=1),
        TinyGemma(num_layers=2, head_dim=16, hidden_size=32, ffn_size=48, window=24),
        TinyLlama(architecture="qwen2", num_heads=6, num_kv_heads=2, head_dim=16),
        TinyLlama(architecture="qwen3", num_heads=6, num_kv_heads=2, head_dim=16, tied=True),
        TinyLlama(architecture="qwen3", head_dim=16, num_layers=1, tensor_type="Q8_0"),
        TinyLlama(attention_bias=True, num_layers=1, head_dim=16),
    ],
    ids=["layers-groups-tied", "rope", "gemma", "qwen2", "qwen3", "qwen3-q8_0", "bias"],
)  # fmt: skip
def test_architectures(spec):
    path = tiny_llama_path(spec) if isinstance(spec, TinyLlama) else tiny_gemma_path(spec)
    ids = random_ids(34)
    with open_engine(path) as cpu, gpu_engine(path) as gpu:
        wanted, got = (engine.sequence(ids).decode(4, until="eos") for engine in (cpu, gpu))
        assert_same(got, wanted)
        wanted, got = (engine.sequence(ids).score(random_ids(5, seed=1)) for engine in (cpu, gpu))
        np.testing.assert_allclose(got.probs, wanted.probs, atol=PROB_TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"until": "sentence", "max_tokens": 10},
        {"until": "sentence", "max_tokens": 9, "stop": ["e", "\n"]},
        {"until": "eos", "max_tokens": 10, "stop_below": 0.004},
        {"until": "sentence", "max_tokens": 6, "logit_bias": {SMALL.vocab_size - 1: 4.0}},
    ],
    ids=["sentence", "stop", "low", "eos"],
)
def test_stops_where_the_cpu_stops(pair, options):
    """Then goes on: what was looked at, or sampled beyond the end, begins the next decode."""
    options = dict(options)
    sampling = SamplingParams(temperature=1.5, seed=2, logit_bias=options.pop("logit_bias", {}))
    results = [[], []]
    for engine, out in zip(pair, results, strict=True):
        with engine.sequence(random_ids(4, seed=2)) as sequence:
            for _ in range(3):
                out.append(sequence.decode(sampling=sampling, **options))
                out.append(sequence.token_ids)
    for expected, ours in zip(*results, strict=True):
        if isinstance(ours, list):
            assert ours == expected
        else:
            assert_same(ours, expected)


def test_stops_at_the_context_as_the_cpu_does():
    short = TinyLlama(**{**vars(SMALL), "context_length": 38})
    ids = random_ids(33)
    for engine in (open_engine(short), gpu_engine(short)):
        with engine.sequence(ids) as sequence:
            out = sequence.decode(40, sampling=SAMPLINGS["temperature"], until="eos",
                                  ignore_eos=True)
            assert out.stop_reason == "context_length" and len(out.token_ids) == 5


def test_reference_sampler_is_the_twin(pair):
    """Token for token; it goes through other code: no run of steps is launched."""
    sampling = SAMPLINGS["filters"]
    with gpu_engine(pair[1].model, sampler="reference") as twin:
        out = []
        for engine in (pair[1], twin):
            with engine.sequence(random_ids(6)) as sequence:
                out.append(sequence.decode(5, sampling=sampling, until="eos", ignore_eos=True))
        assert out[0].token_ids == out[1].token_ids
        np.testing.assert_allclose(out[0].probs, out[1].probs, atol=1e-6, rtol=0)
        assert not runner_of(twin)._buckets and runner_of(pair[1])._buckets


class TwoPassages:
    def search(self, queries, k, filter=None):
        return [[Passage("a", "A valley."), Passage("b", "It rains.")][:k]
                for _ in queries]  # fmt: skip


def test_flare_loop_gives_the_cpu_answer(pair):
    """Drafts, triggers, queries and sentences, unchanged code over both engines."""
    config = FlareConfig(
        theta=0.05, beta=0.02, k=2, max_draft_tokens=6, max_new_tokens=12, max_passage_tokens=8,
        max_evidence_tokens=16, template=PromptTemplate.base(head="", stop=()),
        sampling=SamplingParams(temperature=1.0, seed=3, logit_bias={SMALL.vocab_size - 1: -50.0}))
    results = [Flare(engine, TwoPassages(), config).generate("Why?") for engine in pair]
    expected, ours = results
    assert ours.text == expected.text and ours.token_ids == expected.token_ids
    assert ours.stop_reason == expected.stop_reason
    for mine, theirs in zip(ours.trace.sentences, expected.trace.sentences, strict=True):
        assert mine.draft.token_ids == theirs.draft.token_ids
        assert mine.draft.triggered == theirs.draft.triggered
        assert [r.query for r in mine.retrievals] == [r.query for r in theirs.retrievals]
        assert [p.token_ids for p in mine.regenerations] == [
            p.token_ids for p in theirs.regenerations]
    assert any(s.regenerations for s in ours.trace.sentences), "nothing was retrieved"


def test_bfloat16_is_close(pair):
    """16-bit weights, activations and cache: the interpreter rounds them by cutting off."""
    with gpu_engine(pair[1].model, compute="bfloat16") as engine:
        ids, more = random_ids(9), random_ids(4, seed=2)
        wanted = pair[0].sequence(ids).score(more).probs
        got = engine.sequence(ids).score(more).probs
        np.testing.assert_allclose(got, wanted, rtol=0.5, atol=2e-3)
        assert engine.stats().weights_size_bytes < pair[1].stats().weights_size_bytes


@pytest.mark.parametrize(
    "spec",
    [
        tiny("Mistral", sliding_window=20, num_hidden_layers=1),
        tiny("Qwen2", tied=True, num_hidden_layers=2, use_sliding_window=True, sliding_window=20,
             max_window_layers=1),
        tiny("Qwen3", tied=True, num_hidden_layers=1, dtype="bfloat16", sharded=True),
        tiny("Gemma3", sliding_window=24, num_hidden_layers=2,
             layer_types=["sliding_attention", "full_attention"]),
    ],
    ids=["mistral", "qwen2", "qwen3", "gemma3"],
)  # fmt: skip
def test_checkpoints(spec):
    """Directories of safetensors: halves rotated, norms with an offset, windows."""
    path, _ = checkpoint(spec)
    ids = random_ids(30, VOCAB_SIZE - 20, seed=4)
    with open_engine(path) as cpu, gpu_engine(path) as gpu:
        wanted, got = (engine.sequence(ids).score(ids[:5]) for engine in (cpu, gpu))
        np.testing.assert_allclose(got.probs, wanted.probs, atol=PROB_TOLERANCE, rtol=0)


def test_what_is_missing_or_left_over_is_named():
    """Also a matrix of another shape; the native model refuses such files before."""
    model = gpu_model()
    shape = DecoderShape.of_model(model._native)
    source = weights.ModelSource(model._native)
    values = {name: source.read(name) for name in source.names()}

    class Tensors:
        names = staticmethod(lambda: set(values))
        groups = staticmethod(lambda name: None)

        def read(self, name):
            if name not in values:
                raise ModelFileError(f"there is no tensor {name}")
            return values[name]

    def load():
        return weights.load_weights(Tensors(), shape, torch.float32, torch.device("cpu"))

    wanted = weights.load_weights(source, shape, torch.float32, torch.device("cpu"))
    assert torch.equal(load().layers[0].gate_up, wanted.layers[0].gate_up)
    values["blk.0.attn_q.bias"] = np.zeros(4, np.float32)
    with pytest.raises(UnsupportedError, match=r"blk\.0\.attn_q\.bias"):
        load()
    up = values.pop("blk.0.ffn_up.weight")
    with pytest.raises(ModelFileError, match=r"blk\.0\.ffn_up"):
        load()
    values["blk.0.ffn_up.weight"] = up[:-1]
    with pytest.raises(ModelFileError, match=r"ffn_up.*\(47, 32\), expected \(48, 32\)"):
        load()


def test_options_are_checked():
    model = gpu_model()
    for options in ({"compute": "int8"}, {"sampler": "best"}, {"gpu": 3}, {"kv_cache_bytes": 9}):
        with pytest.raises(ConfigError):
            gpu_engine(model, **options) if "gpu" not in options else __import__(
                "flarecore").Engine(model, **options)
    with pytest.raises(UnsupportedError, match="known are 'cpu'"):
        Model.load(str(tiny_llama_path(SMALL)), device="tpu")


def test_without_a_gpu_the_message_says_what_is_missing():
    code = (
        "import sys, flarecore; assert 'torch' not in sys.modules\n"
        "from flarecore.gpu import device\n"
        "device._has = lambda name: name != 'triton'\n"
        "try: flarecore.Model.load(sys.argv[1], device='cuda')\n"
        "except flarecore.UnsupportedError as error: print(error)")
    path = str(tiny_llama_path(SMALL))
    out = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert "triton is not installed (pip install 'flarecore[gpu]')" in out.stdout, out.stderr


def test_results_have_the_bits_of_the_scores(pair):
    """The confidence of a token is the same, decoded, proposed or scored."""
    ids = random_ids(8)
    with pair[1].sequence(ids) as sequence:
        decoded = sequence.decode(6, until="eos", ignore_eos=True)
        sequence.truncate(len(ids))
        scored = sequence.score(decoded.token_ids)
        assert scored.probs.tobytes() == decoded.probs.tobytes()
        again = sequence.decode(6, until="eos", ignore_eos=True, proposal=decoded.token_ids)
        assert result_bits(again) == result_bits(decoded)
        assert again.stats.num_accepted >= 5
