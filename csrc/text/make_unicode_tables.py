"""Writes unicode_tables.inc from Python's ``unicodedata``: run it to move to a newer Unicode.

    python csrc/text/make_unicode_tables.py > csrc/text/unicode_tables.inc

Four tables of ranges over the non-ASCII characters. Unassigned characters take the class of what
lies before them, which keeps the tables short; nothing may depend on their class.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

FIRST, LAST = 0x80, 0x1FFFF  # nothing above is anything but a letter (Han) or unassigned
WORD_FORMAT = {0x200C, 0x200D}  # joiners: symbols for the boundary, glue for the mask
BLANK_FORMAT = {0x200B, 0x2060, 0xFEFF}
DIRECTION_MARKS = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}


def kind(cp: int) -> str | None:
    """Class of a character; None where unassigned."""
    category = unicodedata.category(chr(cp))
    if category == "Cn":
        return None
    if category[0] == "Z" or category == "Cc" or cp in BLANK_FORMAT:
        return "space"
    if category[0] == "P" or cp in DIRECTION_MARKS:
        return "punct"
    if category[0] == "S" or cp in WORD_FORMAT or 0xFE00 <= cp <= 0xFE0F or cp == 0xFFFD:
        return "symbol"
    return "word"


def ranges_of(wanted: str) -> list[tuple[int, int]]:
    runs: list[list[int | str]] = []
    for cp in range(FIRST, LAST + 1):
        this = kind(cp)
        if this is None:
            continue
        if runs and runs[-1][2] == this:
            runs[-1][1] = cp
        else:
            runs.append([cp, cp, this])
    return [(int(a), int(b)) for a, b, k in runs if k == wanted]


def strided(wanted: Callable[[int], bool]) -> list[tuple[int, int, int]]:
    """Maximal arithmetic runs of step 1 or 2: cased alphabets alternate upper and lower."""
    cps = [cp for cp in range(FIRST, LAST + 1) if wanted(cp)]
    out, i = [], 0
    while i < len(cps):
        ends = {}
        for step in (1, 2):
            j = i
            while j + 1 < len(cps) and cps[j + 1] - cps[j] == step:
                j += 1
            ends[step] = j
        step = 1 if ends[1] >= ends[2] else 2
        out.append((cps[i], cps[ends[step]], step))
        i = ends[step] + 1
    return out


def is_upper(cp: int) -> bool:
    return unicodedata.category(chr(cp)) in ("Lu", "Lt")


def is_lower(cp: int) -> bool:
    # Georgian counts as lower case in Unicode, yet its sentences start with such letters.
    return unicodedata.category(chr(cp)) == "Ll" and not 0x10D0 <= cp <= 0x10FF


def print_table(name: str, rows: list[tuple[int, ...]]) -> None:
    cells = ["{" + ", ".join(f"0x{v:X}" if v > 2 else str(v) for v in row) + "}" for row in rows]
    element = "StridedRange" if len(rows[0]) == 3 else "CharRange"
    print(f"constexpr {element} {name}[] = {{")
    line = "   "
    for cell in cells:
        if len(line) + len(cell) + 2 > 100:
            print(line)
            line = "   "
        line += f" {cell},"
    print(line)
    print("};")


if __name__ == "__main__":
    print(f"// Written by make_unicode_tables.py from Unicode {unicodedata.unidata_version}.")
    for wanted in ("space", "punct", "symbol"):
        print_table(f"k{wanted.capitalize()}Ranges", ranges_of(wanted))  # type: ignore[arg-type]
    print_table("kUpperRanges", strided(is_upper))  # type: ignore[arg-type]
    print_table("kLowerRanges", strided(is_lower))  # type: ignore[arg-type]
