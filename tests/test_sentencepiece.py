"""SentencePiece ids against the library, transformers' own conversion and hand-made models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers_gguf import Gguf, Typed
from helpers_sentencepiece import (
    BLANK,
    BYTE,
    gemma,
    gemma_metadata,
    library,
    needed_ids,
    odd_strings,
    reduced,
    texts,
    trained_metadata,
)
from helpers_tokenizer import CONTROL, NORMAL, UNKNOWN, UNUSED, USER, mixed_strings

from flarecore.errors import ConfigError, ModelFileError, UnsupportedError
from flarecore.tokenizer import Tokenizer


def transformers_tokenizer(metadata: dict[str, Any], architecture: str, folder: Path) -> Any:
    """transformers' conversion of a GGUF file that holds this vocabulary and no tensors."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    entries: dict[Any, Any] = {"general.architecture": architecture}
    for key, value in metadata.items():
        is_types = key.endswith("token_type")
        entries[key] = Typed("int32", [int(v) for v in value]) if is_types else value
        if key.endswith("scores"):
            entries[key] = Typed("float32", [float(v) for v in value])
    Gguf(entries).write(folder / "vocabulary.gguf")
    return transformers.AutoTokenizer.from_pretrained(folder, gguf_file="vocabulary.gguf")


# Gemma


def test_gemma_equals_transformers(tmp_path: Path) -> None:
    """On what encoding these texts can come across of the vocabulary: all of it takes a minute."""
    strings = texts(1000, seed=1)
    assert len(strings) > 990
    turn = "<start_of_turn>user\nHello 世界<end_of_turn>\n"
    metadata = gemma_metadata()
    ids = needed_ids(metadata, [*strings, turn])
    assert 2000 < len(ids) < 60000
    theirs = transformers_tokenizer(reduced(metadata, ids), "gemma3", tmp_path)
    num_bytes = 0
    for text in strings:
        expected = [ids[i] for i in theirs.encode(text, add_special_tokens=False)]
        assert gemma().encode(text) == expected, repr(text)
        num_bytes += sum(238 <= i < 494 for i in expected)
    assert num_bytes > 1000, "byte fallback was not met"
    with_bos = [ids[i] for i in theirs.encode(turn)]
    assert with_bos[:2] == [2, 105] and 106 in with_bos
    assert gemma().encode(turn, add_bos=True, parse_special=True) == with_bos


def test_gemma_equals_the_library_on_the_whole_vocabulary() -> None:
    processor = library(gemma_metadata())
    strings = mixed_strings(700, seed=3) + odd_strings(700, seed=4, longest_run=70)
    strings += ["", " ", BLANK, f"a{BLANK} {BLANK}{BLANK}b", " " * 32, " " * 63, "\n" * 40 + " a"]
    long = "".join(strings)
    assert len(long) > 30000
    for text in [*strings, long]:
        assert gemma().encode(text) == processor.EncodeAsIds(text), repr(text[:200])


def test_more_than_31_blanks_follow_the_model_not_the_file_conversion() -> None:
    """Gemma's own tokenizer.json and the library take 31 blanks first, whatever comes.

    transformers' conversion of a GGUF file orders merges by id and gets 16 + 17 of 33.
    """
    ids = gemma().encode(" " * 33)
    assert [gemma().token_bytes(i) for i in ids] == [b" " * 31, b" " * 2]


def test_facts_of_gemma() -> None:
    tokenizer = gemma()
    assert tokenizer.vocab_size == len(tokenizer.token_table) == 262144
    assert tokenizer.bos_token_id == 2 and tokenizer.adds_bos is True
    assert tokenizer.eos_token_ids == {1, 106}  # <eos> is declared, <end_of_turn> ends too
    assert {0, 1, 2, 3, 105, 106, 262143} <= tokenizer.special_token_ids
    assert len(tokenizer.special_token_ids) == 6249
    assert tokenizer.chat_template is None


def test_bytes_of_every_gemma_token() -> None:
    metadata = gemma_metadata()
    types = metadata["tokenizer.ggml.token_type"]
    table = gemma().token_table
    assert [table[i] for i in np.flatnonzero(types == BYTE)] == [bytes([b]) for b in range(256)]
    for i, token in enumerate(metadata["tokenizer.ggml.tokens"]):
        if types[i] != BYTE:
            assert table[i].decode() == (token.replace(BLANK, " ") if types[i] == NORMAL else token)


def test_bytes_survive_the_round_trip() -> None:
    for text in texts(600, seed=5):
        assert gemma().decode_bytes(gemma().encode(text)) == text.encode()
        assert gemma().decode(gemma().encode(text)) == text


