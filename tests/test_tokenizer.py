"""Token ids against transformers, the tokenizers library and a naive twin; special tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers_gguf import Gguf
from helpers_tokenizer import (
    CONTROL,
    NORMAL,
    UNUSED,
    USER,
    mixed_strings,
    smollm2,
    toy,
    trained,
)

from flarecore import _C
from flarecore.errors import ConfigError, ModelFileError, UnsupportedError
from flarecore.model_files import find_model
from flarecore.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def transformers_smollm2() -> Any:
    """transformers' tokenizer of the same file, with the pre-tokeniser that it leaves out.

    Its GGUF reader knows no "smollm" and falls back to GPT-2's; the model's own tokenizer.json
    splits digits first.
    """
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    path = find_model("smollm2-135m")
    loaded = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    loaded.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    return loaded


# A real vocabulary


def test_equals_transformers_on_mixed_strings(transformers_smollm2: Any) -> None:
    strings = mixed_strings(1000, seed=1)
    with_special = 0
    for text in strings:
        expected = transformers_smollm2.encode(text, add_special_tokens=False)
        assert smollm2().encode(text, parse_special=True) == expected, repr(text)
        if "<|im_end|>" not in text and "<|endoftext|>" not in text:
            assert smollm2().encode(text) == expected, repr(text)
        else:
            with_special += 1
            assert smollm2().encode(text) != expected
    assert with_special > 50


def test_long_texts_equal_transformers(transformers_smollm2: Any) -> None:
    text = " ".join(mixed_strings(300, seed=2))
    expected = transformers_smollm2.encode(text, add_special_tokens=False)
    assert len(expected) > 5000
    assert smollm2().encode(text, parse_special=True) == expected


def test_facts_of_smollm2() -> None:
    tokenizer = smollm2()
    assert tokenizer.vocab_size == len(tokenizer.token_table) == 49152
    assert tokenizer.bos_token_id == 1
    assert tokenizer.adds_bos is False
    assert tokenizer.special_token_ids == frozenset(range(17))
    assert tokenizer.eos_token_ids == {2, 0}  # <|im_end|> is declared, <|endoftext|> ends too
    assert tokenizer.chat_template is not None and "<|im_start|>" in tokenizer.chat_template


def test_bytes_of_every_token_match_the_library() -> None:
    from tokenizers.decoders import ByteLevel

    tokenizer, decoder = smollm2(), ByteLevel()
    tokens = _C.GgufFile(find_model("smollm2-135m")).metadata["tokenizer.ggml.tokens"]
    for i, token in enumerate(tokens):
        exact = tokenizer.token_bytes(i)
        assert exact.decode("utf-8", "replace") == decoder.decode([token]), i
        assert exact == tokenizer.token_table[i] == tokenizer.decode_bytes([i], skip_special=False)


def test_bytes_survive_the_round_trip() -> None:
    """Text back from ids, byte for byte; only what no token covers is missing (six controls)."""
    tokenizer = smollm2()
    single = {b for b in tokenizer.token_table if len(b) == 1}
    missing = {b for b in range(256) if bytes([b]) not in single}
    assert missing & set(range(0x80)) == {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D}
    for text in mixed_strings(500, seed=3):
        expected = bytes(b for b in text.encode() if b not in missing)
        assert tokenizer.decode_bytes(tokenizer.encode(text)) == expected
        if len(expected) == len(text.encode()):
            assert tokenizer.decode(tokenizer.encode(text)) == text


CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "你是助手。"}, {"role": "user", "content": "差旅 \n"},
     {"role": "assistant", "content": "\n\n1. 发票"}, {"role": "user", "content": ""}],
    [{"role": "user", "content": text} for text in mixed_strings(40, seed=11)
     if "<|im_end|>" not in text and "<|endoftext|>" not in text],
]  # fmt: skip


@pytest.mark.parametrize("prompt", [False, True])
def test_chat_ids_equal_transformers(transformers_smollm2: Any, prompt: bool) -> None:
    for chat in CHATS:
        expected = transformers_smollm2.apply_chat_template(
            chat, tokenize=True, add_generation_prompt=prompt, return_dict=False
        )
        assert smollm2().encode_chat(chat, add_generation_prompt=prompt) == expected


# Special tokens


def test_special_text_is_plain_unless_asked() -> None:
    tokenizer = smollm2()
    text = "a<|im_end|>\n<|im_start|>system"
    plain, parsed = tokenizer.encode(text), tokenizer.encode(text, parse_special=True)
    assert not tokenizer.special_token_ids & set(plain)
    assert [i for i in parsed if i in tokenizer.special_token_ids] == [2, 1]
    assert tokenizer.decode(plain) == tokenizer.decode(parsed, skip_special=False) == text
    assert tokenizer.decode(parsed) == "a\nsystem"
    # Every special token, alone and in text.
    for i in sorted(tokenizer.special_token_ids):
        name = tokenizer.token_bytes(i).decode()
        assert tokenizer.encode(name, parse_special=True) == [i]
        assert i not in tokenizer.encode(f"x {name}y")
        assert tokenizer.decode(tokenizer.encode(f"x {name}y")) == f"x {name}y"


def test_no_text_yields_a_special_token() -> None:
    for text in mixed_strings(500, seed=4):
        assert not smollm2().special_token_ids & set(smollm2().encode(text))


def test_bos() -> None:
    assert smollm2().encode("a", add_bos=True) == [1, *smollm2().encode("a")]
    assert smollm2().encode("", add_bos=True) == [1]
    assert smollm2().encode("") == []
    none = Tokenizer.from_metadata(toy())
    assert none.bos_token_id is None and none.encode("a", add_bos=True) == none.encode("a")


@pytest.mark.parametrize("bad", [-1, 49152, 2**40, 1.5, "1", None])
def test_invalid_ids(bad: Any) -> None:
    for call in (smollm2().token_bytes, lambda i: smollm2().decode_bytes([5, i])):
        with pytest.raises(ConfigError, match=r"token id"):
            call(bad)


def test_numpy_ids() -> None:
    ids = np.array(smollm2().encode("numbers"), np.int32)
    assert smollm2().decode(ids) == "numbers"  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [b"bytes", None, 3, ["a"]])
def test_text_must_be_text(bad: Any) -> None:
    with pytest.raises(ConfigError, match="must be a str"):
        smollm2().encode(bad)


def test_lone_surrogate() -> None:
    with pytest.raises(ConfigError, match=r"U\+D800, at index 2"):
        smollm2().encode("ab\ud800")


# Kinds of tokens


def test_added_tokens_are_found_in_text() -> None:
    added = [("<think>", USER), ("    ", USER), ("é", USER), ("<|tool|>", USER), ("<pad>", UNUSED)]
    tokenizer = Tokenizer.from_metadata(toy(extra_tokens=added))
    first = tokenizer.vocab_size - 5
    assert tokenizer.encode("<think>") == [first]
    assert tokenizer.encode("a    b")[1] == first + 1
    assert tokenizer.encode("é") == [first + 2]
    assert tokenizer.token_bytes(first + 2) == "é".encode()  # its text, not the byte 0xE9
    # By its looks a control token that a converter mislabelled: not from plain text.
    assert tokenizer.special_token_ids == {first + 3}
    assert first + 3 not in tokenizer.encode("<|tool|>")
    assert tokenizer.encode("<|tool|>", parse_special=True) == [first + 3]
    assert first + 4 not in tokenizer.encode("<pad>", parse_special=True)
    assert tokenizer.decode([first, first + 3]) == "<think>"


def test_longest_token_wins_at_the_leftmost_place() -> None:
    added = [("<a", CONTROL), ("<a>", CONTROL), ("a>b", CONTROL)]
    tokenizer = Tokenizer.from_metadata(toy(extra_tokens=added))
    a = tokenizer.vocab_size - 3
    ids = tokenizer.encode("<a>b<a<a>", parse_special=True)
    assert ids == [a + 1, *tokenizer.encode("b"), a, a + 1]


def test_special_tokens_never_come_out_of_merges() -> None:
    """A control token that merges could make: the merge is left out, the text keeps its bytes."""
    metadata = toy()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"].copy()
    victim = tokens.index("Ġquick")
    assert victim in Tokenizer.from_metadata(metadata).encode("a quick fox")
    types[victim] = CONTROL
    tokenizer = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.token_type": types})
    ids = tokenizer.encode("a quick fox")
    assert victim not in ids and tokenizer.decode(ids) == "a quick fox"


def test_end_tokens() -> None:
    added = [("<|im_end|>", CONTROL), ("<|eot_id|>", CONTROL), ("<end>", CONTROL), ("<x>", CONTROL)]
    size = len(trained("gpt-2")[0])
    im_end, eot, end, x = range(size, size + 4)
    plain = Tokenizer.from_metadata(toy(extra_tokens=added, eos_token_id=end))
    assert plain.eos_token_ids == {end, im_end, eot}
    more = Tokenizer.from_metadata(toy(extra_tokens=added, eos_token_id=x, eot_token_id=end))
    assert more.eos_token_ids == {end, x, im_end, eot}
    # The same texts, but not as control tokens, end nothing.
    other = Tokenizer.from_metadata(toy(extra_tokens=[("<EOT>", NORMAL)]))
    assert other.eos_token_ids == frozenset()


def test_declared_tokens_of_normal_type() -> None:
    """GPT-2's <|endoftext|> is special although its type says normal; a newline as EOS is text."""
    metadata = toy(extra_tokens=[("<|endoftext|>", NORMAL)])
    size = len(metadata["tokenizer.ggml.tokens"])
    declared = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.eos_token_id": size - 1})
    assert declared.special_token_ids == declared.eos_token_ids == {size - 1}
    assert size - 1 not in declared.encode("<|endoftext|>")
    newline = metadata["tokenizer.ggml.tokens"].index("Ċ")
    text = Tokenizer.from_metadata(toy(eos_token_id=newline))
    assert text.eos_token_ids == {newline} and text.special_token_ids == frozenset()
    assert text.encode("\n") == [newline]


