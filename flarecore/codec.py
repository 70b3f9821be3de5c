"""Frozen dataclasses to JSON values and back, strictly, by their type hints."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from flarecore.errors import ConfigError
from flarecore.validation import suggestion

__all__ = ["check_object", "dumps", "from_jsonable", "json_value", "loads_object", "to_jsonable"]

T = TypeVar("T")

_SURROGATE = re.compile("[\ud800-\udfff]")


def to_jsonable(value: Any) -> Any:
    """Dataclasses become objects, tuples lists, sets sorted lists, everything else stays."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return [to_jsonable(item) for item in sorted(value, key=repr)]
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    return value


def json_value(value: Any) -> Any:
    """`value` as plain JSON values; what JSON does not know becomes its ``str``.

    Raises
    ------
    ConfigError
        It holds itself, is nested too deeply, or an integer has thousands of digits.
    """
    try:
        return json.loads(json.dumps(to_jsonable(value), default=str), parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"cannot be written as JSON: {error}") from None


def dumps(data: Mapping[str, Any], *, indent: int | None = None) -> str:
    """One JSON text that UTF-8 can hold; numbers that are not finite are refused.

    Raises
    ------
    ConfigError
        Something in `data` is no JSON value.
    """
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=indent)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot be written as JSON: {error}") from None
    # A retriever's text can hold half a surrogate pair: UTF-8 cannot, an escape can.
    return _SURROGATE.sub(lambda half: f"\\u{ord(half.group()):04x}", text)


def loads_object(where: str, text: str | bytes) -> dict[str, Any]:
    """The object in a JSON text.

    Raises
    ------
    ConfigError
        It is no JSON, or no object.
    """
    try:
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{where} must be a JSON object, got {type(data).__name__}")
    return data


def check_object(where: str, data: object) -> None:
    """Raises ConfigError for what is no mapping."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be an object, got {type(data).__name__}")


def from_jsonable(cls: type[T], data: Any, where: str) -> T:
    """The dataclass that :func:`to_jsonable` wrote.

    Raises
    ------
    ConfigError
        A field is missing, unknown or of the wrong type; the message gives the path to it.
    """
    check_object(where, data)
    hints: dict[str, Any] = _hints(cls)  # type: ignore[arg-type]
    if unknown := sorted(set(data) - set(hints)):
        raise ConfigError(f"{where}: unknown field {unknown[0]!r}{suggestion(unknown[0], hints)}")
    if missing := sorted(set(hints) - set(data)):
        raise ConfigError(f"{where}: field {missing[0]!r} is missing")
    return cls(**{name: _read(hints[name], item, f"{where}.{name}")
                  for name, item in data.items()})


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _read(kind: Any, value: Any, where: str) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        (inner,) = [k for k in get_args(kind) if k is not type(None)]
        return None if value is None else _read(inner, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where} must be a list, got {type(value).__name__}")
        item_kind = get_args(kind)[0]
        return tuple(_read(item_kind, item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise ConfigError(f"{where} must be an object, got {type(value).__name__}")
        return value
    if dataclasses.is_dataclass(kind):
        return from_jsonable(kind, value, where)  # type: ignore[arg-type]
    return _read_scalar(kind, value, where)


def _read_scalar(kind: Any, value: Any, where: str) -> Any:
    # JSON has one kind of number, so 1 is a fine float; True is never a number.
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
        raise ConfigError(
            f"{where} must be of type {kind.__name__}, got {type(value).__name__}")
    if kind is not float:
        return value
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(f"{where} must be a finite number, got {value!r:.40}")
    return number
