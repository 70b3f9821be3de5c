"""Sentence boundary: hand-cut texts, any tokenisation, and the reference twin."""

import copy
import random
import unicodedata

import pytest
import sentence_cases
import sentence_cases_languages
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecore import _C
from flarecore.errors import ConfigError
from flarecore.reference import text as reference
from flarecore.reference import text_chars
from flarecore.text import SentenceBoundary, split_sentences

TEXTS = {
    name: text
    for module in (sentence_cases, sentence_cases_languages)
    for name, text in vars(module).items()
    if name.isupper()
}
BLOCKS = tuple(TEXTS)


def cases(block: str) -> list[list[str]]:
    rows = TEXTS[block].strip("\n").split("\n")
    return [[part for part in row.replace("↵", "\n").split("‖") if part] for row in rows]


ALL_CASES = [case for block in BLOCKS for case in cases(block)]


def feed_all(tokens: list[bytes], **options: object) -> tuple[int, int]:
    """Tokens of the first sentence, and how many tokens were fed until that was decided."""
    boundary = SentenceBoundary(**options)  # type: ignore[arg-type]
    for count, token in enumerate(tokens, start=1):
        ended = boundary.feed(token)
        if ended:
            return ended, count
    return boundary.finish(), len(tokens)


def cut(data: bytes, rng: random.Random, longest: int) -> list[bytes]:
    tokens = []
    while data:
        size = rng.randint(1, longest)
        tokens.append(data[:size])
        data = data[size:]
    return tokens


def num_tokens_covering(tokens: list[bytes], num_bytes: int) -> int:
    total = 0
    for count, token in enumerate(tokens, start=1):
        total += len(token)
        if total >= num_bytes:
            return count
    raise AssertionError("more bytes than tokens")


@pytest.mark.parametrize("block", BLOCKS)
def test_hand_cut_texts(block: str) -> None:
    wrong = [(c, split_sentences("".join(c))) for c in cases(block)]
    assert [(want, got) for want, got in wrong if want != got] == []


def test_the_table_is_large_and_mostly_not_trivial() -> None:
    assert len(ALL_CASES) >= 350
    assert sum(len(case) > 1 for case in ALL_CASES) >= 250
    assert sum(len(case) == 1 for case in ALL_CASES) >= 50


def test_reference_twin_cuts_the_same() -> None:
    for case in ALL_CASES:
        data = "".join(case).encode()
        assert reference.split_sentences(data) == _C.split_sentences(data), case


def test_end_does_not_depend_on_the_tokens() -> None:
    rng = random.Random(5)
    for case in ALL_CASES:
        data, end = "".join(case).encode(), len(case[0].encode())
        for longest in (1, 2, 3, 5, 9, 40):
            tokens = cut(data, rng, longest)
            assert feed_all(tokens)[0] == num_tokens_covering(tokens, end), (case, tokens)


def test_streaming_with_reset_gives_every_sentence() -> None:
    text = (
        "Dr. Kim left. 他走了。“好。”She came back at 5 p.m. on Monday.\n\nThen:\n1. One. 2. Two."
    )
    tokens = [bytes([b]) for b in text.encode()]
    boundary, sentences = SentenceBoundary(), []
    while tokens:
        boundary.reset()
        ended = next((n for n in map(boundary.feed, tokens) if n), 0) or boundary.finish()
        sentences.append(b"".join(tokens[:ended]).decode())
        tokens = tokens[ended:]
    assert sentences == split_sentences(text)
    assert len(sentences) == 7


