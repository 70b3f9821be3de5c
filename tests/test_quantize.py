"""Weights quantised at load: the rule, its stated error, and the model that comes out."""

import dataclasses
import math

import gguf
import numpy as np
import pytest
from helpers import (
    PROB_TOLERANCE,
    TinyLlama,
    open_engine,
    random_ids,
    tiny_llama_path,
    transformers_decoder,
)
from helpers_checkpoint import VOCAB_SIZE, checkpoint, tiny

from flarecore import _C
from flarecore.engine import Engine
from flarecore.errors import ConfigError, ModelFileError
from flarecore.model import Model
from flarecore.reference.gguf_weights import LlamaWeights, load_llama_gguf
from flarecore.reference.weight_quantization import quantize_dequantize

T = _C.testing
ISAS = _C.available_isas()


def matrix(seed, rows=37, cols=288):
    """Rows of awkward kinds among ordinary ones. 37 rows fill no tile, 9 groups no run of 8."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, cols)).astype(np.float32) / 8
    values[1] = 0
    values[2] = 0.75  # no range
    values[3] = 1000 + rng.standard_normal(cols) * 1e-2  # a narrow range far from 0
    values[4] = np.abs(values[4])
    values[5] *= 1e-7  # scales that are subnormal, or 0, in float16
    values[6] *= 1e-30
    values[7] = rng.choice([-1.0, 1.0], cols)
    values[8] = rng.standard_t(2, cols)
    values[9, ::32] = 60000
    values[10] = np.linspace(-65000, 65000, cols)
    values[11, 5] = -3.5
    return values


def pack(values, quantize, *, isa=ISAS[0], mode="quantized", threads=1, kind="F32"):
    data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    return T.QuantizedMatrix(kind, data, *values.shape, isa, mode, quantize, T.ThreadPool(threads))


def rows_of(packed, num_rows):
    return np.stack([packed.dequantize_row(row) for row in range(num_rows)])


@pytest.mark.parametrize("quantize", ["q4", "q8"])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_values_are_those_of_the_rule(quantize, kind):
    values = matrix(1)
    stored = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    exact = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind]).reshape(values.shape)
    expected = quantize_dequantize(exact, quantize)
    for mode in ("quantized", "float32"):
        packed = pack(values, quantize, mode=mode, kind=kind)
        np.testing.assert_array_equal(rows_of(packed, len(values)), expected)
    assert np.any(expected != exact)


@pytest.mark.parametrize("quantize", ["q4", "q8"])
def test_packing_depends_on_neither_threads_nor_cpu_level(quantize):
    values = matrix(2)
    first = pack(values, quantize)
    expected = rows_of(first, len(values))
    for isa in ISAS:
        for threads in (1, 2, 4):
            packed = pack(values, quantize, isa=isa, threads=threads)
            assert rows_of(packed, len(values)).tobytes() == expected.tobytes()
            assert packed.error == first.error


@pytest.mark.parametrize("quantize", ["q4", "q8"])
def test_stated_error_is_true(quantize):
    values = matrix(3)
    packed = pack(values, quantize)
    difference = rows_of(packed, len(values)).astype(np.float64) - values
    count, errors, squares, largest, bad = packed.error
    assert count == values.size and bad == -1
    np.testing.assert_allclose(errors, (difference**2).sum(), rtol=1e-12)
    np.testing.assert_allclose(squares, (values.astype(np.float64) ** 2).sum(), rtol=1e-12)
    assert largest == np.abs(difference).max()


def test_search_beats_minimum_and_maximum_in_every_group():
    values = matrix(4, rows=64)
    groups = values.reshape(-1, 32).astype(np.float64)
    low = groups.min(1, keepdims=True).astype(np.float16).astype(np.float64)
    step = ((groups.max(1) - groups.min(1)) / 15).astype(np.float16).astype(np.float64)[:, None]
    codes = np.clip(np.rint((groups - low) / np.where(step > 0, step, np.inf)), 0, 15)
    plain = ((codes * step + low - groups) ** 2).sum(1)
    found = rows_of(pack(values, "q4"), len(values)).reshape(-1, 32)
    searched = ((found - groups) ** 2).sum(1)
    # The errors that are compared are summed in float32.
    assert np.all(searched <= plain * (1 + 1e-3) + 1e-12)
    ordinary = slice(12 * 9, None)
    assert searched[ordinary].sum() < 0.83 * plain[ordinary].sum()
    assert math.sqrt(searched[ordinary].sum() / (groups[ordinary] ** 2).sum()) < 0.072


@pytest.mark.parametrize(("quantize", "value"), [
    ("q4", math.nan), ("q4", math.inf), ("q8", -math.inf), ("q8", math.nan), ("q4", 65600.0),
    ("q8", 1e7),
])
def test_what_cannot_be_quantised_is_told(quantize, value):
    values = matrix(5)
    values[20, 7] = values[30, 1] = value
    assert pack(values, quantize, threads=2).error[-1] == 20


def dequantized(weights, quantize):
    """The same model with its matrices through the reference rule."""
    tensors = {}
    for name, value in weights.tensors.items():
        rule = "q8" if name in ("token_embd.weight", "output.weight") else quantize
        keep = value.ndim == 1 or value.shape[1] % 32
        tensors[name] = value if keep else quantize_dequantize(value, rule)
    return LlamaWeights(tensors, frozenset(), weights.shape)


@pytest.mark.parametrize("quantize", ["q4", "q8"])
@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_float32_equals_transformers_on_the_dequantised_weights(quantize, kind):
    """Guarantee 2."""
    spec = TinyLlama(tensor_type=kind, ffn_size=77)  # ffn_down keeps its floats
    weights = dequantized(load_llama_gguf(tiny_llama_path(spec)), quantize)
    ids = random_ids(45)
    expected_ids, expected_probs = transformers_decoder(weights).greedy(ids, 48)
    model = Model.load(tiny_llama_path(spec), threads=1, quantize=quantize)
    decoded = Engine(model, compute="float32").sequence(ids).decode(48, until="eos",
                                                                    ignore_eos=True)
    assert list(decoded.token_ids) == expected_ids
    np.testing.assert_allclose(decoded.probs, expected_probs, atol=PROB_TOLERANCE, rtol=0)
    plain = open_engine(spec).sequence(ids[:1]).score(ids[1:]).probs
    changed = Engine(model, compute="float32").sequence(ids[:1]).score(ids[1:]).probs
    assert not np.array_equal(plain, changed)


def log_loss(engine, ids):
    return -np.log(engine.sequence(ids[:1]).score(ids[1:]).probs.astype(np.float64)).mean()


@pytest.mark.parametrize("family", ["Llama", "Gemma3"])
def test_quantised_models_stay_close_and_q8_closer(family):
    """On text of the model's own: with random tokens every change is as good as another."""
    options = {"sliding_window": 24} if family == "Gemma3" else {}
    path, _ = checkpoint(tiny(family, dtype="bfloat16", **options))
    exact = open_engine(path)
    prompt = random_ids(8, VOCAB_SIZE - 20)
    text = [*prompt, *exact.sequence(prompt).decode(200, until="eos", ignore_eos=True).token_ids]
    losses = {}
    for quantize in ("q4", "q8"):
        model = Model.load(path, threads=1, quantize=quantize)
        for compute in ("float32", "int8"):
            losses[quantize, compute] = log_loss(Engine(model, compute=compute), text)
    reference = log_loss(exact, text)
    assert abs(losses["q8", "float32"] - reference) < 0.02
    assert abs(losses["q8", "int8"] - reference) < 0.1
    assert abs(losses["q4", "float32"] - reference) < 0.6
    assert abs(losses["q4", "int8"] - losses["q4", "float32"]) < 0.2


