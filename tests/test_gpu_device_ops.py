"""Block copies, row gathers and seen tokens of the GPU engine: torch, and the CUDA module's."""

import numpy as np
import pytest
from helpers import random_ids, result_bits
from helpers_cuda_module import EmulatedModule, emulate_module
from helpers_gpu import SMALL, core_of, gpu_engine, gpu_model
from triton_env import DEVICE, torch

from flarecore.errors import ConfigError, UnsupportedError
from flarecore.gpu import adjustments
from flarecore.gpu.device_ops import BlockCopy, CudaOps, TorchOps, choose_ops, load_cuda
from flarecore.gpu.options import GpuOptions
from flarecore.sampling import SamplingParams

BACKENDS = [
    pytest.param("emulated", marks=pytest.mark.skipif(DEVICE != "cpu", reason="of CPU tensors")),
    pytest.param("cuda", marks=pytest.mark.gpu)]
PENALISED = SamplingParams(
    temperature=1.1, seed=6, repetition_penalty=1.6, logit_bias={5: 2.0, 77: -3.0, 200: 1.5})
# Says ". " and capitals soon; what shows that a sentence has ended is held.
SENTENCE = {"sampling": SamplingParams(
    temperature=1.3, seed=9, logit_bias={257: 9.0, ord("A"): 7.0, ord("B"): 7.0}),
    "ignore_eos": True}


@pytest.fixture(params=BACKENDS)
def ops(request):
    if request.param == "emulated":
        return CudaOps(EmulatedModule())
    try:
        return CudaOps(load_cuda(torch.device(DEVICE)))
    except UnsupportedError as error:
        pytest.skip(str(error))


# ---- the same result either way ----

@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 24, 20])
def test_block_copies_are_equal(ops, dtype, head_dim):
    """Whole, partly filled and shifted blocks; head sizes that the launch cannot take as well."""
    caches = torch.randn((3, 2, 9, 2, 32, head_dim), device=DEVICE).to(dtype)
    copies = [BlockCopy(0, -1, 5, 0, 32), BlockCopy(1, -1, 6, 0, 7), BlockCopy(2, 3, 7, 20, 32),
              BlockCopy(3, 0, 8, 31, 4), BlockCopy(2, 1, 4, 3, 0)]
    truncated = [BlockCopy(5, -1, 5, 0, 9), BlockCopy(8, 8, 8, 0, 0)]
    wanted, got = caches.clone(), caches.clone()
    TorchOps().copy_blocks(wanted, copies)
    ops.copy_blocks(got, copies)
    assert torch.equal(got, wanted)
    for cache, each in ((wanted.clone(), TorchOps()), (got.clone(), ops)):
        each.copy_blocks(cache, truncated)
        assert torch.equal(cache[:, :, 5, :, :9], wanted[:, :, 5, :, :9])
        assert not cache[:, :, 5, :, 9:].any() and not cache[:, :, 8].any()
    assert torch.equal(wanted[:, :, :4], caches[:, :, :4])
    assert torch.equal(wanted[:, :, 7, :, :12], caches[:, :, 2, :, 20:])
    assert torch.equal(wanted[:, :, 7, :, 12:], caches[:, :, 3, :, :20])
    assert not wanted[:, :, 6, :, 7:].any() and not wanted[:, :, 4].any()


@pytest.mark.parametrize("columns", [1, 48, 577])
def test_gathered_rows_are_equal(ops, columns):
    source = torch.randn((12, columns), device=DEVICE).to(torch.float16)
    indices = torch.tensor([11, 0, 3, 3, 7], dtype=torch.int32, device=DEVICE)
    wanted, got = torch.zeros((2, 5, columns), dtype=torch.float16, device=DEVICE)
    TorchOps().gather_rows(source, indices, wanted)
    ops.gather_rows(source, indices, got)
    assert torch.equal(got, wanted) and torch.equal(wanted, source[indices.long()])


