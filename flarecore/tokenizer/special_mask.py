"""Keeps the text of special tokens inside messages from becoming those tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any

from flarecore.errors import ConfigError

__all__ = ["SpecialMask", "SpecialTexts", "map_strings", "strings_of"]

# Private-use planes 15 and 16: no meaning, no case, not white space.
_STAND_INS = (*range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))


def strings_of(data: Any) -> Iterator[str]:
    """Every string in plain data, keys included."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from strings_of(value)
    elif isinstance(data, list):
        for value in data:
            yield from strings_of(value)


def map_strings(data: Any, value: Callable[[str], str], key: Callable[[str], str]) -> Any:
    """Plain data with every string replaced."""
    if isinstance(data, str):
        return value(data)
    if isinstance(data, dict):
        return {key(k): map_strings(v, value, key) for k, v in data.items()}
    if isinstance(data, list):
        return [map_strings(v, value, key) for v in data]
    return data


class SpecialTexts:
    """Texts of a tokeniser's special tokens, none empty, and what to look for them with.

    Made once: some vocabularies have thousands, and a chat is encoded for every answer.
    """

    def __init__(self, texts: Collection[str]) -> None:
        self._texts = tuple(texts)
        self.firsts = sorted({text[0] for text in texts})
        self.longest = max(map(len, texts), default=0)

    @cached_property
    def starts(self) -> re.Pattern[str] | None:
        """Matches, without length, where one begins."""
        texts = "|".join(re.escape(t) for t in sorted(self._texts, key=len, reverse=True))
        return re.compile(f"(?={texts})") if texts else None

    @cached_property
    def beginnings(self) -> frozenset[str]:
        return frozenset(text[:k] for text in self._texts for k in range(1, len(text)))


class SpecialMask:
    """Replaces the first character of special tokens' texts by a character that nothing uses.

    A special token that is found in a masked text was written by the template alone: none can lie
    in a message, begin in one, or be put together from several. Every character is replaced by
    one, so lengths, slices and white space stay as they are.

    Parameters
    ----------
    special : SpecialTexts
    in_use : iterable of str
        Texts whose characters may not be stand-ins: the messages and what was rendered of them.
    """

    def __init__(self, special: SpecialTexts, in_use: Iterable[str]) -> None:
        used: set[str] = set().union(*map(set, in_use))
        firsts = special.firsts
        free = list(islice((c for c in _STAND_INS if chr(c) not in used), len(firsts)))
        if len(free) < len(firsts):
            raise ConfigError("the messages use every private-use character; remove some of them")
        self._special = special
        self._stand_in = {ord(first): c for first, c in zip(firsts, free, strict=True)}
        self._original = {c: first for first, c in self._stand_in.items()}

    def render(self, messages: Any, text: str, render: Callable[[Any], str]) -> str:
        """The rendered conversation with what the messages brought masked.

        Parameters
        ----------
        messages : list of dict
            Plain data.
        text : str
            ``render(messages)``.
        render : callable
            Renders messages.

        Returns
        -------
        str
            Masked text; :meth:`restore` undoes it piece by piece. Restored it equals ``text``,
            unless the template looks for special tokens in the messages.
        """
        strings = list(strings_of(messages))
        if not any(chr(first) in s for first in self._stand_in for s in strings):
            return text
        try:
            masked = render(map_strings(messages, self._mask_all, self._mask_whole))
        except ConfigError:  # raised by the template over a character that it misses
            masked = ""
        if self.restore(masked) == text:
            return masked
        if all(self._mask_cut(s) == s for s in strings):
            return text
        return render(map_strings(messages, self._mask_cut, self._mask_whole))

    def restore(self, text: str) -> str:
        return text.translate(self._original)

    def _mask_all(self, text: str) -> str:
        return text.translate(self._stand_in)

    def _mask_whole(self, text: str) -> str:
        """Masks where a whole special token begins, overlapping ones too."""
        if self._special.starts is None:
            return text
        found = self._special.starts.finditer(text)
        return self._mask_at(text, [match.start() for match in found])

    def _mask_cut(self, text: str) -> str:
        """The same, and where the text's end is the beginning of a special token."""
        text = self._mask_whole(text)
        end = len(text.rstrip())
        begins = range(max(0, end - self._special.longest + 1), end)
        return self._mask_at(text, [i for i in begins if text[i:end] in self._special.beginnings])

    def _mask_at(self, text: str, positions: list[int]) -> str:
        if not positions:
            return text
        chars = list(text)
        for i in positions:
            chars[i] = chr(self._stand_in[ord(chars[i])])
        return "".join(chars)
