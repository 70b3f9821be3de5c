"""Options of an engine on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from flarecore.errors import ConfigError
from flarecore.validation import check_bool, check_int, named_options

__all__ = ["GpuOptions"]

_ROW_TILES = (16, 64, 256)
_WEIGHTS = ("stored", "dense")


@named_options
@dataclass(frozen=True)
class GpuOptions:
    """How an engine uses a GPU. Results do not depend on `graphs` and `steps_per_replay`.

    Parameters
    ----------
    graphs : bool
        Decode in captured CUDA graphs; False launches every kernel by itself (the slow twin). On
        CPU tensors there are none in any case.
    steps_per_replay : int
        Most decode steps between two looks of the host. What is sampled beyond the end of a
        sentence begins the next decode with the same sampling.
    row_tile : {16, 64, 256}
        Rows of every vendor product that decode, verification and scoring rows go through. More
        rows take several products: 16 is fastest for one sequence, 64 for a full batch. Matrices of
        8 and 4 bits always take 16.
    max_batch_rows : int
        Most sequences of one decode step, and most rows of one verification pass; a power of two.
    weights : {"stored", "dense"}
        ``"stored"`` keeps what the file (or `quantize`) has in 8 or 4 bits as it is: less memory,
        and a decode step reads half of bfloat16's bytes, or a third. What is stored in floats gets
        the compute type. ``"dense"`` dequantises everything to the compute type: the slow twin for
        a few sequences. It may be the faster one for batches of more than about 32, which are bound
        by arithmetic rather than bytes, and for long prefills, which need no dequantising then.
    """

    graphs: bool = True
    steps_per_replay: int = 8
    row_tile: int = 16
    max_batch_rows: int = 64
    weights: str = "stored"

    def __post_init__(self) -> None:
        check_bool("graphs", self.graphs)
        check_int("steps_per_replay", self.steps_per_replay, 2, 256)
        if check_int("row_tile", self.row_tile, 16, 256) not in _ROW_TILES:
            raise ConfigError(f"row_tile must be one of {_ROW_TILES}, got {self.row_tile}")
        rows = check_int("max_batch_rows", self.max_batch_rows, 16, 1024)
        if rows & (rows - 1):
            raise ConfigError(f"max_batch_rows must be a power of two, got {rows}")
        if self.weights not in _WEIGHTS:
            raise ConfigError(f"weights must be one of {', '.join(_WEIGHTS)}, got {self.weights!r}")