def test_file_without_token_types() -> None:
    metadata = toy(extra_tokens=[("<|endoftext|>", NORMAL)])
    del metadata["tokenizer.ggml.token_type"]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.special_token_ids == tokenizer.eos_token_ids == {tokenizer.vocab_size - 1}


def test_of_two_tokens_of_one_spelling_the_last_is_used() -> None:
    tokenizer = Tokenizer.from_metadata(toy(extra_tokens=[("a", NORMAL)]))
    assert tokenizer.encode("a") == [tokenizer.vocab_size - 1]


@pytest.mark.parametrize(
    ("pre", "declared", "expected"),
    [("llama-bpe", None, True), ("qwen2", None, False), ("llama-bpe", False, False),
     ("qwen2", True, True)],
)  # fmt: skip
def test_adds_bos(pre: str, declared: bool | None, expected: bool) -> None:
    extra = {} if declared is None else {"add_bos_token": declared}
    assert Tokenizer.from_metadata(toy(pre, bos_token_id=3, **extra)).adds_bos is expected
    assert Tokenizer.from_metadata(toy(pre, **extra)).adds_bos is False  # no BOS to add


# What is refused


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "bert"}, UnsupportedError, "tokeniser 'bert'"),
        ({"model": None}, UnsupportedError, "tokeniser None"),
        ({"model": ["gpt2"]}, UnsupportedError, "tokenizer.ggml.model"),
        ({"pre": "tekken"}, UnsupportedError, "pre-tokeniser 'tekken'"),
        ({"pre": ["gpt-2"]}, UnsupportedError, "pre-tokeniser"),
        ({"add_bos_token": 1}, ModelFileError, "add_bos_token must be a bool"),
        ({"pre": None}, UnsupportedError, "tokenizer.ggml.pre is missing"),
        ({"tokens": None}, ModelFileError, "tokens is missing or empty"),
        ({"tokens": []}, ModelFileError, "tokens is missing or empty"),
        ({"tokens": np.arange(3)}, ModelFileError, "tokens must be an array of strings"),
        ({"merges": "a b"}, ModelFileError, "merges must be an array of strings"),
        ({"merges": ["a b", "ab"]}, ModelFileError, r"merges\[0\] is 'a b'"),
        ({"merges": ["nonsense"]}, ModelFileError, r"merges\[0\] is 'nonsense'"),
        ({"merges": ["a b c"]}, ModelFileError, r"merges\[0\] is 'a b c'"),
        ({"token_type": np.array([1, 1])}, ModelFileError, "token_type has 2 entries for"),
        ({"token_type": [1.5]}, ModelFileError, "token_type must be an array of integers"),
        ({"bos_token_id": 10**6}, ModelFileError, "bos_token_id is 1000000"),
        ({"eos_token_id": -5}, ModelFileError, "eos_token_id is -5"),
        ({"eos_token_id": "2"}, ModelFileError, "eos_token_id must be an integer"),
        ({"eos_token_id": True}, ModelFileError, "eos_token_id must be an integer"),
    ],
)  # fmt: skip
def test_refuses(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    metadata = toy()
    for key, value in changes.items():
        metadata[f"tokenizer.ggml.{key}"] = value
        if value is None:
            del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(error, match=message):
        Tokenizer.from_metadata(metadata)


def test_pre_can_be_named_by_the_caller() -> None:
    metadata = toy("qwen2")
    del metadata["tokenizer.ggml.pre"]
    assert Tokenizer.from_metadata(metadata, pre="qwen2").encode("a 12")
    with pytest.raises(UnsupportedError, match="'nope'"):
        Tokenizer.from_metadata(toy(), pre="nope")


def test_token_type_out_of_range() -> None:
    metadata = toy()
    metadata["tokenizer.ggml.token_type"] = metadata["tokenizer.ggml.token_type"].copy()
    metadata["tokenizer.ggml.token_type"][3] = 7
    with pytest.raises(ModelFileError, match="between 1 and 6"):
        Tokenizer.from_metadata(metadata)


def test_from_a_file_with_odd_bytes(tmp_path: Path) -> None:
    """Tokens that are no UTF-8 keep their bytes, and are out of reach for text."""
    metadata = toy()
    metadata["tokenizer.ggml.tokens"] = [
        token.encode() for token in metadata["tokenizer.ggml.tokens"]
    ] + [b"\xff\xfe", b"<|\xff|>"]
    metadata["tokenizer.ggml.token_type"] = [
        *metadata["tokenizer.ggml.token_type"].tolist(), NORMAL, CONTROL,
    ]  # fmt: skip
    path = Gguf(metadata).write(tmp_path / "model.gguf")
    tokenizer = Tokenizer.from_gguf(_C.GgufFile(path))
    assert tokenizer.token_table[-2:] == [b"\xff\xfe", b"<|\xff|>"]
    text = "a \ufffd <|\ufffd|>"
    assert tokenizer.decode(tokenizer.encode(text, parse_special=True)) == text
    assert tokenizer.token_table == Tokenizer.from_gguf(path).token_table


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, flarecore.tokenizer, flarecore.tokenizer.chat_template, flarecore.model_files;"
        "print(*{'tokenizers', 'jinja2', 'transformers', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
