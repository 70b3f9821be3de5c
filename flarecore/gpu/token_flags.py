"""The sampler's table over the vocabulary: at which tokens a run of steps must stop for the host.

A sentence, a stop string or a decode ends where the native code says so. What a device can do is to
stop early enough that hardly anything is sampled beyond that: the table marks every token that may
be the one, computed from the tokens' bytes, and the host decides over what was recorded.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from flarecore import _C
from flarecore.gpu.device import load_kernels
from flarecore.gpu.mirrored import Mirrored

__all__ = ["STOP_BITS", "TokenFlagTable", "flags_of_tokens", "may_complete"]

STOP_BITS = (8, 16)  # of TokenFlag.TABLE: tokens that may complete one of a set of stop strings
_WORD_CHAR, _CONTINUE = 1 << 0, 1 << 21  # of csrc/text/char_class.h
_ASCII_SETTLES = re.compile(rb"[0-9A-Za-z,;:]")
_CACHED_STOPS = 8


@functools.cache
def _marks() -> tuple[re.Pattern[bytes], frozenset[bytes]]:
    """A terminator or newline, whole; and what may be left of one that a token before began."""
    marks = [char.encode() for char in _C.sentence_marks()]
    ends = {mark[i:] for mark in marks for i in range(1, len(mark))}
    return re.compile(b"|".join(map(re.escape, marks))), frozenset(ends)


def _may_end(text: bytes) -> bool:
    """Whether the token's bytes complete a character at which a sentence may end."""
    whole, ends = _marks()
    if whole.search(text) is not None:
        return True
    # The last bytes of a character that the tokens before began.
    num_ends = 0
    while num_ends < min(3, len(text)) and text[num_ends] & 0xC0 == 0x80:
        num_ends += 1
    return any(text[:size] in ends for size in range(1, num_ends + 1))


def _settles(text: bytes) -> bool:
    """Whether what follows a terminator can hardly be undecided behind the token."""
    if text.isascii():
        return _ASCII_SETTLES.search(text) is not None
    try:
        chars = text.decode()
    except UnicodeDecodeError:
        # The end of a character that began before reads as U+FFFD, one that goes on behind as
        # nothing.
        chars = codecs.getincrementaldecoder("utf-8")("replace").decode(text)
    return any(char == "\ufffd" or _C.char_flags(ord(char)) & (_WORD_CHAR | _CONTINUE)
               for char in chars)


def flags_of_tokens(token_bytes: Sequence[bytes], eos: Iterable[int]) -> npt.NDArray[np.uint8]:
    """(vocab,) TokenFlag bits that depend on the vocabulary only: EOS, MAY_END, SETTLES.

    MAY_END misses no token at which the native boundary detector opens an end; SETTLES is a guess
    at when it decides, which costs at most a look too many or a token too many.
    """
    flag = load_kernels().sampling.TokenFlag
    may_end, settles = int(flag.MAY_END), int(flag.SETTLES)

    def flags_of(text: bytes) -> int:
        if text.lstrip(b" ").isalnum():  # ASCII only: most of a vocabulary
            return settles
        return may_end * _may_end(text) | settles * _settles(text)

    table = np.fromiter(map(flags_of, token_bytes), np.uint8, len(token_bytes))
    table[list(eos)] |= int(flag.EOS)
    return table


def may_complete(token_bytes: Sequence[bytes], stop: Sequence[str]) -> npt.NDArray[np.bool_]:
    """(vocab,) whether a stop string may end within the token: it holds one, or the end of one."""
    stops = [text.encode() for text in stop]
    ends = tuple({text[i:] for text in stops for i in range(1, len(text))})
    whole = re.compile(b"|".join(map(re.escape, stops)))
    return np.fromiter(
        (text.startswith(ends) or whole.search(text) is not None for text in token_bytes), np.bool_,
        len(token_bytes))


class TokenFlagTable:
    """The table on the device, with room for a few sets of stop strings at a time.

    Attributes
    ----------
    device
        (vocab,) uint8; its address stays, captured graphs refer to it.
    """

    def __init__(self, token_bytes: Sequence[bytes], eos: Iterable[int],
                 device: torch.device) -> None:
        self._token_bytes = token_bytes
        self._table = Mirrored({"flags": (np.uint8, (len(token_bytes),))}, device)
        self._table.host["flags"][:] = flags_of_tokens(token_bytes, eos)
        self._table.upload()
        self.device = self._table.device["flags"]
        self._slots: dict[tuple[str, ...], int] = {}  # least recently used first
        self._may_complete = functools.lru_cache(_CACHED_STOPS)(
            functools.partial(may_complete, token_bytes))

    def stop_bits(self, stops: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], int]:
        """The bits that mark what may complete each set of stop strings, in stream order.

        Sets beyond ``len(STOP_BITS)`` get none. The bits hold until the next call, which must wait
        until no launch that uses them is under way.
        """
        wanted = [stop for stop in dict.fromkeys(stops) if stop][: len(STOP_BITS)]
        bits = {stop: self._slots.pop(stop) for stop in wanted if stop in self._slots}
        missing = [stop for stop in wanted if stop not in bits]
        for stop in missing:
            free = [bit for bit in STOP_BITS if bit not in {*self._slots.values(), *bits.values()}]
            bits[stop] = free[0] if free else self._slots.pop(next(iter(self._slots)))
            flags = self._table.host["flags"]
            flags &= np.uint8(0xFF ^ bits[stop])
            flags |= np.where(self._may_complete(stop), np.uint8(bits[stop]), np.uint8(0))
        if missing:
            self._table.upload()
        self._slots |= bits
        return bits