def test_special_tokens_and_byte_names_do_not_come_from_text() -> None:
    tokenizer = gemma()
    for text in ("<eos>", "<bos>a<unused7>", "x<0x0A>y", "<start_of_turn>user\n", "<unk>"):
        ids = tokenizer.encode(text)
        assert not set(ids) & tokenizer.special_token_ids
        assert not {i for i in ids if 238 <= i < 494}
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a<eos>b", parse_special=True)[1] == 1
    # Leftmost, then longest; what is not complete stays text.
    assert tokenizer.encode("<unused1<unused12>", parse_special=True)[-1] == 18


# Models that the library trained


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_trained_models_equal_the_library(prefix: bool, byte_fallback: bool) -> None:
    metadata = trained_metadata(prefix=prefix, byte_fallback=byte_fallback)
    tokenizer, processor = (
        Tokenizer.from_metadata(metadata),
        library(metadata, byte_fallback=byte_fallback),
    )
    num_unknown = 0
    for text in [*texts(800, seed=6), "", " ", "  quick", "qu qui quick"]:
        ids = tokenizer.encode(text)
        assert ids == processor.EncodeAsIds(text), repr(text)
        num_unknown += ids.count(0)
        if byte_fallback:
            expected = (" " if prefix and text else "") + text
            assert tokenizer.decode(ids) == expected
    assert (num_unknown > 100) is not byte_fallback


@pytest.mark.parametrize("seed", range(4))
def test_unused_pieces_and_equal_scores_equal_the_library(seed: int) -> None:
    metadata = trained_metadata(prefix=bool(seed % 2))
    rng = np.random.default_rng(seed)
    types = np.array(metadata["tokenizer.ggml.token_type"])
    normal = np.flatnonzero(types == NORMAL)
    types[rng.choice(normal, len(normal) // 3, replace=False)] = UNUSED
    metadata["tokenizer.ggml.token_type"] = types
    scores = np.array(metadata["tokenizer.ggml.scores"], np.float32)
    metadata["tokenizer.ggml.scores"] = np.floor(scores / 40) * 40
    tokenizer, processor = Tokenizer.from_metadata(metadata), library(metadata)
    for text in texts(600, seed=seed + 10):
        assert tokenizer.encode(text) == processor.EncodeAsIds(text), repr(text)


def test_llama_2_equals_transformers(tmp_path: Path) -> None:
    """Where both put a blank in front: transformers adds none to a text that begins with one."""
    metadata = trained_metadata()
    theirs = transformers_tokenizer(metadata, "llama", tmp_path)
    tokenizer = Tokenizer.from_metadata(metadata)
    count = 0
    # The library puts a blank after special tokens too, and none before user-defined ones.
    apart = ("<s>", "</s>", "<td>", "</td>", "qu", "  ")
    for text in texts(1000, seed=7):
        if text[:1] != " " and not any(name in text for name in apart):
            count += 1
            expected = theirs.encode(text, add_special_tokens=False)
            assert tokenizer.encode(text) == expected, repr(text)
    assert count > 300
    assert tokenizer.adds_bos is True  # what holds where the file says nothing


def test_every_part_after_a_special_token_begins_with_a_blank() -> None:
    tokenizer = Tokenizer.from_metadata(trained_metadata())
    ids = tokenizer.encode("<s>the<td>the", add_bos=False, parse_special=True)
    assert tokenizer.decode(ids, skip_special=False) == "<s> the<td>the"
    assert ids[0] == 1


# Models made by hand


def model(pieces: list[tuple[str, float, int]], **extra: Any) -> Tokenizer:
    """<unk>, the pieces, then all bytes."""
    rows = [("<unk>", 0.0, UNKNOWN), *pieces, *((f"<0x{b:02X}>", 0.0, BYTE) for b in range(256))]
    tokens, scores, types = (list(column) for column in zip(*rows, strict=True))
    metadata = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": types,
                "unknown_token_id": 0, "add_space_prefix": False, **extra}  # fmt: skip
    return Tokenizer.from_metadata(
        {f"tokenizer.ggml.{key}": v for key, v in metadata.items() if v is not None}
    )


LETTERS = [(c, -50.0, NORMAL) for c in "abc"]


def pieces_of(tokenizer: Tokenizer, text: str) -> list[bytes]:
    return [tokenizer.token_bytes(i) for i in tokenizer.encode(text)]


def test_higher_scores_are_joined_first() -> None:
    pair = [*LETTERS, ("ab", -1.0, NORMAL), ("bc", -2.0, NORMAL)]
    assert pieces_of(model(pair), "abc") == [b"ab", b"c"]
    pair[-1] = ("bc", 0.5, NORMAL)
    assert pieces_of(model(pair), "abc") == [b"a", b"bc"]
    pair[-1] = ("bc", -1.0, NORMAL)  # equal: the leftmost
    assert pieces_of(model(pair), "abcabc") == [b"ab", b"c", b"ab", b"c"]


def test_a_piece_without_parts_cannot_be_reached() -> None:
    tokenizer = model([*LETTERS, ("abc", 5.0, NORMAL)])
    assert pieces_of(tokenizer, "abc") == [b"a", b"b", b"c"]


def test_an_unused_piece_is_a_step_to_longer_ones_only() -> None:
    tokenizer = model([*LETTERS, ("ab", 1.0, UNUSED), ("abc", 0.0, NORMAL)])
    assert pieces_of(tokenizer, "abcab") == [b"abc", b"a", b"b"]


def test_user_defined_pieces_are_longest_first_and_stay_apart() -> None:
    pieces = [*LETTERS, ("ab", 1.0, NORMAL), ("bb", -1.0, USER), ("bbb", -1.0, USER),
              ("b c", 0.0, USER), ("abb", 9.0, NORMAL)]  # fmt: skip
    tokenizer = model(pieces)
    assert pieces_of(tokenizer, "abbbbb") == [b"a", b"bbb", b"bb"]
    assert pieces_of(tokenizer, "ab ca") == [b"a", b"b c", b"a"]


def test_of_two_pieces_with_one_text_the_later_counts() -> None:
    tokenizer = model([("a", 0.0, NORMAL), ("a", 0.0, NORMAL), ("b", 0.0, NORMAL)])
    assert tokenizer.encode("ab") == [2, 3]


def test_declared_special_tokens_are_not_joined() -> None:
    """A converter may leave </s> a normal piece."""
    pieces = [*LETTERS, ("ab", 1.0, NORMAL)]
    assert model(pieces, eos_token_id=4).encode("ab") == [1, 2]
    assert model(pieces).encode("ab") == [4]


def test_without_bytes_a_run_of_unknown_characters_is_one_token() -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "a", BLANK],
        "tokenizer.ggml.scores": np.zeros(3, np.float32),
        "tokenizer.ggml.token_type": [UNKNOWN, NORMAL, NORMAL],
        "tokenizer.ggml.unknown_token_id": 0,
    }
    assert Tokenizer.from_metadata(metadata).encode("xyaz") == [2, 0, 1, 0]
    del metadata["tokenizer.ggml.unknown_token_id"]
    assert Tokenizer.from_metadata(metadata).encode("xyaz") == [2, 1]