@pytest.mark.parametrize("vocab_size", [31, 64, 1003])
def test_seen_tokens_are_equal(ops, vocab_size):
    ids = np.random.default_rng(vocab_size).integers(0, vocab_size, 40)
    tokens = torch.tensor([*ids, vocab_size - 1], dtype=torch.int32, device=DEVICE)
    wanted, got = torch.full((2, -(-vocab_size // 32)), 7, dtype=torch.int32, device=DEVICE)
    for given in (tokens, tokens[:0]):
        TorchOps().mark_seen(wanted, given, vocab_size)
        ops.mark_seen(got, given, vocab_size)
        assert torch.equal(got, wanted)
        bits = np.unpackbits(wanted.cpu().numpy().view(np.uint8), bitorder="little")
        assert sorted(np.flatnonzero(bits)) == sorted(set(given.tolist()))


def test_texts_that_begin_each_other_cross_once():
    texts = [[1, 2], [1, 2, 3], (), [1, 2, 3, 4], [9], [9, 1], [8, 1]]
    run, places = adjustments._shared(texts)
    assert [run[begin : begin + size] for begin, size in places] == [list(t) for t in texts]
    assert len(run) == 4 + 2 + 2


# ---- which one an engine takes ----

def test_the_module_is_taken_where_it_can_be_used(monkeypatch):
    device = torch.device("cpu")
    assert choose_ops(GpuOptions(), device).name == "torch"
    with pytest.raises(UnsupportedError, match='device_ops="cuda" is not available'):
        choose_ops(GpuOptions(device_ops="cuda"), device)
    with pytest.raises(ConfigError, match="device_ops"):
        GpuOptions(device_ops="both")
    emulate_module(monkeypatch)
    assert choose_ops(GpuOptions(), device).name == "cuda"
    assert choose_ops(GpuOptions(device_ops="torch"), device).name == "torch"


def story(engine):
    """Bits of forks that write a shared block, of held tokens, of penalties, proposals, scores."""
    options = {"sampling": SamplingParams(temperature=1.3, seed=2), "until": "eos",
               "ignore_eos": True}
    found = []
    with engine.sequence(random_ids(37)) as sequence, sequence.fork() as fork:
        found.append(result_bits(fork.decode(2, **options)))
        # Held tokens begin the next decode; their rows come before its own.
        found += [result_bits(sequence.decode(n, **SENTENCE)) for n in (8, 4)]
        penalised = {**options, "sampling": PENALISED}
        plain = fork.token_ids
        out = fork.decode(4, **penalised)
        found.append(result_bits(out))
        fork.truncate(len(plain))
        found.append(result_bits(fork.decode(4, **penalised, proposal=out.token_ids)))
        assert found[-1] == found[-2]
        scored = fork.score(random_ids(3, seed=5))
        found.append((scored.token_ids, scored.probs.tobytes()))
        operations = [fork.decode_async(2, **penalised), sequence.decode_async(2, **options)]
        found += [result_bits(operation.result()) for operation in operations]
    engine.check_integrity()
    return found


@pytest.mark.skipif(DEVICE != "cpu", reason="the emulation is of CPU tensors")
def test_an_engine_on_the_module_gives_the_same_bits(monkeypatch):
    model = gpu_model()
    with gpu_engine(model) as engine:
        assert core_of(engine)._setup.stepper.forward.kv.ops.name == "torch"
        wanted = story(engine)
    module = emulate_module(monkeypatch)
    with gpu_engine(model, sampler="triton") as engine:
        assert story(engine) == wanted
    assert module.calls["copy_blocks"] >= 1 and module.calls["gather_rows"] >= 1
    assert not module.calls["sample"] and not module.calls["mark_seen"]
    module.calls.clear()
    with gpu_engine(model) as engine:
        fused = story(engine)
    assert all(module.calls[name] for name in (
        "copy_blocks", "gather_rows", "mark_seen", "sample")), module.calls
    for ours, theirs in zip(fused, wanted, strict=True):  # the samplers' last bits may differ
        assert ours[0] == theirs[0]
        np.testing.assert_allclose(
            *(np.frombuffer(probs, np.float32) for _, probs in (ours, theirs)), rtol=2e-6)
    module.calls.clear()
    with gpu_engine(model, gpu={"device_ops": "torch"}) as engine:
        assert story(engine) == fused
    assert set(module.calls) == {"sample", "sample_workspace_size"}


def test_only_rows_that_are_read_go_through_the_head():
    with gpu_engine(SMALL) as engine:
        forward = core_of(engine)._setup.stepper.forward
        seen, decode = [], forward.decode

        def watched(rows, **options):
            out = decode(rows, **options)
            seen.append((rows.num_rows, out.shape[0]))
            return out

        forward.decode = watched
        with engine.sequence(random_ids(37)) as sequence:
            assert sequence.decode(8, **SENTENCE).stop_reason == "sentence"
            sequence.decode(4, **SENTENCE)
        assert any(0 < read < fed for fed, read in seen), seen
