"""What a chat template may cost: work, memory and time of one rendering.

jinja2's sandbox bounds ``range()`` and nothing else. A template comes with a model file and is as
untrusted as the file, so the environment in :mod:`flarecore.tokenizer.template_sandbox` calls these
checks wherever a template can loop, build something or make a string longer than what it was made
of.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import SecurityError

__all__ = [
    "check_filter", "check_method", "check_operator", "check_text", "made", "rendering_bounds",
    "spend", "step",
]  # fmt: skip

_STEP = 20  # cost of one turn of a loop or macro
_BASE_WORK = 4_000_000
_WORK_PER_CHARACTER = 100
_BASE_TEXT = 1 << 20
_TEXT_PER_CHARACTER = 16
_MAX_SECONDS = 5.0  # what the other bounds let through
_MAX_INTEGER_BITS = 4096
_MAX_WIDTH = 10_000  # of padding and indentation, characters
# Formats whose width is a long number or comes from an argument.
_WIDE_PERCENT = re.compile(r"%(\([^)]*\))?[-+ #0-9.]*(\*|[0-9]{5,})")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(\{|[0-9]{5,})")
_BLOCKED_METHODS = frozenset(("expandtabs", "format_map", "maketrans", "translate"))


@dataclass
class _Bounds:
    work: int  # left: characters and items handled
    max_text: int  # characters of any one string or structure
    deadline: float  # time.monotonic()


_bounds: ContextVar[_Bounds | None] = ContextVar("flarecore_template_bounds", default=None)


@contextmanager
def rendering_bounds(num_characters: int) -> Iterator[None]:
    """Bounds for one rendering of messages with so many characters."""
    bounds = _Bounds(
        _BASE_WORK + _WORK_PER_CHARACTER * num_characters,
        _BASE_TEXT + _TEXT_PER_CHARACTER * num_characters,
        time.monotonic() + _MAX_SECONDS,
    )
    token = _bounds.set(bounds)
    try:
        yield
    finally:
        _bounds.reset(token)


def spend(amount: int) -> None:
    bounds = _bounds.get()
    if bounds is not None:
        bounds.work -= amount
        if bounds.work < 0:
            raise SecurityError("it does too much work; a loop without a sensible end?")


def step() -> bool:
    """One turn of a loop or macro. True, so that it can stand in a condition."""
    spend(_STEP)
    bounds = _bounds.get()
    if bounds is not None and time.monotonic() > bounds.deadline:
        raise SecurityError(f"it ran longer than {_MAX_SECONDS:g} s")
    return True


def check_text(num_characters: int) -> None:
    bounds = _bounds.get()
    if bounds is not None and num_characters > bounds.max_text:
        raise SecurityError(
            f"it makes a text of {num_characters} characters; the limit is {bounds.max_text}"
        )


def made(value: Any) -> Any:
    """A value that an expression has made: charged for its size, refused if it is too large.

    Lists and mappings count with all that is in them, as often as it is in them: as text, or in a
    comparison, ``[x, x]`` is twice ``x``.
    """
    if isinstance(value, str):
        check_text(len(value))
        spend(len(value))
    elif isinstance(value, (list, tuple, dict)):
        check_text(_text_size(value))
    elif isinstance(value, range):
        spend(len(value))
    return value


def _text_size(value: Any) -> int:
    """Characters in a structure, about; every item costs two units of work."""
    total, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        spend(2)
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, dict):
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple)):
            waiting.extend(item)
    return total


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Before ``left operator right``."""
    if operator == "%" and isinstance(left, str) and (wide := _WIDE_PERCENT.search(left)):
        raise SecurityError(f"the width {wide.group(2)!r} in a format")
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))
    if operator == "+" and isinstance(left, (str, list, tuple)) and hasattr(right, "__len__"):
        check_text(len(left) + len(right))
    if operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(value, (str, list, tuple)):
                check_text(len(value) * max(times, 0))
            elif isinstance(times, int) and isinstance(value, int):
                _check_bits(value.bit_length() + times.bit_length())


def _check_bits(bits: int) -> None:
    if bits > _MAX_INTEGER_BITS:
        raise SecurityError(f"an integer of {bits} bits; the limit is {_MAX_INTEGER_BITS}")


def check_method(text: str, method: str, args: tuple[Any, ...]) -> None:
    """Before ``text.method(*args)``."""
    if method in _BLOCKED_METHODS:
        raise SecurityError(f"chat templates may not use str.{method}")
    if method == "replace" and len(args) >= 2:
        _check_replace(text, *args[:2])
    elif method == "join" and args and isinstance(args[0], (list, tuple)):
        _check_join(text, args[0])
    elif method == "format" and (wide := _WIDE_BRACES.search(text)):
        raise SecurityError(f"the width in the format {wide.group()!r}")
    elif method in ("center", "ljust", "rjust", "zfill") and args:
        _check_width(args[0])


def check_filter(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Before ``args[0] | name(*args[1:], **options)``."""
    if name == "replace" and len(args) >= 3:
        _check_replace(*args[:3])
    elif name == "join":
        _check_join(str(args[1] if len(args) > 1 else options.get("d", "")), args[0])
    elif name == "format" and (wide := _WIDE_PERCENT.search(str(args[0]))):
        raise SecurityError(f"the width {wide.group(2)!r} in a format")
    elif name in ("batch", "indent", "round", "slice", "tojson"):
        for value in (*args[1:], *options.values()):
            _check_width(value)


def _check_replace(text: Any, old: Any, new: Any) -> None:
    check_text(len(str(text)) + str(text).count(str(old)) * len(str(new)))


def _check_join(glue: str, parts: Iterable[Any]) -> None:
    sizes = [len(part) if isinstance(part, str) else 0 for part in parts]
    check_text(len(glue) * len(sizes) + sum(sizes))


def _check_width(value: Any) -> None:
    width = len(value) if isinstance(value, str) else value
    if isinstance(width, int) and abs(width) > _MAX_WIDTH:
        raise SecurityError(f"a width of {width}; the limit is {_MAX_WIDTH}")
