"""Pre-tokenisers on small vocabularies: the library's own configurations, and a naive twin."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from helpers_tokenizer import CONTROL, NORMAL, mixed_strings, toy, trained

from flarecore.tokenizer import Tokenizer
from flarecore.tokenizer.pretokenizers import BYTE_ALPHABET, PRETOKENIZERS

# As in the models' tokenizer.json files.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
BYTE_LEVEL = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
}  # fmt: skip


def hf_split(pattern: str) -> dict[str, Any]:
    split = {
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip
    return {"type": "Sequence", "pretokenizers": [split, {**BYTE_LEVEL, "use_regex": False}]}


HF_PRETOKENIZERS: dict[str, dict[str, Any]] = {
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
    },
    "llama-bpe": hf_split(LLAMA3),
    "qwen2": hf_split(QWEN2),
    "gpt-2": BYTE_LEVEL,
}


def library_tokenizer(pre: str) -> Any:
    """What the model's own tokenizer.json would make of the same vocabulary."""
    from tokenizers import Tokenizer as Library

    tokens, merges = trained(pre)
    return Library.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": HF_PRETOKENIZERS[pre], "post_processor": None, "decoder": BYTE_LEVEL,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "byte_fallback": False, "ignore_merges": pre == "llama-bpe",
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges},
    }))  # fmt: skip


@pytest.mark.parametrize("pre", HF_PRETOKENIZERS)
def test_pretokenizers_equal_the_models_own_files(pre: str) -> None:
    ours, library = Tokenizer.from_metadata(toy(pre)), library_tokenizer(pre)
    for text in mixed_strings(1000, seed=6):
        assert ours.encode(text) == library.encode(text, add_special_tokens=False).ids, repr(text)


def test_qwen2_equals_transformers() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers import Qwen2Tokenizer

    tokens, merges = trained("qwen2")
    theirs = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in merges],
        unk_token=None, eos_token=None, pad_token=None,
    )  # fmt: skip
    ours = Tokenizer.from_metadata(toy("qwen2"))
    for text in mixed_strings(500, seed=7):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), repr(text)


def naive_encode(text: str, patterns: list[str], tokens: list[str], merges: list[str]) -> list[int]:
    """Slow and obvious: each pattern cuts the pieces of the one before; merges by lowest rank."""
    regex = pytest.importorskip("regex", reason="the regex package is not installed")
    pieces = [text]
    for pattern in patterns:
        cut: list[str] = []
        for piece in pieces:
            end = 0
            for match in regex.finditer(pattern, piece):
                cut += [piece[end : match.start()], match.group()]
                end = match.end()
            cut.append(piece[end:])
        pieces = [piece for piece in cut if piece]
    rank = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}
    ids = {token: i for i, token in enumerate(tokens)}
    out: list[int] = []
    for piece in pieces:
        word = [BYTE_ALPHABET[b] for b in piece.encode()]
        while pairs := [(rank[p], i) for i, p in enumerate(pairwise(word)) if p in rank]:
            _, i = min(pairs)
            word[i : i + 2] = [word[i] + word[i + 1]]
        out += [ids[part] for part in word]
    return out


# White space as a class: the regex package counts U+001C to U+001F as \s, the library does not.
SPACE = r"\t-\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
GPT2 = (
    rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^{SPACE}\p{{L}}\p{{N}}]+"
    rf"|[{SPACE}]+(?![^{SPACE}])|[{SPACE}]+"
)
NAIVE = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}


@pytest.mark.parametrize("pre", NAIVE)
def test_equals_the_naive_twin(pre: str) -> None:
    ours, (tokens, merges) = Tokenizer.from_metadata(toy(pre)), trained(pre)
    for text in mixed_strings(400, seed=8):
        assert ours.encode(text) == naive_encode(text, NAIVE[pre], tokens, merges), repr(text)


def test_pretokenizers_differ_where_they_should() -> None:
    def pieces(pre: str, text: str) -> list[str]:
        return [p for p, _ in PRETOKENIZERS[pre].build().pre_tokenize_str(text)]

    assert pieces("smollm", "a 1234") == ["a", "Ġ", "1", "2", "3", "4"]
    assert pieces("gpt-2", "a 1234") == ["a", "Ġ1234"]
    assert pieces("llama-bpe", "a 1234") == ["a", "Ġ", "123", "4"]
    assert pieces("qwen2", "a 1234") == ["a", "Ġ", "1", "2", "3", "4"]
    assert pieces("default", "a 1234") == ["a", "Ġ", "123", "4"]
    assert pieces("gpt-2", "WE'VE x\n\ny") == ["WE", "'", "VE", "Ġx", "Ċ", "Ċ", "y"]
    assert pieces("llama-bpe", "WE'VE x\n\ny") == ["WE", "'VE", "Ġx", "ĊĊ", "y"]
    assert pieces("default", "a<b>c") == ["a", "<", "b", ">", "c"]


def test_llama3_takes_a_whole_word_that_is_a_token() -> None:
    """Without a merge path to it: only ignore_merges finds it."""
    whole = [("zyxwv", NORMAL)]
    llama = Tokenizer.from_metadata(toy("llama-bpe", extra_tokens=whole))
    assert llama.encode("zyxwv") == [llama.vocab_size - 1]
    qwen = Tokenizer.from_metadata(toy("qwen2", extra_tokens=whole))
    assert len(qwen.encode("zyxwv")) == 5
    # A special token of such a spelling stays out of reach all the same.
    control = Tokenizer.from_metadata(toy("llama-bpe", extra_tokens=[("zyxwv", CONTROL)]))
    assert len(control.encode("zyxwv")) == 5
    assert control.encode("zyxwv", parse_special=True) == [control.vocab_size - 1]


def test_qwen2_normalises_to_nfc() -> None:
    tokenizer = Tokenizer.from_metadata(toy("qwen2"))
    assert tokenizer.decode(tokenizer.encode("cafe\u0301")) == "caf\u00e9"
    other = Tokenizer.from_metadata(toy("gpt-2"))
    assert other.decode(other.encode("cafe\u0301")) == "cafe\u0301"
