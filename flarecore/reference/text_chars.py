"""What characters are to the reference boundary and mask, from Python's ``unicodedata``."""

from __future__ import annotations

import re
import unicodedata

REPLACEMENT = "\ufffd"
NEWLINES = "\n\r\x85\u2028\u2029"
DIRECTION_CLOSERS = "\u061c\u200e\u200f\u202c\u2069"
ELLIPSES = "…‥⋯"
QUESTIONS = "?!\u037e‼‽⁇⁈⁉"
STRONG = "。｡！？；։؟۔।॥။።፧፨។៕᠃᠉᱾᱿꯫܀܁܂"
TERMINATORS = "." + "．" + ELLIPSES + QUESTIONS + STRONG
HARD_CLOSERS = ")]}〉》」』】〕〗）］｝｣"
LOOSE_CLOSERS = "«‘“‹"
PAIRED = '"*`_~'
SOFT_CLOSERS = "'»’”›＂＇\u200d\ufe0f²³¹" + DIRECTION_CLOSERS
EAST_QUOTES = "”〉》」』】）｣"
TITLE_CLOSERS = "〉》"
EAST_OPENERS = "〈《「『【｢"
CONTINUATIONS = ",;:،؛、，：､"
PARTICLES = "とっをがのには"
BLANKS = "\u200b\u2060\ufeff"
JOINERS = "\u200c\u200d"
DIRECTION_MARKS = DIRECTION_CLOSERS + "\u202a\u202b\u202d\u202e\u2066\u2067\u2068"
HANGUL = re.compile("[\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7fb\uffa0-\uffdc]")
UNSPACED_EAST = re.compile(
    "[\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3041-\u30ff\u3105-\u312f"
    "\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff]"
)
UNSPACED_SOUTH = re.compile("[\u0e00-\u109f\u1780-\u17ff]")


def decode_utf8(text: bytes) -> list[tuple[str, int, int]]:
    """Characters as (character, begin, end) in bytes; a byte that starts none is U+FFFD."""
    chars = []
    at = 0
    while at < len(text):
        for size in (1, 2, 3, 4):
            try:
                char = text[at : at + size].decode()
            except UnicodeDecodeError:
                continue
            chars.append((char, at, at + size))
            at += size
            break
        else:
            chars.append((REPLACEMENT, at, at + 1))
            at += 1
    return chars


def kind(char: str) -> str:
    """One of ``space``, ``punct``, ``symbol``, ``word``."""
    category = unicodedata.category(char)
    if category[0] == "Z" or category == "Cc" or char in BLANKS:
        return "space"
    if category[0] == "P" or char in DIRECTION_MARKS or (char < "\x7f" and category[0] == "S"):
        return "punct"
    if category[0] == "S" or char in JOINERS or "\ufe00" <= char <= "\ufe0f":
        return "symbol"
    return "word"


def is_word(char: str) -> bool:
    return kind(char) == "word"


def is_east(char: str) -> bool:
    return is_word(char) and bool(HANGUL.match(char) or UNSPACED_EAST.match(char))


def is_upper(char: str) -> bool:
    return unicodedata.category(char) in ("Lu", "Lt")


def is_lower(char: str) -> bool:
    return unicodedata.category(char) == "Ll" and not "\u10d0" <= char <= "\u10ff"


def is_digit(char: str) -> bool:
    return bool(re.match("[0-9０-９٠-٩۰-۹०-९]", char))


def is_unspaced(char: str) -> bool:
    """Letters of scripts that put no spaces between words."""
    return is_word(char) and bool(UNSPACED_EAST.match(char) or UNSPACED_SOUTH.match(char))


def is_emoji(char: str) -> bool:
    return kind(char) == "symbol" and bool(re.match("[\u2600-\u27bf\U0001f000-\U0001faff]", char))
