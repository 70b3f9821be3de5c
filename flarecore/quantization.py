"""What quantising a model's weights at load changed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from flarecore.errors import ConfigError

__all__ = ["QUANTIZE", "KindError", "Quantization", "check_quantize"]

# Values of `quantize` where a model or an encoder is loaded.
QUANTIZE = ("q4", "q8")

def check_quantize(value: object) -> None:
    """Raises ConfigError unless it is None or one of ``QUANTIZE``."""
    if value is not None and value not in QUANTIZE:
        raise ConfigError(f"quantize must be None or one of {', '.join(QUANTIZE)}, got {value!r}")


# (name, type in the file, "q4", "q8" or "none", values, squares of errors, squares of values,
# largest error), as the native model has it of every matrix.
_Tensor = tuple[str, str, str, int, float, float, float]


@dataclass(frozen=True)
class KindError:
    """The matrices of one kind, over all layers.

    Attributes
    ----------
    kind : str
        As in a GGUF file: ``"token_embd"``, ``"attn_q"``, ``"ffn_down"``, …
    source : str
        Type in the file: ``"BF16"``.
    format : {"q4", "q8", "none"}
        What it was quantised to; ``"none"``: kept.
    num_values : int
        Values that were quantised.
    relative_rms_error : float
        Root of the mean squared error, relative to that of the values.
    max_abs_error : float
        Largest difference of a value.
    """

    kind: str
    source: str
    format: str
    num_values: int
    relative_rms_error: float
    max_abs_error: float


@dataclass(frozen=True)
class Quantization:
    """Errors of a whole model.

    Attributes
    ----------
    quantize : {"q4", "q8"}
        What was asked for.
    kinds : tuple of KindError
        In the order of the model; one kind is several entries if its matrices differ in type.
    relative_rms_error : float
        Over all values that were quantised.
    max_abs_error : float
        Largest difference of a value.
    worst_tensor : str
        The matrix with the largest relative error.
    worst_relative_rms_error : float
        Its error.
    """

    quantize: str
    kinds: tuple[KindError, ...]
    relative_rms_error: float
    max_abs_error: float
    worst_tensor: str
    worst_relative_rms_error: float

    @classmethod
    def from_tensors(cls, quantize: str, tensors: Iterable[_Tensor]) -> Quantization:
        """Sums up what the native model measured of each matrix."""
        groups: dict[tuple[str, str, str], list[_Tensor]] = {}
        for tensor in tensors:
            groups.setdefault((_kind(tensor[0]), tensor[1], tensor[2]), []).append(tensor)
        changed = [t for (_, _, kind), group in groups.items() if kind != "none" for t in group]
        worst = max(changed, key=lambda tensor: _relative([tensor]))
        return cls(
            quantize,
            tuple(KindError(*key, sum(t[3] for t in group), _relative(group),
                            max(t[6] for t in group)) for key, group in groups.items()),
            _relative(changed),
            max(t[6] for t in changed),
            worst[0],
            _relative([worst]),
        )

    def summary(self) -> str:
        """One line."""
        return (
            f"{self.quantize}: relative RMS error {self.relative_rms_error:.2%} of the weights, "
            f"largest error of a weight {self.max_abs_error:.3g}, worst matrix "
            f"{self.worst_tensor} {self.worst_relative_rms_error:.2%}"
        )

    def lines(self) -> list[str]:
        """The summary and a line for each kind."""
        rows = [self.summary()]
        for k in self.kinds:
            what = f"{k.source} -> {k.format}" if k.format != "none" else f"{k.source}, kept"
            error = "" if k.format == "none" else (
                f"  relative RMS error {k.relative_rms_error:.2%}, largest {k.max_abs_error:.3g}")
            rows.append(f"  {k.kind:<12} {what:<12}{error}".rstrip())
        return rows


def _kind(name: str) -> str:
    """``"blk.3.attn_q.weight"`` -> ``"attn_q"``."""
    parts = name.split(".")
    return parts[2] if parts[0] == "blk" and len(parts) > 3 else parts[0]


def _relative(tensors: list[_Tensor]) -> float:
    squares = math.fsum(t[5] for t in tensors)
    return math.sqrt(math.fsum(t[4] for t in tensors) / squares) if squares > 0 else 0.0
