"""Attached passages: what is shared, what must not be, and what is refused."""

import contextlib

import pytest
from helpers import DECODE, TinyLlama, open_engine, random_ids
from helpers_passages import (
    PASSAGES,
    RESERVED,
    VOCABULARY,
    bits,
    open_with,
    prompt_of,
    refuses_other_heads,
    shares_equal_prefixes,
)

from flarecore.errors import (
    CancelledError,
    ConfigError,
    ContextOverflowError,
    FlarecoreError,
    OutOfBlocksError,
    SequenceBusyError,
)
from flarecore.passage_kv import PassageKv


def test_attaching_copies_nothing_and_costs_one_row():
    engine = open_engine(TinyLlama())
    head, question = prompt_of(64, 64)
    trunk = open_with(engine, head, question)
    passages = [trunk.encode_passage(ids) for ids in PASSAGES]
    held = engine.stats().num_held_blocks
    rows = engine.stats().num_rows
    forks = [trunk.fork() for _ in range(5)]
    for fork in forks:
        fork.attach(passages)
    assert engine.stats().num_held_blocks == held
    results = {bits(fork, 1) for fork in forks}
    assert len(results) == 1
    assert engine.stats().num_rows == rows + len(forks)


def test_prefixes_are_shared_only_where_they_are_equal():
    engine = open_engine(TinyLlama(), compute="int8")
    head, question = prompt_of(40, 100)
    ids = [*head, *question]

    def reused(sequence):
        return sequence.extend(random_ids(2)).num_reused

    shares_equal_prefixes(engine, ids, 128)
    # What saw passages is nobody else's.
    with open_with(engine, head, question, PASSAGES[:1], 40) as sequence:
        bits(sequence, 60)
    with open_with(engine, head, question, PASSAGES[:1], 40) as sequence:
        assert sequence.decode(1, **DECODE).stats.num_reused == 40
    engine.check_integrity()


def encoded_by(engine, head, question):
    """A passage, and what its sequence says with it attached; the sequence is closed."""
    with open_with(engine, head, question) as sequence:
        passage = sequence.encode_passage(PASSAGES[0])
        sequence.attach([passage])
        return passage, bits(sequence)


def test_passages_outlive_their_sequence_and_stay_with_their_model():
    engine = open_engine(TinyLlama())
    head, question = prompt_of(12)
    passage, expected = encoded_by(engine, head, question)
    assert (passage.num_tokens, passage.token_ids, passage.head_ids) == (40, PASSAGES[0], head)
    assert passage.size_bytes == 2 * engine.stats().block_size_bytes == passage.data.size
    with pytest.raises(ValueError, match="read-only"):
        passage.data[0] = 1
    with open_with(engine, head, question) as sequence:
        sequence.attach([passage])
        assert bits(sequence) == expected
    for other in (open_engine(TinyLlama(seed=2)), open_engine(TinyLlama(), compute="int8")):
        with open_with(other, head, question) as sequence, \
                pytest.raises(ConfigError, match="another model, compute mode or kv_format"):
            sequence.attach([passage])


def test_engines_of_one_model_share_passages():
    from flarecore import Engine

    first = open_engine(TinyLlama())
    head, question = prompt_of(12)
    passage, expected = encoded_by(first, head, question)
    first.close()
    with Engine(first.model, compute="float32") as second, \
            open_with(second, head, question) as sequence:
        sequence.attach([passage])
        assert bits(sequence) == expected


def test_wrong_calls_are_refused_and_change_nothing():
    engine = open_engine(TinyLlama())
    head, question = prompt_of(12)
    sequence = open_with(engine, head, question, PASSAGES[:1])
    passage = sequence.encode_passage(PASSAGES[0])
    with sequence.fork() as fork:
        expected = bits(fork)
    with pytest.raises(ConfigError, match="reserves positions for 1 to 75"):
        sequence.encode_passage(random_ids(RESERVED + 1))
    with pytest.raises(ConfigError, match="reserves positions"):
        sequence.encode_passage([])
    with pytest.raises(ConfigError, match="vocabulary"):
        sequence.encode_passage([VOCABULARY])
    for wrong in (11, 0, -1):
        with pytest.raises(ConfigError, match="from_token"):
            sequence.attach([passage], from_token=wrong)
    with pytest.raises(ConfigError, match="PassageKv"):
        sequence.attach([PASSAGES[0]])
    refuses_other_heads(engine, head, question, passage, sequence)
    with sequence.fork() as fork:
        assert bits(fork) == expected
    engine.check_integrity()


def test_reserved_positions_count_towards_the_context():
    engine = open_engine(TinyLlama(context_length=128))
    with pytest.raises(ContextOverflowError, match="leave no room"):
        engine.sequence(num_head_tokens=60, num_reserved=68)
    sequence = engine.sequence(random_ids(40), num_head_tokens=10, num_reserved=75)
    with pytest.raises(ContextOverflowError, match="reserved"):
        sequence.extend(random_ids(14))
    decoded = sequence.decode(100, **DECODE)
    assert decoded.stop_reason == "context_length"
    assert sequence.num_tokens + 75 == 128


def test_a_busy_sequence_and_failed_encoding():
    engine = open_engine(TinyLlama())
    head, question = prompt_of(12)
    sequence = open_with(engine, head, question)
    passage = sequence.encode_passage(PASSAGES[0])
    operation = sequence.decode_async(200, **DECODE)
    with contextlib.suppress(SequenceBusyError):
        sequence.attach([passage])
        assert operation.done()
    operation.cancel()
    with contextlib.suppress(CancelledError):
        operation.result()
    held = engine.stats().num_held_blocks
    with pytest.raises(FlarecoreError):
        sequence.encode_passage_async(PASSAGES[2], deadline_ms=1e-6).result()
    cancelled = [sequence.encode_passage_async(PASSAGES[2]) for _ in range(4)]
    for one in cancelled:
        one.cancel()
    for one in cancelled:
        with contextlib.suppress(CancelledError):
            one.result()
    engine.check_integrity()
    assert engine.stats().num_held_blocks == held


def test_encoding_without_room_leaves_everything_as_it_was():
    with open_engine(TinyLlama()) as engine:
        size = engine.stats().block_size_bytes
    engine = open_engine(TinyLlama(), kv_cache_bytes=3 * size)
    head, question = prompt_of(12)
    sequence = open_with(engine, head, question)
    with pytest.raises(OutOfBlocksError):
        sequence.encode_passage(PASSAGES[2])
    engine.check_integrity()
    assert engine.stats().num_held_blocks == 2
    assert isinstance(sequence.encode_passage(PASSAGES[1]), PassageKv)
