"""For SentencePiece tests: texts, the library itself, small models, parts of Gemma's vocabulary."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers_tokenizer import ALPHABETS, CONTROL, NORMAL, UNKNOWN, USER, mixed_strings

from flarecore import _C
from flarecore.model_files import find_model
from flarecore.tokenizer import Tokenizer

BLANK = "\u2581"
BYTE = 6

Metadata = dict[str, Any]

# Parts that byte fallback, user-defined pieces, blanks and control characters meet in.
_PARTS = [
    " ", "  ", "   ", "\n", "\n\n", "\t", "\t\t", "\r\n", "\u3000", "=", "-", "#", "aa", "ab", "ba",
    "<td>", "</td>", "<b>", "<0x0A>", "\x00", "\x01", "\x7f", "\ue000", "\U000e0041", "你", "好",
    "。",
    "the", "Th", "😀", "👩‍👩‍👧", "é", "e\u0301", "ʔ", "ꙮ", "𒀀", "<", ">", "1", "23",
]  # fmt: skip


def odd_strings(count: int, seed: int, longest_run: int = 31) -> list[str]:
    """Seeded strings: runs of one part, and characters from anywhere in Unicode."""
    rng = np.random.default_rng(seed)
    ranges = [(0x20, 0x250), (0x4E00, 0x9FFF), (1, 0x10FFFF)]
    strings = []
    for i in range(count):
        if i % 2:
            low, high = ranges[int(rng.integers(3))]
            codes = rng.integers(low, high, int(rng.integers(1, 50))).tolist()
            strings.append("".join(chr(c) for c in codes if not 0xD800 <= c <= 0xDFFF))
            continue
        text = ""
        for _ in range(int(rng.integers(1, 8))):
            part = _PARTS[int(rng.integers(len(_PARTS)))]
            room = (longest_run + len(part) - 1) // len(part)
            # A run of blanks must not grow by the next one's.
            text = text.rstrip(" ") + part * int(rng.integers(1, room + 1))
        strings.append(text)
    return [text for text in strings if " " * (longest_run + 1) not in text]


def texts(count: int, seed: int) -> list[str]:
    """Chinese, English, emoji and so on, every second one odd. None has U+2581, a blank."""
    return mixed_strings(count // 2, seed) + odd_strings(count // 2, seed)


def gemma_metadata() -> Metadata:
    """``tokenizer.ggml.*`` of Gemma, whole."""
    return dict(_gemma_items())


@cache
def _gemma_items() -> tuple[tuple[str, Any], ...]:
    metadata = _C.GgufFile(find_model("gemma3-270m")).metadata
    return tuple((key, metadata[key]) for key in metadata if key.startswith("tokenizer."))


@cache
def gemma() -> Tokenizer:
    return Tokenizer.from_gguf(find_model("gemma3-270m"))


def needed_ids(metadata: Metadata, strings: Sequence[str]) -> list[int]:
    """Tokens that encoding these strings can come across.

    Merging only ever asks for pieces that the text has, so that the rest of a vocabulary changes
    nothing. Bytes and the tokens with fixed meanings stay in any case.
    """
    tokens = metadata["tokenizer.ggml.tokens"]
    types = np.asarray(metadata["tokenizer.ggml.token_type"])
    escaped = [BLANK + text.replace(" ", BLANK) for text in strings]
    longest = 12
    runs = {text[i : i + n] for text in escaped for n in range(1, longest + 1)
            for i in range(len(text))}  # fmt: skip
    everything = "\0".join(escaped)
    return [
        i
        for i, token in enumerate(tokens)
        if types[i] in (UNKNOWN, USER, BYTE)
        or i < 8
        or (token in runs if len(token) <= longest else token in everything)
    ]


def reduced(metadata: Metadata, ids: Sequence[int]) -> Metadata:
    """A vocabulary of some of the tokens, in order."""
    new_id = {old: new for new, old in enumerate(ids)}
    out = dict(metadata)
    for key in ("tokens", "scores", "token_type"):
        values = metadata[f"tokenizer.ggml.{key}"]
        out[f"tokenizer.ggml.{key}"] = [values[i] for i in ids]
    for key, value in metadata.items():
        if key.endswith("_token_id"):
            out[key] = new_id[value]
    return out


# The library


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def _field(number: int, value: int | bytes) -> bytes:
    """One protocol buffer field: a varint or bytes."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def library(metadata: Metadata, *, byte_fallback: bool = True) -> Any:
    """The sentencepiece library's processor for a vocabulary in GGUF metadata."""
    sentencepiece = pytest.importorskip(
        "sentencepiece", reason="sentencepiece, the library to compare with, is not installed"
    )
    out = bytearray()
    unknown = metadata["tokenizer.ggml.unknown_token_id"]
    for i, (token, score, kind) in enumerate(
        zip(
            metadata["tokenizer.ggml.tokens"],
            np.asarray(metadata["tokenizer.ggml.scores"], np.float32).tolist(),
            np.asarray(metadata["tokenizer.ggml.token_type"]).tolist(),
            strict=True,
        )
    ):
        # GGUF files have user-defined pieces with blanks as they stand; Gemma's <unk> is "control".
        text = token.replace(" ", BLANK) if kind == USER else token
        kind = UNKNOWN if i == unknown else kind
        score_field = _varint(2 << 3 | 5) + struct.pack("<f", score)
        out += _field(1, _field(1, text.encode()) + score_field + _field(3, kind))
    out += _field(2, _field(3, 2) + _field(35, int(byte_fallback)))
    prefix = int(metadata.get("tokenizer.ggml.add_space_prefix", True))
    out += _field(3, _field(1, b"identity") + _field(3, prefix) + _field(4, 0) + _field(5, 1))
    return sentencepiece.SentencePieceProcessor(model_proto=bytes(out))


@cache
def _trained(prefix: bool, byte_fallback: bool, vocab_size: int) -> bytes:
    sentencepiece = pytest.importorskip(
        "sentencepiece", reason="sentencepiece, which makes the model, is not installed"
    )
    model = io.BytesIO()
    lines = [" ".join(mixed_strings(1, seed)) for seed in range(600)] + ALPHABETS["english"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=vocab_size,
        character_coverage=0.98, byte_fallback=byte_fallback, add_dummy_prefix=prefix,
        remove_extra_whitespaces=False, normalization_rule_name="identity",
        user_defined_symbols=["<td>", "</td>", "  ", "qu", "quick"], minloglevel=3,
        allow_whitespace_only_pieces=True,
    )  # fmt: skip
    return model.getvalue()


def trained_metadata(
    *, prefix: bool = True, byte_fallback: bool = True, vocab_size: int = 900
) -> Metadata:
    """A small model that the library trained, as Llama 2's converter writes one."""
    sentencepiece = pytest.importorskip("sentencepiece")
    model = sentencepiece.SentencePieceProcessor(
        model_proto=_trained(prefix, byte_fallback, vocab_size)
    )
    ids = range(model.GetPieceSize())
    user = {"<td>", "</td>", BLANK * 2, "qu", "quick"}

    def kind(i: int) -> int:
        if model.IsUnknown(i):
            return UNKNOWN
        if model.IsControl(i):
            return CONTROL
        return BYTE if model.IsByte(i) else USER if model.IdToPiece(i) in user else NORMAL

    types = [kind(i) for i in ids]
    tokens = [model.IdToPiece(i) for i in ids]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [
            t.replace(BLANK, " ") if k == USER else t for t, k in zip(tokens, types, strict=True)
        ],
        "tokenizer.ggml.scores": [float(model.GetScore(i)) for i in ids],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": prefix,
    }