@pytest.mark.parametrize("quantize", ["q4", "q8"])
def test_int8_reads_quantised_weights(quantize):
    """The fast kernels were taken: the weights are as small as their format."""
    path, _ = checkpoint(tiny(dtype="float32"))
    sizes = {}
    for choice in (None, quantize):
        engine = Engine(Model.load(path, threads=1, quantize=choice), compute="int8")
        sizes[choice] = engine.stats().weights_size_bytes
    bits = {"q4": 6.5, "q8": 8.6}[quantize]  # embedding and head have 8.5 in any case
    assert sizes[quantize] / sizes[None] < bits / 32 * 1.1


@pytest.mark.parametrize("quantize", ["q4", "q8"])
def test_results_do_not_depend_on_threads(quantize):
    path, _ = checkpoint(tiny(dtype="bfloat16"))
    ids = random_ids(70, VOCAB_SIZE - 20)
    models = [Model.load(path, threads=threads, quantize=quantize) for threads in (1, 2, 4)]
    for compute in ("float32", "int8"):
        scores = {Engine(m, compute=compute).sequence(ids[:1]).score(ids[1:]).probs.tobytes()
                  for m in models}
        assert len(scores) == 1
    assert len({m.quantization for m in models}) == 1


def test_report():
    spec = TinyLlama(tensor_type="BF16", ffn_size=77)
    model = Model.load(tiny_llama_path(spec), threads=1, quantize="q4")
    assert model.quantize == "q4"
    report = model.quantization
    by_kind = {kind.kind: kind for kind in report.kinds}
    assert by_kind["token_embd"].format == by_kind["output"].format == "q8"
    assert by_kind["attn_q"].format == "q4" and by_kind["attn_q"].source == "BF16"
    assert by_kind["ffn_down"].format == "none" and by_kind["ffn_down"].relative_rms_error == 0
    weights = load_llama_gguf(tiny_llama_path(spec)).tensors
    for kind, value in (("attn_q", "q4"), ("token_embd", "q8")):
        exact = [v.astype(np.float64) for n, v in weights.items() if kind + "." in n]
        error = [quantize_dequantize(v, value) - v for v in exact]
        relative = math.sqrt(sum((e**2).sum() for e in error) / sum((v**2).sum() for v in exact))
        assert by_kind[kind].relative_rms_error == pytest.approx(relative, rel=1e-9)
        assert by_kind[kind].max_abs_error == max(np.abs(e).max() for e in error)
        assert by_kind[kind].num_values == sum(v.size for v in exact)
    assert report.max_abs_error == max(kind.max_abs_error for kind in report.kinds)
    assert report.worst_relative_rms_error >= report.relative_rms_error > 0.01
    assert f"{report.relative_rms_error:.2%}" in report.summary()
    assert len(report.lines()) == 1 + len(report.kinds)
    # The same figures from whatever packed the weights.
    other = Model.load(tiny_llama_path(spec), threads=1, quantize="q4")
    with Engine(other, compute="float32"):
        assert other.quantization == report
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.quantize = "q8"


