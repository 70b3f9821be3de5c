"""The answer's bytes as text, released as soon as it can no longer change."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["AnswerText", "overlap", "token_pieces"]


class AnswerText:
    """Turns the bytes of accepted sentences into text.

    Two things are held back until the bytes after them are known: an incomplete UTF-8 character,
    and an end that may be the start of a stop string.

    Parameters
    ----------
    stop : sequence of str
        Stop strings; they may run over sentence boundaries.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stops = [s.encode() for s in stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = b""
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """All text released so far."""
        return "".join(self._parts)

    def feed(self, data: bytes) -> tuple[str, int | None]:
        """Adds bytes.

        Returns
        -------
        text : str
            What the answer's text grows by.
        stop_at : int or None
            Where in `data` a stop string begins (0 if before it); the text ends there and nothing
            more is released.
        """
        held = len(self._held)
        data = self._held + data
        found = [at for at in (data.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self._held = b""
            text = self._decoder.decode(data[:min(found)], True)
            self._parts.append(text)
            return text, max(min(found) - held, 0)
        num_held = max((overlap(data, stop) for stop in self._stops), default=0)
        free = len(data) - num_held
        self._held = data[free:]
        text = self._decoder.decode(data[:free])
        self._parts.append(text)
        return text, None

    def flush(self) -> str:
        """Releases what is held back; an incomplete character becomes U+FFFD."""
        text = self._decoder.decode(self._held, True)
        self._held = b""
        self._parts.append(text)
        return text


def overlap(data: bytes, stop: bytes) -> int:
    """Length of the longest end of `data` that `stop` begins with."""
    longest = min(len(data), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if data.endswith(stop[:n])), 0)


def token_pieces(token_bytes: Sequence[bytes]) -> tuple[str, ...]:
    """(n,) text of each token; a character split over tokens stands whole at its last one."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    last = len(token_bytes) - 1
    return tuple(decoder.decode(data, n == last) for n, data in enumerate(token_bytes))
