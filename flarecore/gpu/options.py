"""Options of an engine on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from flarecore.errors import ConfigError
from flarecore.validation import check_bool, check_choice, check_int, named_options

__all__ = ["GpuOptions"]

_ROW_TILES = (16, 64, 256)
_DEVICE_OPS = ("auto", "cuda", "torch")
_WEIGHTS = ("stored", "dense")


@named_options
@dataclass(frozen=True)
class GpuOptions:
    """How an engine uses a GPU. Results do not depend on `graphs` and the numbers of steps.

    Parameters
    ----------
    graphs : bool
        Decode and verify in captured CUDA graphs; False launches every kernel by itself (the slow
        twin). On CPU tensors there are none in any case.
    steps_per_replay : int
        Decode steps of one graph. The device stops a sequence by itself where a sentence may have
        ended; steps of the replay that are left then are lost.
    steps_per_run : int
        Most decode steps between two synchronisations: what the record of sampled tokens holds.
        Usually the end of a sentence comes first. 1 takes one step at a time (the slow twin).
    row_tile : {16, 64, 256}
        Rows of every vendor product that decode, verification and scoring rows go through. More
        rows take several products: 16 is fastest for one sequence, 64 for a full batch. Matrices of
        8 and 4 bits always take 16.
    max_batch_rows : int
        Most sequences of one decode step, and most rows of one verification pass; a power of two.
    device_ops : {"auto", "cuda", "torch"}
        Who copies KV blocks, gathers rows and marks seen tokens: ``flarecore._cuda`` (``"auto"``
        where it can be used), or torch (the slow twin, with the same result).
    weights : {"stored", "dense"}
        ``"stored"`` keeps what the file (or `quantize`) has in 8 or 4 bits as it is: less memory,
        and a decode step reads half of bfloat16's bytes, or a third. What is stored in floats gets
        the compute type. ``"dense"`` dequantises everything to the compute type: the slow twin for
        a few sequences. It may be the faster one for batches of more than about 32, which are bound
        by arithmetic rather than bytes, and for long prefills, which need no dequantising then.
    """

    graphs: bool = True
    steps_per_replay: int = 4
    steps_per_run: int = 128
    row_tile: int = 16
    max_batch_rows: int = 64
    device_ops: str = "auto"
    weights: str = "stored"

    def __post_init__(self) -> None:
        check_bool("graphs", self.graphs)
        check_int("steps_per_replay", self.steps_per_replay, 1, 256)
        check_int("steps_per_run", self.steps_per_run, 1, 4096)
        check_choice("device_ops", self.device_ops, _DEVICE_OPS)
        check_choice("weights", self.weights, _WEIGHTS)
        if check_int("row_tile", self.row_tile, 16, 256) not in _ROW_TILES:
            raise ConfigError(f"row_tile must be one of {_ROW_TILES}, got {self.row_tile}")
        rows = check_int("max_batch_rows", self.max_batch_rows, 16, 1024)
        if rows & (rows - 1):
            raise ConfigError(f"max_batch_rows must be a power of two, got {rows}")
