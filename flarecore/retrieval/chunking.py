"""Documents into passages of a bounded size, cut where a reader would cut.

Size is counted in words; a character of a script that is written without spaces (Chinese, Japanese,
Thai, Khmer, ...) counts as one word. Passages are exact slices of the document: whole paragraphs
where they fit, else whole sentences, and only a sentence that is too long by itself is cut inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from flarecore.errors import ConfigError

__all__ = ["Section", "count_words", "markdown_sections", "split_text"]

# Scripts without spaces between words: Thai, Lao, Myanmar, Khmer, kana, CJK ideographs.
_UNSPACED = ("\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
             "\uf900-\ufaff\U00020000-\U0003ffff")
_LONG_RUN = 32  # characters; a longer run (URL, base64) counts by pieces of this size
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]{{1,{_LONG_RUN}}}")
_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*")
# After a terminator with its closing quotes and brackets: at white space in spaced scripts, at once
# in CJK. An abbreviation may end a piece early; pieces are only where a passage may be cut.
# Only the first of several terminators is tried: a row of dots would take quadratic time otherwise.
_SENTENCE_END = re.compile(
    r"""(?<![.!?])[.!?]+["'”’)\]]*\s+|[。！？；…]+["'”’」』）)\]]*\s*|\n\s*""")
_HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]+(.*)$")
_FENCE = re.compile(r"^ {0,3}(```|~~~)")


@dataclass(frozen=True)
class Section:
    """A part of a document under one heading."""

    title: str
    text: str


@dataclass(frozen=True)
class _Piece:
    """A slice ``[begin, end)`` that stays together, with its size in words."""

    begin: int
    end: int
    num_words: int
    paragraph_words: int  # size of the whole paragraph if the piece opens one, else 0


def count_words(text: str) -> int:
    """Size of a text as `max_words` counts it."""
    return sum(1 for _ in _WORD.finditer(text))


def split_text(text: str, *, max_words: int = 100, overlap: int = 0) -> list[str]:
    """Cuts a text into passages.

    Parameters
    ----------
    text : str
    max_words : int
        Largest size of a passage, at least 1.
    overlap : int
        Up to this many words from the end of a passage, in whole pieces, begin the next one;
        at most half of `max_words`.

    Returns
    -------
    list of str
        Slices of `text` in order, without white space at their ends; none is empty.

    Raises
    ------
    ConfigError
        A size is out of range.
    """
    if isinstance(max_words, bool) or not isinstance(max_words, int) or max_words < 1:
        raise ConfigError(f"max_words must be an integer >= 1, got {max_words!r}")
    if isinstance(overlap, bool) or not isinstance(overlap, int) or not (
            0 <= overlap <= max_words // 2):
        raise ConfigError(
            f"overlap must be between 0 and half of max_words ({max_words // 2}), got {overlap!r}")
    passages: list[str] = []
    current: list[_Piece] = []
    size = fresh = 0  # words in `current`, and how many of its pieces no passage holds yet
    for piece in _pieces(text, max_words):
        # A paragraph that would not fit starts a passage of its own, unless this one is short.
        breaks_paragraph = size * 2 >= max_words and size + piece.paragraph_words > max_words
        if current and (size + piece.num_words > max_words or breaks_paragraph):
            if fresh:
                passages.append(text[current[0].begin : current[-1].end].strip())
            current = _tail(current, min(overlap, max_words - piece.num_words))
            size, fresh = sum(p.num_words for p in current), 0
        current.append(piece)
        size, fresh = size + piece.num_words, fresh + 1
    if fresh:
        passages.append(text[current[0].begin : current[-1].end].strip())
    return passages


def _tail(pieces: list[_Piece], num_words: int) -> list[_Piece]:
    """The last pieces that have at most `num_words` together."""
    first = len(pieces)
    while first and pieces[first - 1].num_words <= num_words:
        first -= 1
        num_words -= pieces[first].num_words
    return pieces[first:]


def _pieces(text: str, max_words: int) -> Iterator[_Piece]:
    for begin, end in _spans(text, 0, len(text), _PARAGRAPH_END):
        paragraph_words = count_words(text[begin:end])
        for first, last in _spans(text, begin, end, _SENTENCE_END):
            for low, high, num_words in _fitting(text, first, last, max_words):
                yield _Piece(low, high, num_words, paragraph_words)
                paragraph_words = 0


def _spans(
    text: str, begin: int, end: int, separator: re.Pattern[str]
) -> Iterator[tuple[int, int]]:
    """``[begin, end)`` cut behind each separator; separators stay with what they end."""
    for match in separator.finditer(text, begin, end):
        if match.end() < end:
            yield begin, match.end()
            begin = match.end()
    if begin < end:
        yield begin, end


def _fitting(text: str, begin: int, end: int, max_words: int) -> Iterator[tuple[int, int, int]]:
    """A sentence in runs of at most `max_words`; nothing for white space alone."""
    starts = [match.start() for match in _WORD.finditer(text, begin, end)]
    for first in range(0, len(starts), max_words):
        run = starts[first : first + max_words]
        stop = starts[first + max_words] if first + max_words < len(starts) else end
        yield run[0], stop, len(run)


def markdown_sections(text: str, title: str) -> list[Section]:
    """A Markdown document by its headings.

    Parameters
    ----------
    text : str
    title : str
        Used before the first heading.

    Returns
    -------
    list of Section
        Titles are the headings above the text, from the outermost, joined by " - "; sections
        without text are left out. Lines inside code fences are never headings.
    """
    sections: list[Section] = []
    open_headings: list[tuple[int, str]] = []
    lines: list[str] = []
    fence: str | None = None

    def close() -> None:
        body = "\n".join(lines).strip()
        if body:
            heading = " - ".join(above for _, above in open_headings)
            sections.append(Section(heading or title, body))
        lines.clear()

    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if mark and fence in (None, mark.group(1)):
            fence = mark.group(1) if fence is None else None
        heading = None if fence or mark else _HEADING.match(line)
        if heading is None:
            lines.append(line)
            continue
        close()
        level, name = len(heading.group(1)), _without_closing(heading.group(2))
        open_headings = [(n, above) for n, above in open_headings if n < level]
        if name:
            open_headings.append((level, name))
    close()
    return sections


def _without_closing(heading: str) -> str:
    """A heading's text without the number signs that close it: ``A ##`` is A, ``C#`` stays."""
    heading = heading.strip(" \t")
    bare = heading.rstrip("#")
    return bare.rstrip(" \t") if not bare or bare[-1] in " \t" else heading