@pytest.mark.parametrize(
    ("tokens", "ended", "fed"),
    [
        ([b"Yes", b".", b" He"], 2, 3),  # one token of look-ahead
        ([b"Yes", b".", b" ", b" He"], 2, 4),
        ([b"Yes", b'."', b" He"], 2, 3),
        ([b"Yes", b".", b'"', b" He"], 3, 4),
        ([b"Yes.", b"\n\n", b"He"], 2, 3),  # the line break stays with the finished sentence
        ([b"Yes", b".\n\n", b"He"], 2, 3),
        ([b"Yes", b".\n", b"\n", b"He"], 3, 4),
        ([b"Yes. He"], 1, 1),  # rounded up to the end of the token
        ([b"In the U", b".S", b".", b" He", b" is"], 3, 5),  # "He" may go on: Hesse
        ([b"In the U", b".S", b".", b" He", b"sse"], 5, 5),
        ("他走了。".encode(), 1, 1),
        (["他走了。".encode(), "她".encode()], 1, 2),
        (["他走了".encode(), b"\xe3\x80", b"\x82", "她".encode()], 3, 4),
        ([b"am 5", b".", b" Ma", b"i", b"."], 5, 5),  # an ordinal waits for the whole word
        ([b"Is 5", b".", b" Ma", b"ry", b" is"], 2, 5),
        ([b"Is 5", b".", b" August", b" was"], 2, 4),
        ([b"Is 5", b".", b" August", b" ", b"1749"], 5, 5),
        ([b"Tard", b".", " »".encode(), b" Il"], 3, 4),  # the « stands in a sentence before
        ([b"Han gik", b".", " »".encode(), b"Ja"], 2, 4),
        ([b"\n", b"\n", b"Yes", b".", b" No"], 4, 5),  # leading line breaks are no sentence
        ([b"Yes", b"", b".", b"", b" No"], 3, 5),  # a token may have no bytes
    ],
)
def test_count_and_look_ahead(tokens: list[bytes], ended: int, fed: int) -> None:
    tokens = [tokens] if isinstance(tokens, bytes) else tokens
    assert feed_all(tokens) == (ended, fed)


def test_decided_is_sticky_until_reset() -> None:
    boundary = SentenceBoundary()
    assert [boundary.feed(t) for t in (b"Yes.", b" He", b" left. She")] == [0, 1, 1]
    assert boundary.finish() == 1
    boundary.reset()
    assert boundary.num_tokens == 0
    assert boundary.finish() == 0
    assert [boundary.feed(t) for t in (b" He left", b". She")] == [0, 2]


def test_finish_settles_what_was_open() -> None:
    assert feed_all([b"In the U.S.", b" He"]) == (1, 2)
    assert feed_all([b"In the U.S.", b" Senate"]) == (2, 2)
    assert feed_all([b"Yes.", b"\n"]) == (2, 2)
    assert feed_all([b"Yes.", b"\n", b"\xe4\xb8"]) == (2, 3)
    assert feed_all([]) == (0, 0)


def test_copy_is_independent() -> None:
    boundary = SentenceBoundary()
    boundary.feed(b"In the U.S.")
    for twin in (boundary.copy(), copy.copy(boundary)):
        assert [twin.feed(t) for t in (b" Senate", b".", b" It")] == [0, 0, 3]
    assert [boundary.feed(t) for t in (b" He", b" is")] == [0, 1]


def test_newline_option() -> None:
    text = "A heading\nThe text. \nMore\n\nend."
    assert split_sentences(text) == ["A heading\n", "The text. \n", "More\n\n", "end."]
    plain = split_sentences(text, newline_is_boundary=False)
    assert plain == ["A heading\nThe text.", " \nMore\n\nend."]


def test_min_chars() -> None:
    text = "No. Yes. Certainly."
    assert split_sentences(text) == ["No.", " Yes.", " Certainly."]
    assert split_sentences(text, min_chars=3) == ["No. Yes.", " Certainly."]
    text = "1. To.\n2. Go on."  # the marker does not count
    assert split_sentences(text, min_chars=2) == ["1. To.\n", "2. Go on."]
    assert split_sentences(text, min_chars=3) == [text]
    assert split_sentences("!? 。 ... -- \n *** \n") == ["!? 。 ... -- \n *** \n"]


@pytest.mark.parametrize("min_chars", [0, -1, 1000001, 10**30, "1", 1.0, None])
def test_min_chars_is_checked(min_chars: object) -> None:
    with pytest.raises(ConfigError, match="min_chars"):
        SentenceBoundary(min_chars=min_chars)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="min_chars"):
        split_sentences("Yes.", min_chars=min_chars)  # type: ignore[arg-type]


def test_parts_joined_are_the_text() -> None:
    for text in ("", " ", "\ud800. He", "a\0b. C", "\ufffd! \ufffd", "No.\ud83d\ude00 Yes."):
        assert "".join(split_sentences(text)) == text
    assert split_sentences("") == []


