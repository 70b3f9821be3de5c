"""Which kernels a device would compile for the passes of an engine; run by test_triton_compile.py.

Launches go through Triton's own look at their arguments (values of 1, multiples of 16, addresses)
for a made-up device, on CPU tensors. Nothing is compiled or run: what matters is that a batch of
another size takes the kernels that are there, since a compilation within a capture would end it,
and anywhere else cost seconds.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction

from flarecore.bench.gpu.shapes import SHAPES, random_weights
from flarecore.gpu.decode_run import DecodeRunner
from flarecore.gpu.device import load_kernels
from flarecore.gpu.device_ops import TorchOps
from flarecore.gpu.forward import Forward, KvTensors
from flarecore.gpu.fused_sampler import TritonSampler
from flarecore.gpu.pass_rows import make_rows
from flarecore.gpu.passages import PassageView
from flarecore.gpu.row_sampling import RowSettings
from flarecore.gpu.run_bucket import RunRequest
from flarecore.gpu.verification import VerificationRunner

PLAIN = RowSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1, stream=0,
                    repetition_penalty=1.0, logit_bias={})
KINDS = {"plain": PLAIN, "filtered": dataclasses.replace(PLAIN, top_k=4),
         "penalised": dataclasses.replace(PLAIN, repetition_penalty=1.2)}
VIEW = PassageView(3, 64, 10, ((90, 0, 20),))


class MadeUpDevice:
    """What a launch asks Triton's driver."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


class MadeUpGraphs:
    """Launches what would be captured, over padding."""

    def capture(self, prepare, work):
        prepare()
        return types.SimpleNamespace(replay=work)


def record_variants() -> list[str]:
    """Names of the kernels that are compiled from now on; none really is."""
    variants: list[str] = []
    run = JITFunction.run

    def launch(self, *args, grid, warmup, **options):
        return run(self, *args, grid=grid, warmup=True, **options)

    def compiled(self, key, signature, device, *args):
        variants.append(self.__name__)
        kernel = self.device_caches[device][0][key] = object()
        return kernel

    triton.runtime.driver.set_active(MadeUpDevice())
    JITFunction.run, JITFunction._do_compile = launch, compiled
    load_kernels().checks._check_device = lambda *args: None
    return variants


def passes(forward: Forward, runner: DecodeRunner):
    """(what it is, a first one, others that must find its kernels)."""
    def run(settings, num_rows, position=300, view=None):
        blocks = range(position // 32 + 1)
        runner.launch([RunRequest(5, position, blocks, 2, settings, view=view)] * num_rows)

    def rows(num_rows, begin=0, view=None):
        return make_rows([(begin, [7] * num_rows, range((begin + num_rows) // 32 + 1))], forward,
                         views=[view])

    for name, settings in KINDS.items():
        yield (f"run, {name}", lambda s=settings: run(s, 1),
               [lambda n=n, p=p, s=settings: run(s, n, p)
                for n, p in ((1, 31), (2, 300), (33, 511), (64, 300))])
    captured = VerificationRunner(forward, MadeUpGraphs(), use_graphs=True)
    yield ("verification", lambda: forward.decode(rows(1)),
           [lambda n=n: forward.decode(rows(n, 45)) for n in (1, 2, 5, 16, 17, 64)]
           + [lambda n=n, s=s: captured.launch([(p, [7] * n, range(20)) for p in range(s)])
              for n, s in ((1, 1), (16, 1), (3, 5), (5, 7), (16, 4))])
    yield ("short prefill", lambda: forward.prefill(rows(20)),
           [lambda n=n: forward.prefill(rows(n, 40)) for n in (1, 15, 16, 33, 64)])
    yield ("long prefill", lambda: forward.prefill(rows(65)),
           [lambda n=n: forward.prefill(rows(n, 40)) for n in (96, 128, 300)])
    yield ("run with passages", lambda: run(PLAIN, 1, view=VIEW),
           [lambda n=n: run(PLAIN, n, view=VIEW) for n in (2, 16)])
    yield ("prefill with passages", lambda: forward.prefill(rows(20, 30, VIEW)),
           [lambda n=n: forward.prefill(rows(n, 70, VIEW)) for n in (1, 32)])


def main() -> None:
    variants, found = record_variants(), {}
    shape = dataclasses.replace(SHAPES["SmolLM2-135M"], num_layers=1, vocab_size=1024,
                                layers=SHAPES["SmolLM2-135M"].layers[:1])
    device = torch.device("cpu")
    for quantize in (None, "q8", "q4"):
        weights = random_weights(shape, torch.bfloat16, "cpu", quantize)
        kv = KvTensors(shape, 100, torch.bfloat16, device, TorchOps())
        forward = Forward(shape, weights, kv, row_tile=16, max_decode_rows=64,
                          max_prefill_rows=512)
        flags = torch.zeros(shape.vocab_size, dtype=torch.uint8)
        runner = DecodeRunner(forward, TritonSampler(flags, 64), steps_per_replay=2,
                              steps_per_run=16, use_graphs=False)
        for name, first, others in passes(forward, runner):
            first()
            before = len(variants)
            for other in others:
                other()
            found[f"{name}, {quantize or 'bfloat16'}"] = variants[before:]
    json.dump({"num_variants": len(variants), "later": found}, sys.stdout)


if __name__ == "__main__":
    main()
