"""The table of tokens at which a run of decode steps must stop for the host."""

import numpy as np
import pytest
from helpers_gpu import gpu_model
from triton_env import DEVICE, torch

from flarecore import _C
from flarecore.gpu.token_flags import STOP_BITS, TokenFlagTable, flags_of_tokens, may_complete

EOS, MAY_END, SETTLES = 1, 2, 4


@pytest.fixture(scope="module")
def model():
    return gpu_model()


def test_no_token_that_may_end_a_sentence_is_missed(model):
    """Every opening of an end by the native detector, over texts cut into bytes and pairs."""
    tokens = model.tokenizer.token_table
    flags = flags_of_tokens(tokens, model.tokenizer.eos_token_ids)
    marks = _C.sentence_marks()
    rng = np.random.default_rng(7)
    pieces = [*marks, *"aB1 (\")]»”—,x。", " ", "\r\n", "né", "山", "e.g", "Dr"]
    opened = 0
    for _ in range(300):
        data = "".join(rng.choice(pieces, 14)).encode()
        if rng.random() < 0.3:  # no valid text at all
            data = bytes(b for b in data if rng.random() < 0.8)
        state = _C.DecodeState(model._native, 99, True, False, [], 0.0, False)
        was_looking = False
        for byte in data:
            state.accept([byte], [1.0])
            is_looking = state.is_looking_ahead or state.is_finished
            if is_looking and not was_looking:
                assert flags[byte] & MAY_END, (data, byte)
                opened += 1
            was_looking = is_looking
            if state.is_finished:
                break
    assert opened > 100


def test_flags_of_tokens():
    agrave, ideographic = "à".encode(), "。".encode()
    tokens = [b"a", b".", b'."', b" The", b"\n\n", b"", ideographic, ideographic[:2],
              ideographic[2:] + b"x", ideographic[1:], agrave[1:], "”".encode(), b"a.b", b",",
              b"<e>", "…".encode() + b" ", "２".encode()]  # fmt: skip
    flags = flags_of_tokens(tokens, [14])
    may_end = [bool(f & MAY_END) for f in flags]
    assert may_end == [text in (b".", b'."', b"\n\n", ideographic, ideographic[2:] + b"x",
                                ideographic[1:], b"a.b", "…".encode() + b" ")
                       for text in tokens]  # fmt: skip
    waits_on = {b".", b'."', b"\n\n", b"", ideographic, ideographic[:2], "”".encode(),
                "…".encode() + b" "}  # fmt: skip
    assert [not f & SETTLES for f in flags] == [text in waits_on for text in tokens]
    assert [i for i, f in enumerate(flags) if f & EOS] == [14]


def test_tokens_that_may_complete_a_stop_string():
    """Against the definition: some text before the token makes the string end inside it."""
    rng = np.random.default_rng(3)
    tokens = [bytes(rng.choice(list(b"ab\n:"), rng.integers(0, 5)).tolist()) for _ in range(200)]
    for stop in (["ab:"], ["\n\n", "b"], ["aaaa", ":a:b"]):
        got = may_complete(tokens, stop)
        for text, marked in zip(tokens, got, strict=True):
            heads = {s.encode()[:i] for s in stop for i in range(len(s))}
            wanted = any(s.encode() in head + text for s in stop for head in heads)
            assert marked == wanted, (text, stop)
        assert 0 < got.sum() < len(tokens)


def test_stop_strings_share_the_bits_of_the_table():
    table = TokenFlagTable([b"a", b"b", b"c", b"d."], [], torch.device(DEVICE))
    sets = [(letter,) for letter in "abcd"]
    assert table.stop_bits([(), sets[0], sets[0]]) == {sets[0]: STOP_BITS[0]}
    bits = table.stop_bits(sets[:2])
    assert bits == {sets[0]: STOP_BITS[0], sets[1]: STOP_BITS[1]}
    assert table.device.tolist() == [12, 20, 4, 6], "each marks its own token"
    bits = table.stop_bits([sets[2], sets[1]])  # the one used longest ago makes room
    assert bits[sets[1]] == STOP_BITS[1] and bits[sets[2]] == STOP_BITS[0]
    assert table.device.tolist() == [4, 20, 12, 6]
    assert sorted(table.stop_bits(sets)) == sets[:2], "no room for more at a time"