def test_long_texts() -> None:
    tokenizer = model([*LETTERS, *(("a" * 2**n, float(-n), NORMAL) for n in range(1, 17))])
    assert [len(piece) for piece in pieces_of(tokenizer, "a" * 100_001)] == [
        65536, 32768, 1024, 512, 128, 32, 1,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"scores": None}, ModelFileError, "scores is missing"),
        ({"scores": "high"}, ModelFileError, "scores must be an array of numbers"),
        ({"scores": [0.0]}, ModelFileError, "of 258 tokens has 1 scores"),
        ({"scores": [float("nan")] * 258}, ModelFileError, r"scores\[0\] is -?nan"),
        ({"scores": [float("inf")] * 258}, ModelFileError, r"scores\[0\] is inf"),
        ({"token_type": [BYTE] * 258}, ModelFileError, r'tokens\[0\] is a byte token, "<unk>"'),
        ({"add_space_prefix": 1}, ModelFileError, "add_space_prefix must be a bool"),
        ({"precompiled_charsmap": np.array([1, 2])}, UnsupportedError, "charsmap is set"),
        ({"remove_extra_whitespaces": True}, UnsupportedError, "whitespaces is set"),
    ],
)
def test_refuses(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    model([("a", 0.0, NORMAL)])
    with pytest.raises(error, match=message):
        model([("a", 0.0, NORMAL)], **changes)


def test_lone_surrogates_in_text_and_tokens() -> None:
    tokenizer = model([("a\udcff", 0.0, NORMAL), ("a", 0.0, NORMAL), ("", 0.0, NORMAL)])
    assert tokenizer.token_bytes(1) == b"a\xff"
    with pytest.raises(ConfigError, match=r"U\+DCFF, at index 1"):
        tokenizer.encode("a\udcff")


def test_control_tokens_are_their_text() -> None:
    tokenizer = model([(f"<{BLANK}x>", 0.0, CONTROL)])
    assert tokenizer.token_bytes(1).decode() == f"<{BLANK}x>"
    assert tokenizer.decode([1]) == ""