def test_an_endless_text_is_taken() -> None:
    boundary = SentenceBoundary()
    for piece in (b"word", b"1.", b".", b" \n", b"\xe4", b"[1", b'"', b"*", "字".encode()):
        boundary.reset()
        assert all(boundary.feed(piece * 50) >= 0 for _ in range(400))
    boundary.reset()
    assert boundary.feed(b"a" * 100_000) == 0
    assert boundary.feed(b". B") == 2


def test_characters_agree_with_unicodedata() -> None:
    old = unicodedata.ucd_3_2_0  # characters of every Python's Unicode
    names = {1: "word", 2: "space", 4: "punct", 8: "symbol"}
    for cp in range(0x20000):
        char = chr(cp)
        if old.category(char) in ("Cn", "Cs", "Co") or unicodedata.category(char) == "Cn":
            continue
        flags = _C.char_flags(cp)
        assert names[flags & 15] == text_chars.kind(char), hex(cp)
        assert bool(flags & 16) == text_chars.is_upper(char), hex(cp)
        assert bool(flags & 32) == text_chars.is_lower(char), hex(cp)
        assert bool(flags & 64) == text_chars.is_digit(char), hex(cp)
        assert bool(flags & 128) == text_chars.is_east(char), hex(cp)
        assert bool(flags & 256) == text_chars.is_unspaced(char), hex(cp)


WORDS = (
    "Dr Mr U.S e.g al No Vol Fig p.m Inc J R C vitamin Plan Step The He A I In it iPhone senate"
    " Senate x 3 14 2013 12 1.2 km Jan IV II Yahoo and etc Blvd PCs O'Brien AT&T é É Ж ж ლ 한국"
    " これ 中文 他 と は の ３ １４ Ａ ١ क ² ⁴ averyveryverylongword"
    " 28 8 1749 am der August Mai Jahrhundert FC XIV z B d h i R n Chr J C ad es l'avv John's"
    " La Die EE UU 𐐀 𐐨 د डॉ г т"
)
MARKS = [
    *".....",
    "..",
    "...",
    "…",
    "……",
    "?",
    "!",
    "?!",
    *"。！？；．।؟‽",
    *"\"'”“’‘»«」「』",
    "》",
]
MARKS += [
    ".-",
    " »",
    *"《）（)(][【】*_`~-–—#•,，、:;$%/\\@&🎉✅❤¿¡<>|",
    "[1]",
    "[2, 3]",
    "[^1]",
    "**",
    "\u200d",
]
BLANKS = [" ", " ", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u3000", "\u00a0", "\u200b", "\u2028"]
OTHERS = ["\0", "\ufeff", "\ufffd", "\u200f", "\u202c", "\ufe0f"]
BROKEN = [
    b"\xff",
    b"\xe4",
    b"\xe4\xb8",
    b"\x80",
    b"\xf0\x9f",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\xf4\x90",
    b"\xe0\x80\x80",
]
PIECES = st.one_of(
    *(
        st.sampled_from([p.encode() for p in group])
        for group in (WORDS.split(), MARKS, BLANKS, OTHERS)
    ),
    st.sampled_from(BROKEN),
)


@settings(derandomize=True, deadline=None, max_examples=600)
@given(
    pieces=st.lists(PIECES, min_size=1, max_size=14),
    seed=st.integers(0, 999),
    longest=st.sampled_from([1, 3, 6, 20]),
    newline_is_boundary=st.booleans(),
    min_chars=st.sampled_from([1, 1, 2, 5]),
)
def test_native_equals_the_reference_on_nasty_text(
    pieces: list[bytes], seed: int, longest: int, newline_is_boundary: bool, min_chars: int
) -> None:
    data = b"".join(pieces)
    options = {"newline_is_boundary": newline_is_boundary, "min_chars": min_chars}
    end = reference.first_sentence_end(data, **options)  # type: ignore[arg-type]
    tokens = cut(data, random.Random(seed), longest)
    assert feed_all(tokens, **options)[0] == num_tokens_covering(tokens, end)
    assert _C.split_sentences(data, **options)[0] == end
