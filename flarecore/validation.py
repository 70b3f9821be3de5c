"""Checks of arguments and options, with messages that say what, the limit, what was got."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import numbers
import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from flarecore.errors import ConfigError

__all__ = [
    "check_bool",
    "check_choice",
    "check_int",
    "check_number",
    "check_optional_int",
    "check_path",
    "check_strings",
    "check_unicode",
    "named_options",
    "unknown_name",
]

T = TypeVar("T")


def check_bool(where: str, value: object) -> bool:
    """`value` if it is a bool.

    Raises
    ------
    ConfigError
        It is something else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{where} must be True or False, got {value!r}")
    return value


def check_int(where: str, value: object, low: int, high: int | None = None) -> int:
    """`value` as int if it is an integer in ``[low, high]``.

    Raises
    ------
    ConfigError
        It is no integer (a bool is none) or out of range.
    """
    limit = f">= {low}" if high is None else f"in [{low}, {high}]"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ConfigError(f"{where} must be an integer {limit}, got {value!r}")
    number = int(value)
    if number < low or (high is not None and number > high):
        raise ConfigError(f"{where} must be an integer {limit}, got {_shown(number)}")
    return number


def check_optional_int(where: str, value: object, low: int) -> int | None:
    """None, or `value` as int if it is an integer ``>= low``.

    Raises
    ------
    ConfigError
        It is neither.
    """
    return None if value is None else check_int(f"{where} (or None: no limit)", value, low)


def check_number(
    where: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
) -> float:
    """`value` as float if it is a finite number in ``[low, high]`` (``(low, high]`` if open).

    Raises
    ------
    ConfigError
        It is no number, not finite or out of range.
    """
    bound = "(" if open_low else "["
    end = ")" if high == math.inf else "]"
    limit = f"a number in {bound}{low:g}, {high:g}{end}" if (low, high) != (-math.inf, math.inf) \
        else "a finite number"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(f"{where} must be {limit}, got {value!r}")
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        number = math.inf
    if not math.isfinite(number) or number < low or number > high or (open_low and number == low):
        raise ConfigError(f"{where} must be {limit}, got {_shown(value)}")
    return number


def _shown(number: object) -> str:
    """`number` in a message; Python does not write out integers of thousands of digits."""
    if isinstance(number, int) and number.bit_length() > 1024:
        return f"an integer of {number.bit_length()} bits"
    return repr(number)


def check_choice(where: str, value: object, choices: Iterable[str]) -> str:
    """`value` if it is one of the strings.

    Raises
    ------
    ConfigError
        It is not; the message lists the choices.
    """
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        hint = suggestion(value, known)
        raise ConfigError(
            f"{where} must be one of {', '.join(map(repr, known))}, got {value!r}{hint}")
    return value


def check_strings(where: str, value: object) -> tuple[str, ...]:
    """`value` as a tuple of non-empty strings that can be encoded.

    Raises
    ------
    ConfigError
        It is one string (which would be taken apart into characters) or holds something else.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ConfigError(
            f"{where} must be a list of strings, got {value!r}; wrap a single string in a list")
    for position, item in enumerate(value):
        if not isinstance(item, str) or not item:
            raise ConfigError(f"{where}[{position}] must be a non-empty string, got {item!r}")
        check_unicode(f"{where}[{position}]", item)
    return tuple(value)


def check_path(where: str, value: object) -> str:
    """`value` as a string if it is one, or a path of one.

    Raises
    ------
    ConfigError
        It is something else.
    """
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(path, str):
        raise ConfigError(f"{where} must be a str or a pathlib.Path, got {value!r:.80}")
    return path


def check_unicode(where: str, text: str) -> None:
    """Raises ConfigError if `text` holds half a surrogate pair, which no token has."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{where} is not valid Unicode text (character {error.start} is half of a surrogate "
            "pair); decode the input with errors='replace'") from None


def suggestion(name: object, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the closest known name, else an empty string."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_name(where: str, names: Iterable[str], known: Iterable[str]) -> ConfigError:
    """The error for option names that `where` does not have."""
    wrong, right = sorted(map(str, names)), sorted(known)
    return ConfigError(
        f"{where}: unknown option {', '.join(map(repr, wrong))}{suggestion(wrong[0], right)} "
        f"(options: {', '.join(right)})")


def named_options(cls: type[T]) -> type[T]:
    """Makes a dataclass refuse unknown keyword arguments with a :class:`ConfigError`.

    Python's own TypeError does not say which name was meant.
    """
    init = cls.__init__
    names = [f.name for f in dataclasses.fields(cls) if f.init]  # type: ignore[arg-type]

    @functools.wraps(init)
    def checked(self: T, *args: Any, **kwargs: Any) -> None:
        if unknown := kwargs.keys() - set(names):
            raise unknown_name(cls.__name__, unknown, names)
        init(self, *args, **kwargs)

    cls.__init__ = checked  # type: ignore[assignment,method-assign]
    return cls