def test_quantised_files_are_refused_and_mixed_ones_keep_what_they_have(tmp_path):
    with pytest.raises(ConfigError, match="nothing to quantise"):
        Model.load(tiny_llama_path(TinyLlama(tensor_type="Q4_1")), quantize="q4")
    with pytest.raises(ConfigError, match="nothing to quantise"):
        Model.load("smollm2-135m", quantize="q8")


def test_values_that_cannot_be_quantised_name_file_and_tensor(tmp_path):
    import shutil

    from safetensors.numpy import load_file, save_file

    path = shutil.copytree(checkpoint()[0], tmp_path / "nan")
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.2.mlp.up_proj.weight"
    tensors[name][33, 4] = np.nan
    save_file(tensors, path / "model.safetensors")
    model = Model.load(path, threads=2, quantize="q4")
    with pytest.raises(ModelFileError, match=rf"model\.safetensors: tensor {name}: row 33"):
        Engine(model)
    with pytest.raises(ModelFileError, match="row 33"):
        _ = model.quantization


def test_command_line_states_the_error(capsys):
    from flarecore.cli.main import main

    path, _ = checkpoint(tiny(dtype="bfloat16"))
    assert main(["doctor", "--model", str(path), "--quantize", "q4"]) == 0
    out = capsys.readouterr().out
    assert "q4: relative RMS error" in out and "BF16 -> q8" in out
    assert main(["generate", "--model", str(path), "--quantize", "q8", "-v", "--no-retrieval",
                 "--max-new-tokens", "4", "--max-sentences", "1", "fox"]) == 0
    assert "q8: relative RMS error" in capsys.readouterr().err
    assert main(["doctor", "--quantize", "q4"]) == 2
    assert main(["generate", "--model", "smollm2-135m", "--quantize", "q4", "--no-retrieval",
                 "q"]) == 2
    assert "nothing to quantise" in capsys.readouterr().err


def test_benchmarks_take_checkpoints_and_quantize(capsys):
    import json

    from flarecore.cli.main import main

    path, _ = checkpoint(tiny(dtype="bfloat16"))
    assert main(["bench", "prefill", "--model", str(path), "--quantize", "q8", "--peers", "llama",
                 "--rounds", "1", "--sizes", "8", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert any("flarecore q8 int8" in str(row) for row in rows)
