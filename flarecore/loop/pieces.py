"""Template pieces as token ids: what a template spells counts, what is filled in is plain text."""

from __future__ import annotations

from collections.abc import Sequence

from flarecore.loop.interfaces import TokenizerLike
from flarecore.templates import split_piece

__all__ = ["PieceEncoder", "Segment", "encodable", "fill"]

# A run of text of a prompt and whether special-token text counts in it.
Segment = tuple[str, bool]


class PieceEncoder:
    """Encodes the pieces of templates for one tokenizer.

    Parameters
    ----------
    tokenizer : TokenizerLike
        The model's tokenizer.
    """

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self._tokenizer = tokenizer
        # Ids that stand for no text are special too; no text spells them.
        self._special_texts = [
            text for i in sorted(tokenizer.special_token_ids)
            if (text := tokenizer.token_bytes(i).decode("utf-8", "replace"))]

    def encode(self, segments: Sequence[Segment]) -> tuple[int, ...]:
        """Ids of some runs of text, each encoded by itself."""
        return tuple(
            token_id for text, special in segments if text
            for token_id in self._tokenizer.encode(text, parse_special=special))

    def filled(self, piece: str, **values: str) -> tuple[int, ...]:
        """A filled piece: encoded whole unless it spells special tokens itself."""
        if not self.has_special(piece):
            return self.encode([(fill(piece, **values), False)])
        segments: list[Segment] = []
        for literal, name in split_piece(piece):
            segments.append((literal, True))
            if name is not None:
                segments.append((values[name], False))
        return self.encode(segments)

    def has_special(self, text: str) -> bool:
        """Whether the text spells a special token."""
        return any(special in text for special in self._special_texts)


def encodable(text: str) -> str:
    """The text without half surrogate pairs: JSON can hold one, UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def fill(piece: str, **values: str) -> str:
    """A piece with its placeholders replaced."""
    return "".join(
        literal + (values[name] if name is not None else "")
        for literal, name in split_piece(piece))
