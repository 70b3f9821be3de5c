"""How many kernels a forward pass launches: what is fused stays fused."""

import contextlib
import dataclasses

import pytest
from helpers import TinyLlama, tiny_llama_path
from helpers_gemma import TinyGemma, tiny_gemma_path
from helpers_gpu import MARKS, core_of, gpu_engine
from triton_env import INTERPRETED, torch, triton

from flarecore.gpu.run_bucket import StepVariant

pytestmark = MARKS
NO_LAUNCH = {"aten.view", "aten.slice", "aten.select", "aten.t", "aten.split", "aten.chunk",
             "aten._unsafe_view", "aten.empty", "aten.alias", "aten.detach",
             "aten.as_strided"}  # fmt: skip


class Counter(torch.utils._python_dispatch.TorchDispatchMode):
    """Names of what is launched: Triton kernels, and torch operations that are no views."""

    def __init__(self):
        super().__init__()
        self.names = []
        self.inside = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).rsplit(".", 1)[0]
        if not self.inside and name not in NO_LAUNCH:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def counted(monkeypatch):
    if INTERPRETED:
        from triton.runtime.interpreter import GridExecutor

        owner, method = GridExecutor, "__call__"
    else:
        owner, method = triton.runtime.JITFunction, "run"
    launch = getattr(owner, method)
    counter = Counter()

    def noted(self, *args, **kwargs):
        counter.names.append((self.fn if hasattr(self, "fn") else self).__name__)
        counter.inside = True  # what the interpreter does for a launch
        try:
            return launch(self, *args, **kwargs)
        finally:
            counter.inside = False

    with monkeypatch.context() as patch, counter:
        patch.setattr(owner, method, noted)
        yield counter


def launches(path, monkeypatch):
    """Of one decode step. What the CUDA module launches would not be seen here."""
    with (gpu_engine(path, gpu={"graphs": False}, sampler="triton") as engine,
          engine.sequence([1, 2]) as sequence):
        sequence.decode(2, until="eos", ignore_eos=True)  # everything has been made
        runner = core_of(engine)._setup.stepper.runner
        bucket = runner._buckets[1]
        with torch.inference_mode():
            bucket.clear()
            bucket.upload()
            with counted(monkeypatch) as counter:
                runner._steps(bucket, 1, StepVariant(256, False, False))
    return counter.names


@pytest.mark.parametrize(
    ("spec", "layer", "outside"),
    [(TinyLlama(), 9, 4), (TinyGemma(), 9, 4), (TinyLlama(tensor_type="Q8_0"), 9, 5),
     (TinyLlama(architecture="qwen2"), 9, 4), (TinyLlama(architecture="qwen3"), 9, 4),
     (TinyLlama(attention_bias=True), 10, 4)],
    ids=["llama", "gemma", "llama in 8 bits", "qwen2", "qwen3", "bias of attention's output"],
)
def test_launches_of_a_decode_step(spec, layer, outside, monkeypatch):
    """A layer: four products, rotation and store, attention, activation, two norms.

    Biases of queries, keys and values are added with the rotation, which norms heads first; that of
    the output is added by itself.

    Before them the embedding with its norm, which are two where the embedding has 8 bits; behind
    them the head, the sampler and the copy of the flags.
    """
    counts = []
    for num_layers in (1, 2):
        made = dataclasses.replace(spec, num_layers=num_layers, num_heads=2, num_kv_heads=1,
                                   head_dim=16, hidden_size=32, ffn_size=64)
        path = tiny_llama_path(made) if isinstance(made, TinyLlama) else tiny_gemma_path(made)
        counts.append(launches(path, monkeypatch))
    assert len(counts[1]) - len(counts[0]) == layer, counts
    assert 2 * len(counts[0]) - len(counts[1]) == outside, counts
