"""Sentence boundary and query mask, slow and obvious: the twin of ``csrc/text``."""

from flarecore.reference.query_mask import is_punctuation_or_space, low_spans, mask_to_query
from flarecore.reference.sentence_boundary import first_sentence_end, split_sentences
from flarecore.reference.text_chars import decode_utf8

__all__ = [
    "decode_utf8",
    "first_sentence_end",
    "is_punctuation_or_space",
    "low_spans",
    "mask_to_query",
    "split_sentences",
]
