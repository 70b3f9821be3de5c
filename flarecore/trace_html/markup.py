"""HTML from parts that cannot break out of their place.

Plain strings are always escaped; only :func:`tag` and :func:`join` make :class:`Markup`, so text of
a model or a passage can be handed to every function of the page as it is.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

__all__ = ["Children", "Markup", "join", "language", "raw", "tag", "visible"]

# What would move, hide or reorder text, and what UTF-8 cannot hold.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_VOID = frozenset({"meta", "link", "br", "hr"})
_KANA = re.compile("[\u3040-\u30ff]")
_HANGUL = re.compile("[\uac00-\ud7af]")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")


class Markup(str):
    """HTML that is finished."""

    __slots__ = ()


Children: TypeAlias = "str | Iterable[Children] | None"


def visible(text: str) -> str:
    """`text` with every character that would play tricks replaced by its name, as ``[U+202E]``.

    Control characters, bidirectional overrides and isolates, surrogates. White space stays; line
    ends become line feeds.
    """
    return _UNSAFE.sub(lambda match: f"[U+{ord(match.group()):04X}]", text.replace("\r\n", "\n"))


def raw(text: str) -> Markup:
    """Declares HTML of our own files as finished."""
    return Markup(text)


def join(*children: Children) -> Markup:
    """The children one after the other: Markup as it is, plain strings escaped, None left out."""
    return Markup("".join(_flat(children)))


def _flat(children: Iterable[Children]) -> Iterator[str]:
    for child in children:
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, str):
            yield html.escape(visible(child), quote=False)
        elif child is not None:
            yield from _flat(child)


def tag(name: str, /, *children: Children, **attributes: str | int | bool | None) -> Markup:
    """An element.

    Parameters
    ----------
    name : str
        Its name.
    children : str, Markup, None or iterables of them
        Plain strings are escaped.
    attributes : str, int, bool or None
        ``cls`` is ``class``, ``_`` is ``-``; True writes the bare name, None, False and an empty
        class nothing.
    """
    parts = ["<", name]
    for key, value in attributes.items():
        key = "class" if key == "cls" else key.replace("_", "-")
        if value is None or value is False or (key == "class" and not value):
            continue
        parts.append(f" {key}" if value is True
                     else f' {key}="{html.escape(visible(str(value)), quote=True)}"')
    parts.append(">")
    if name not in _VOID:
        parts.extend(_flat(children))
        parts.append(f"</{name}>")
    return Markup("".join(parts))


def language(text: str) -> str | None:
    """``zh``, ``ja`` or ``ko`` where the script tells, so that the right glyphs are chosen."""
    if _HANGUL.search(text):
        return "ko"
    if _KANA.search(text):
        return "ja"
    return "zh" if _HAN.search(text) else None
