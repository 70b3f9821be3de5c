"""Traces from files: one trace, JSON lines of several, or other output that carries traces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from flarecore.errors import ConfigError
from flarecore.trace import TRACE_KEY, Trace

__all__ = ["read_traces"]

_SPACE = re.compile(r"[ \t\r\n]*")


def read_traces(data: bytes, where: str) -> list[Trace]:
    """All traces of a text of JSON objects, one after the other.

    An object is a trace, or carries one as its field ``trace`` (with further fields beside it).
    Events, which ``--json`` prints, are passed over.

    Parameters
    ----------
    data : bytes
        UTF-8, with or without a byte order mark.
    where : str
        Name of the source, for messages.

    Returns
    -------
    list of Trace
        At least one, in the order of the text.

    Raises
    ------
    ConfigError
        The text is no UTF-8 or no JSON, holds something else, a damaged trace, or no trace.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where}: not UTF-8 at byte {error.start}; a trace is JSON text, as written by "
            "Trace.to_json() or --trace") from None
    traces: list[Trace] = []
    num_events = 0
    for line, value in _values(text, where):
        found = _carried(value)
        if found is not None:
            try:
                traces.append(Trace.from_dict(found))
            except (ConfigError, RecursionError) as error:
                raise ConfigError(f"{where}, line {line}: {_message(error)}") from None
        elif isinstance(value, dict) and "event" in value:
            num_events += 1
        else:
            raise ConfigError(
                f"{where}, line {line}: neither a trace nor an event, got {_kind(value)}")
    if not traces:
        raise ConfigError(
            f"{where}: holds {num_events} events, but no trace; 'flarecore generate --trace FILE' "
            "writes one, beside --json as well" if num_events else f"{where}: is empty")
    return traces


def _values(text: str, where: str) -> Iterator[tuple[int, Any]]:
    """(line, value) of the JSON values in `text`, which white space separates."""
    decoder = json.JSONDecoder()
    at, line = _skip(text, 0), 1
    line += text.count("\n", 0, at)
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            place = f"line {error.lineno}, column {error.colno}"
            raise ConfigError(f"{where}, {place}: not valid JSON: {error.msg}; if the file was "
                              "cut off, write it again") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}, line {line}: {_message(error)}") from None
        yield line, value
        next_at = _skip(text, end)
        line += text.count("\n", at, next_at)
        at = next_at


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _carried(value: Any) -> dict[str, Any] | None:
    """The trace that a value is or carries, as a dictionary."""
    if not isinstance(value, dict):
        return None
    inner = value.get("trace")
    if TRACE_KEY not in value and isinstance(inner, dict) and TRACE_KEY in inner:
        return inner
    return value if TRACE_KEY in value else None


def _message(error: Exception) -> str:
    return "nested too deeply to be a trace" if isinstance(error, RecursionError) else str(error)


def _kind(value: Any) -> str:
    """What a value is, in words."""
    if not isinstance(value, dict):
        return f"a JSON {type(value).__name__}"
    names = ", ".join(repr(name) for name in list(value)[:4])
    return f"an object with the fields {names}" if names else "an empty object"
