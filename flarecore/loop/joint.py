"""How a sentence that was written in a new turn joins the answer.

A draft continues the answer, so its first token carries the white space that joins the two (in
most vocabularies " He" is one token). A sentence written after evidence in a turn of its own begins
a turn instead ("He"). The draft tells what the joint must look like; tokens stay tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from flarecore.loop.interfaces import TokenizerLike

__all__ = ["Joint"]

_SPACE = b" \t\r\n"


class Joint:
    """Moves white space between the end of an answer and the start of a sentence.

    Parameters
    ----------
    tokenizer : TokenizerLike
        Its vocabulary is looked up by bytes, once.
    """

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self._tokenizer = tokenizer
        self._table: dict[bytes, int] | None = None

    def attach(
        self, draft: bytes, token_ids: Sequence[int], text: bytes
    ) -> tuple[tuple[int, ...], bytes]:
        """The sentence as it joins the answer.

        If the draft begins with white space and the sentence does not, the sentence gets it: its
        first token becomes the one that is spelled with it, or, where the vocabulary has no such
        token, the white space is encoded before it.

        Parameters
        ----------
        draft : bytes
            The draft of the same sentence.
        token_ids : sequence of int
            The sentence as generated.
        text : bytes
            Its bytes.

        Returns
        -------
        token_ids : tuple of int
        text : bytes
        """
        space = draft[:len(draft) - len(draft.lstrip(_SPACE))]
        if not space or not text or text[:1] in {bytes([byte]) for byte in _SPACE}:
            return tuple(token_ids), text
        if token_ids:
            merged = self._find(space + self._tokenizer.token_bytes(token_ids[0]))
            if merged is not None:
                return (merged, *token_ids[1:]), space + text
        return (*self._tokenizer.encode(space.decode()), *token_ids), space + text

    def detach(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """A draft's ids as a proposal for a sentence that begins a turn."""
        ids = tuple(token_ids)
        while ids:
            first = self._tokenizer.token_bytes(ids[0])
            bare = first.lstrip(_SPACE)
            if bare == first:
                return ids
            if bare:
                merged = self._find(bare)
                return ids if merged is None else (merged, *ids[1:])
            ids = ids[1:]
        return ids

    def _find(self, spelled: bytes) -> int | None:
        if self._table is None:
            special = self._tokenizer.special_token_ids
            self._table = {}
            for token_id, data in enumerate(self._tokenizer.token_table):
                if token_id not in special:
                    self._table.setdefault(data, token_id)
        return self._table.get(spelled)
