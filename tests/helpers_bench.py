"""A tiny model under the runner of the benchmarks."""

from helpers import TinyLlama, tiny_llama_path

from flarecore.bench.runner import FlareRunner
from flarecore.model import Model

Q4 = TinyLlama(tensor_type="Q4_1", context_length=1024)


def make_runner(spec=Q4, compute="int8", cls=FlareRunner):
    return cls(Model.load(str(tiny_llama_path(spec)), threads=1), compute)
