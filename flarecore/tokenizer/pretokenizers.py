"""How text is cut into words before byte-level BPE, by ``tokenizer.ggml.pre``.

Every pre-tokeniser cuts the text into pieces and then spells each byte as one character of the
GPT-2 byte alphabet. The regular expressions are those of the models' own tokenizer files; for
``default``, which no model file has, they are llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from flarecore.errors import UnsupportedError

__all__ = ["BYTE_ALPHABET", "PRETOKENIZERS", "PreTokenizer", "find_pretokenizer"]

# Each pattern is applied to the pieces of the one before; a match and a gap are a piece each.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")


@dataclass(frozen=True)
class PreTokenizer:
    """One way to cut text.

    Attributes
    ----------
    build : callable
        Makes the ``tokenizers`` pre-tokeniser.
    nfc : bool
        Text is normalised to NFC first (Qwen2), so that decoding gives the normalised text back.
    ignore_merges : bool
        A whole piece that is a token is taken as it is, whatever the merges would make (Llama 3).
    adds_bos : bool
        What holds if the file does not say whether a prompt begins with BOS.
    """

    build: Callable[[], Any]
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


def _splits(*patterns: str) -> Callable[[], Any]:
    def build() -> Any:
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

        splits = [Split(Regex(pattern), behavior="isolated") for pattern in patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


def _digits_then_gpt2() -> Any:
    # Digits, not \p{N}: the library's own test for numerals is what SmolLM's tokenizer file uses.
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    return Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )


_LLAMA_BPE = PreTokenizer(_splits(_LLAMA3), ignore_merges=True, adds_bos=True)

PRETOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "smollm": PreTokenizer(_digits_then_gpt2),
        "llama-bpe": _LLAMA_BPE,
        "llama3": _LLAMA_BPE,
        "llama-v3": _LLAMA_BPE,
        "qwen2": PreTokenizer(_splits(_QWEN2), nfc=True),
        "gpt-2": PreTokenizer(_splits(_GPT2)),
        "default": PreTokenizer(_splits(*_DEFAULT)),
    }
)


def find_pretokenizer(name: object) -> PreTokenizer:
    """The pre-tokeniser that ``tokenizer.ggml.pre`` names.

    Raises
    ------
    UnsupportedError
        The name is unknown, or the file has none. Guessing would give other token ids than the
        model was trained on, without any sign of it.
    """
    known = ", ".join(PRETOKENIZERS)
    if name is None:
        raise UnsupportedError(
            "the model file does not say how its text is cut into words (tokenizer.ggml.pre is "
            f"missing); convert it again, or name one with pre=...: {known}"
        )
    if not isinstance(name, str) or name not in PRETOKENIZERS:
        raise UnsupportedError(
            f"the pre-tokeniser {name!r} (tokenizer.ggml.pre) is not supported; supported: {known}"
        )
    return PRETOKENIZERS[name]


def _byte_alphabet() -> str:
    """The 256 characters that stand for the bytes: printable Latin-1 as itself, the rest moved up.

    Source: GPT-2's byte-level BPE (Radford et al. 2019).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return "".join(chr(b if b in printable else next(moved)) for b in range(256))


# BYTE_ALPHABET[b] spells byte b.
BYTE_ALPHABET = _byte_alphabet()
