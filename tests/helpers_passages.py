"""What the CPU engine and the GPU engine promise alike about attached passages."""

from __future__ import annotations

import pytest
from helpers import DECODE, random_ids, result_bits

from flarecore.errors import ConfigError

VOCABULARY = 271  # of the tiny models
QUESTION = random_ids(40, seed=7)
RESERVED = 75
PASSAGES = [random_ids(n, seed=100 + n) for n in (40, 1, 75, 32)]


def open_with(engine, head, question, passages=(), from_token=None, **extra):
    """A sequence over a head and a question, with these passages attached."""
    sequence = engine.sequence(
        [*head, *question], num_head_tokens=len(head), num_reserved=RESERVED, **extra)
    sequence.attach([sequence.encode_passage(ids) for ids in passages], from_token=from_token)
    return sequence


def refuses_other_heads(engine, head, question, passage, sequence):
    """A passage encoded behind `head`, 12 tokens, attaches where head and room are the same."""
    with pytest.raises(ConfigError, match="inside the head"):
        sequence.truncate(11)
    with open_with(engine, head[:-1], question) as other, \
            pytest.raises(ConfigError, match="another head"):
        other.attach([passage])
    with engine.sequence(head) as plain, pytest.raises(ConfigError, match="num_reserved"):
        plain.attach([passage])
    with engine.sequence(head, num_head_tokens=12, num_reserved=39) as narrow, \
            pytest.raises(ConfigError, match="reserves 39"):
        narrow.attach([passage])
    with engine.sequence(head[:5], num_head_tokens=12, num_reserved=75) as short:
        for call in (lambda: short.attach([passage]), lambda: short.encode_passage(PASSAGES[0])):
            with pytest.raises(ConfigError, match="its head 12"):
                call()


def shares_equal_prefixes(engine, ids, num_whole):
    """`num_whole` tokens of `ids` are in whole blocks; nothing is cached yet."""
    def fresh(**options):
        with engine.sequence(**options) as sequence:
            return sequence.extend(ids).num_reused

    assert fresh() == 0
    assert fresh() == num_whole
    # The head's only whole block is that of the plain sequence.
    assert fresh(num_head_tokens=40, num_reserved=RESERVED) == 32
    assert fresh(num_head_tokens=40, num_reserved=RESERVED) == num_whole
    assert fresh(num_head_tokens=40, num_reserved=RESERVED + 1) == 32
    assert fresh(num_head_tokens=39, num_reserved=RESERVED) == 32
    assert fresh(num_head_tokens=64, num_reserved=RESERVED) == 64


def prompt_of(num_head, num_question=40):
    return random_ids(num_head, seed=num_head), random_ids(num_question, seed=7)


def bits(sequence, num_tokens=9):
    return result_bits(sequence.decode(num_tokens, **DECODE))
