"""How the next token is chosen."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flarecore.errors import ConfigError
from flarecore.validation import check_int, check_number, named_options, unknown_name

__all__ = ["SamplingParams"]

_MAX_INT32 = 2**31 - 1
_MAX_UINT32 = 2**32 - 1
_MAX_UINT64 = 2**64 - 1


@named_options
@dataclass(frozen=True)
class SamplingParams:
    """Sampling options. They never change a confidence, only which token is chosen.

    Numbers that are no integers are taken as 32-bit floats.

    Random numbers are counter-based and keyed by (seed, stream, position, pass), so the same
    parameters give the same tokens whatever else the engine is doing.

    Parameters
    ----------
    temperature : float
        Divides the logits; 0 (default) takes the most probable token.
    top_k : int
        Keep the k most probable tokens; 0 keeps all.
    top_p : float
        Keep the smallest set of most probable tokens with at least this mass, in (0, 1].
    min_p : float
        Keep tokens with at least this share of the largest probability, in [0, 1].
    seed : int
        Unsigned 64-bit.
    stream : int
        Unsigned 32-bit; give answers that share a seed different streams.
    repetition_penalty : float
        Above 1 makes tokens of the sequence less likely; 1 is off.
    logit_bias : Mapping of int to float
        Added to the raw logit of a token id.

    Raises
    ------
    ConfigError
        A value is of the wrong type or out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stream: int = 0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("temperature", _check_float32("temperature", self.temperature, 0.0))
        put("top_k", check_int("top_k", self.top_k, 0, _MAX_INT32))
        put("top_p", _check_float32("top_p", self.top_p, 0.0, 1.0, open_low=True))
        put("min_p", check_number("min_p", self.min_p, 0.0, 1.0))
        put("seed", check_int("seed", self.seed, 0, _MAX_UINT64))
        put("stream", check_int("stream", self.stream, 0, _MAX_UINT32))
        put("repetition_penalty",
            _check_float32("repetition_penalty", self.repetition_penalty, 0.0, open_low=True))
        if not isinstance(self.logit_bias, Mapping):
            raise ConfigError(
                f"logit_bias must map token ids to numbers, got {type(self.logit_bias).__name__}")
        put("logit_bias", {
            check_int("logit_bias: token id", token_id, 0, _MAX_INT32):
                _check_float32(f"logit_bias[{token_id}]", bias)
            for token_id, bias in self.logit_bias.items()})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SamplingParams:
        """Sampling options from a dictionary; token ids in `logit_bias` may be strings (JSON).

        Raises
        ------
        ConfigError
            A name is unknown or a value is wrong.
        """
        known = list(cls.__dataclass_fields__)
        if unknown := set(data) - set(known):
            raise unknown_name("SamplingParams", unknown, known)
        values = dict(data)
        bias = values.get("logit_bias")
        if isinstance(bias, Mapping):
            values["logit_bias"] = {
                int(k) if isinstance(k, str) and k.isdecimal() else k: v for k, v in bias.items()}
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values; :meth:`from_dict` gives equal options back."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["logit_bias"] = {str(k): v for k, v in self.logit_bias.items()}
        return values


def _check_float32(
    where: str, value: object, low: float = -math.inf, high: float = math.inf, *,
    open_low: bool = False
) -> float:
    """`value` as ``check_number`` gives it, if that also holds for the float32 nearest to it.

    A number too far below 0 for a float32 is well: as a bias it rules a token out.
    """
    number = check_number(where, value, low, high, open_low=open_low)
    try:
        (nearest,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:
        nearest = math.copysign(math.inf, number)
    if nearest == math.inf or (open_low and nearest <= low):
        size = "large" if nearest == math.inf else "small"
        raise ConfigError(f"{where} is too {size} for a 32-bit float, got {number!r}")
    return number
