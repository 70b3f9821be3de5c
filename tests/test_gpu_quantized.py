"""8- and 4-bit weights on the GPU engine against the CPU engine on the same file."""

import numpy as np
import pytest
from helpers import PROB_TOLERANCE, TinyLlama, open_engine, random_ids, result_bits, tiny_llama_path
from helpers_checkpoint import checkpoint, tiny
from helpers_gemma import TinyGemma, tiny_gemma_path
from helpers_gpu import GPU_DEVICE, gpu_engine, gpu_model, runner_of
from kernel_helpers import QUANTIZED
from triton_env import DEVICE, torch

from flarecore import _C
from flarecore.engine import Engine
from flarecore.errors import ConfigError, ModelFileError
from flarecore.gpu import products
from flarecore.gpu.device import load_kernels
from flarecore.gpu.matrices import StackedMatrix, quantized_matrix
from flarecore.gpu.options import GpuOptions
from flarecore.gpu.weights import ModelSource
from flarecore.model import Model
from flarecore.sampling import SamplingParams

# On a device keys and values are 16 bits: gpu_check (test_gpu_device.py) compares them there.
pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="exact in float32, in the interpreter")
SIZES = {"num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "context_length": 256}
K_SIZES = {"head_dim": 128, "hidden_size": 256, "ffn_size": 256, **SIZES}
SMALL = {"head_dim": 32, "hidden_size": 64, "ffn_size": 96, **SIZES}
OPTIONS = {"sampling": SamplingParams(temperature=1.0, seed=3), "until": "eos", "ignore_eos": True}


def products_of(engine):
    return runner_of(engine)._forward.products


def weights_of(engine):
    return runner_of(engine)._forward.weights


def decoded(engine, num_tokens=5, ids=None, **options):
    with engine.sequence(random_ids(9) if ids is None else ids) as sequence:
        return sequence.decode(num_tokens, **{**OPTIONS, **options})


def assert_same(ours, expected):
    assert ours.token_ids == expected.token_ids
    np.testing.assert_allclose(ours.probs, expected.probs, atol=PROB_TOLERANCE, rtol=0)


def values_of(matrix):
    out = torch.empty(matrix.shape, device=matrix.device)
    return load_kernels().quantized.dequantize(matrix, 0, out).cpu().numpy()


@pytest.mark.parametrize("type_name", QUANTIZED)
def test_every_type_keeps_its_values(type_name):
    """Of each matrix of a file, bit for bit; floats of the same file are no matrix of groups."""
    sizes = K_SIZES if type_name.endswith("_K") else SMALL
    path = tiny_llama_path(TinyLlama(tensor_type=type_name, **sizes))
    native = _C.Model(str(path))
    tensors = {tensor.name: tensor for tensor in _C.GgufFile(path).tensors}
    assert set(native.tensor_names()) == set(tensors)
    num_matrices = 0
    for name, tensor in tensors.items():
        expected = tensor.to_float32()
        assert np.array_equal(native.tensor_values(name), expected)
        groups = native.tensor_groups(name)
        assert (groups is None) == (tensor.type == "F32")
        if groups is not None:
            assert groups[0] == type_name
            matrix = quantized_matrix([groups, groups], torch.device(DEVICE))
            assert np.array_equal(values_of(matrix), np.concatenate([expected, expected]))
            num_matrices += 1
    assert num_matrices == 9  # seven of the layer, embedding and head
    with pytest.raises(ModelFileError, match="other"):
        native.tensor_groups("other")


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0", "Q4_K", "Q6_K"])
def test_quantised_files(type_name):
    spec = TinyLlama(tensor_type=type_name, **(K_SIZES if type_name.endswith("_K") else SMALL))
    with open_engine(spec) as cpu, gpu_engine(spec) as gpu:
        assert_same(decoded(gpu), decoded(cpu))
        assert products_of(gpu).num_quantized > 5
        with gpu_engine(spec, gpu={"weights": "dense"}) as dense:
            assert_same(decoded(dense), decoded(cpu))
            assert products_of(dense).num_quantized == 0
            assert dense.stats().weights_size_bytes > 2.5 * gpu.stats().weights_size_bytes


@pytest.mark.parametrize("quantize", ["q4", "q8"])
@pytest.mark.parametrize("kind", ["bfloat16 checkpoint", "float32 file"])
def test_quantised_at_load(quantize, kind):
    path = tiny_llama_path(TinyLlama(**SMALL))
    if kind == "bfloat16 checkpoint":
        path = checkpoint(tiny(dtype="bfloat16", num_hidden_layers=1))[0]
    ids = random_ids(9, 250)
    cpu_model = Model.load(path, quantize=quantize)
    model = Model.load(path, device=GPU_DEVICE, quantize=quantize)
    with Engine(cpu_model, compute="float32") as cpu, gpu_engine(model) as gpu:
        expected = decoded(cpu, ids=ids)
        assert_same(decoded(gpu, ids=ids), expected)
        layer = weights_of(gpu).layers[0]
        assert layer.down.format.bits == int(quantize[1])
        assert weights_of(gpu).embedding.format.bits == 8
        assert products_of(gpu).num_quantized > 5
        with gpu_engine(model, gpu={"weights": "dense"}) as dense:
            assert_same(decoded(dense, ids=ids), expected)
    assert model.quantization.quantize == quantize


def test_gemma_with_types_of_its_own():
    """Embeddings are scaled; embedding, attention and FFN in different types."""
    spec = TinyGemma(num_layers=2, head_dim=32, hidden_size=64, ffn_size=96, tied=True,
                     tensor_types=("Q8_0", "F16", "Q4_0"))
    path = tiny_gemma_path(spec)
    with open_engine(path) as cpu, gpu_engine(path) as gpu:
        greedy = SamplingParams()
        assert_same(decoded(gpu, sampling=greedy), decoded(cpu, sampling=greedy))
        layer = weights_of(gpu).layers[0]
        assert isinstance(layer.qkv, torch.Tensor) and layer.gate_up.format.bits == 4


def test_types_that_differ_within_a_product(monkeypatch):
    """Queries and keys in 4 bits, values in floats: two products, one below the other."""
    stored = ModelSource.groups
    monkeypatch.setattr(
        ModelSource, "groups", lambda self, name: None if "attn_v" in name else stored(self, name))
    spec = TinyLlama(tensor_type="Q4_1", **SMALL)
    with open_engine(spec) as cpu, gpu_engine(spec) as gpu:
        qkv = weights_of(gpu).layers[0].qkv
        assert isinstance(qkv, StackedMatrix) and len(qkv.parts) == 2
        assert qkv.shape == (128, 64) and qkv.numel() == 128 * 64
        assert_same(decoded(gpu), decoded(cpu))


def test_long_prefills_write_the_matrix_out(monkeypatch):
    """In parts of a few rows, in 16 bits or 32; short ones do not."""
    monkeypatch.setattr(products, "_PART_BYTES", 4 * 64 * 50)
    calls = []
    for name in ("_few", "_many"):
        method = getattr(products.Products, name)
        monkeypatch.setattr(products.Products, name, lambda self, x, part, out, m=method, n=name: (
            calls.append((n, x.shape[0])), m(self, x, part, out))[0])
    spec = TinyLlama(tensor_type="Q4_1", **{**SMALL, "num_layers": 2})
    with open_engine(spec) as cpu, gpu_engine(spec) as gpu:
        ids = random_ids(products.FEW_ROWS + 3)
        assert_same(decoded(gpu, 3, ids=ids), decoded(cpu, 3, ids=ids))
        assert ("_many", 128) in calls and ("_few", 1) in calls
        calls.clear()
        ids = random_ids(products.FEW_ROWS - 3, seed=9)
        assert_same(decoded(gpu, 2, ids=ids), decoded(cpu, 2, ids=ids))
        assert {name for name, _ in calls} == {"_few"}


def test_a_row_has_the_same_bits_alone_in_a_batch_and_verified():
    with gpu_engine(TinyLlama(tensor_type="Q8_0", **SMALL), compute="float16") as engine:
        ids = random_ids(12)
        alone = decoded(engine, 6, ids=ids)
        sequences = [engine.sequence(ids[: len(ids) - i]) for i in range(3)]
        operations = [s.decode_async(6, **OPTIONS) for s in sequences]
        together = [operation.result() for operation in operations]
        assert result_bits(together[0]) == result_bits(alone)
        verified = decoded(engine, 6, ids=ids, proposal=alone.token_ids)
        assert result_bits(verified) == result_bits(alone)
        assert verified.stats.num_accepted >= 5


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
def test_16_bits_are_close_to_the_dense_twin(compute):
    """The twin rounds weights, the kernel does not: a confidence moves by what rounding costs."""
    model = gpu_model(tiny_llama_path(TinyLlama(tensor_type="Q4_1", **SMALL)))
    probs = []
    for weights in ("stored", "dense"):
        with (gpu_engine(model, compute=compute, gpu={"weights": weights}) as engine,
              engine.sequence(random_ids(9)) as sequence):
            probs.append(sequence.score(random_ids(6, seed=2)).probs)
    tolerance = 0.02 if compute == "float16" else 0.5  # the interpreter cuts bfloat16 off
    np.testing.assert_allclose(probs[0], probs[1], rtol=tolerance, atol=2e-3)


def test_the_option_is_checked():
    with pytest.raises(ConfigError, match="weights must be one of 'stored', 'dense', got 'q4'"):
        GpuOptions(weights="q4")
