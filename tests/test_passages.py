"""Attached passages: the engine against one masked forward pass, and against itself."""

import contextlib

import numpy as np
import pytest
from helpers import (
    DECODE,
    PROB_TOLERANCE,
    TinyLlama,
    open_engine,
    random_ids,
    result_bits,
    smollm2_engine,
    smollm2_path,
    tiny_llama_path,
    transformers_decoder,
)
from helpers_gemma import TinyGemma, tiny_gemma_path
from helpers_passages import (
    PASSAGES,
    RESERVED,
    open_with,
    refuses_other_heads,
    shares_equal_prefixes,
)

from flarecore import SamplingParams
from flarecore.errors import (
    CancelledError,
    ConfigError,
    ContextOverflowError,
    FlarecoreError,
    OutOfBlocksError,
    SequenceBusyError,
)
from flarecore.passage_kv import PassageKv
from flarecore.reference.decoder import ReferenceDecoder
from flarecore.reference.gemma_weights import load_gemma_gguf
from flarecore.reference.gguf_weights import load_llama_gguf
from flarecore.reference.parallel import lay_out, parallel_logits
from flarecore.reference.sampler import confidences

VOCABULARY = 271
QUESTION = random_ids(40, seed=7)
DRAWN = SamplingParams(temperature=1.0, seed=5)


def prompt_of(num_head, num_question=40):
    return random_ids(num_head, seed=num_head), random_ids(num_question, seed=7)


def greedy_of_reference(decoder, ids, num_head, passages, sees_from, chosen):
    """What greedy decoding gives after each prefix of `chosen`, and the probabilities."""
    logits = parallel_logits(decoder, [*ids, *chosen], num_head, RESERVED, passages, sees_from,
                             last=len(chosen) + 1)[:-1]
    return (logits.argmax(axis=-1).tolist(),
            confidences(logits)[np.arange(len(chosen)), chosen])


# ---- the approximation itself ----

def test_layout_masks_positions_and_passages():
    laid = lay_out([1, 2, 3, 4], 2, 10, [[5, 6], [7]], sees_from=3)
    assert laid.token_ids == [1, 2, 5, 6, 7, 3, 4]
    assert laid.positions == [0, 1, 2, 3, 2, 12, 13]
    assert laid.visible.astype(int).tolist() == [
        [1, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 1, 0],
        [1, 1, 1, 1, 1, 1, 1]]


DECODERS = {
    "llama": lambda: (open_engine(TinyLlama()), transformers_decoder(
        load_llama_gguf(tiny_llama_path(TinyLlama())))),
    "llama, numpy": lambda: (open_engine(TinyLlama(num_kv_heads=1)), ReferenceDecoder(
        load_llama_gguf(tiny_llama_path(TinyLlama(num_kv_heads=1))), "float32")),
    **{f"gemma, window {window}": lambda window=window: (
        open_engine(tiny_gemma_path(TinyGemma(window=window))),
        transformers_decoder(load_gemma_gguf(tiny_gemma_path(TinyGemma(window=window)))))
       for window in (24, 60, 90, 130)},
}
# (tokens of the head, how many tokens at the end see the passages)
SHAPES = [(0, 1), (10, 1), (32, 3), (45, 40)]


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize(("num_head", "num_seeing"), SHAPES)
def test_float32_equals_one_masked_forward_pass(kind, num_head, num_seeing):
    engine, decoder = DECODERS[kind]()
    head, question = prompt_of(num_head)
    ids = [4 + i % 250 for i in [*head, *question]]
    head, question = ids[:num_head], ids[num_head:]
    passages = [[4 + i % 250 for i in p] for p in PASSAGES]
    sees_from = len(ids) - num_seeing
    with engine, open_with(engine, head, question, passages, sees_from) as sequence:
        decoded = sequence.decode(24, until="eos", ignore_eos=True)
        plain = engine.sequence(ids).decode(24, until="eos", ignore_eos=True)
    chosen = list(decoded.token_ids)
    expected, probs = greedy_of_reference(decoder, ids, num_head, passages, sees_from, chosen)
    assert chosen == expected
    np.testing.assert_allclose(decoded.probs, probs, atol=PROB_TOLERANCE, rtol=0)
    assert len(set(chosen)) > 3
    assert not np.allclose(plain.probs, decoded.probs, atol=1e-3), "passages must matter"


def test_a_gap_alone_equals_later_positions():
    head, question = prompt_of(20)
    engine = open_engine(TinyLlama())
    decoder = transformers_decoder(load_llama_gguf(tiny_llama_path(TinyLlama())))
    sequence = open_with(engine, head, question)
    chosen = sequence.decode(12, until="eos", ignore_eos=True)
    expected, probs = greedy_of_reference(
        decoder, [*head, *question], 20, [], 60, list(chosen.token_ids))
    assert list(chosen.token_ids) == expected
    np.testing.assert_allclose(chosen.probs, probs, atol=PROB_TOLERANCE, rtol=0)


def test_smollm2_equals_one_masked_forward_pass():
    engine = smollm2_engine()
    encode = engine.tokenizer.encode
    head = encode("Answer the question in a full sentence.\n\n")
    passages = [encode("The Zorvex museum was opened in 1987 in the city of Lund.\n"),
                encode("Lund is a city in the south of Sweden.\n")]
    question = encode("Question: In which year was the Zorvex museum opened?\nAnswer:")
    sequence = open_with(engine, head, question, passages, len(head))
    decoded = sequence.decode(24, until="eos", ignore_eos=True)
    assert "1987" in decoded.text
    decoder = transformers_decoder(load_llama_gguf(smollm2_path()))
    expected, probs = greedy_of_reference(
        decoder, [*head, *question], len(head), passages, len(head), list(decoded.token_ids))
    assert list(decoded.token_ids) == expected
    np.testing.assert_allclose(decoded.probs, probs, atol=PROB_TOLERANCE, rtol=0)


# ---- the same bits in all ways ----

def story(engine, *, head=37, speculate=False, noise=None):
    """Bits of a few operations on a sequence with passages."""
    head, question = prompt_of(head)
    others = [engine.sequence(random_ids(50, seed=900 + i)) for i in range(noise or 0)]
    running = [other.decode_async(40, **DECODE) for other in others]
    found = []
    with open_with(engine, head, question, PASSAGES[:3], len(head) + 20) as sequence:
        options = {"sampling": DRAWN, "until": "eos", "ignore_eos": True}
        first = sequence.decode(20, **options)
        if speculate:
            sequence.truncate(len(head) + len(question))
            again = sequence.decode(
                20, **options, proposal=[*first.token_ids[:12], 3, *first.token_ids[13:]],
                lookup=PASSAGES[0])
            assert again.stats.num_accepted >= 12
            assert result_bits(again) == result_bits(first)
        found.append(result_bits(first))
        found.append(sequence.score(QUESTION).probs.tobytes())
        sequence.attach([sequence.encode_passage(PASSAGES[3])])
        found.append(result_bits(sequence.decode(10, **options)))
    for operation in running:
        operation.result()
    for other in others:
        other.close()
    return found


@pytest.mark.parametrize("compute", ["int8", "float32"])
def test_bits_do_not_depend_on_anything_else(compute):
    spec = TinyLlama(tensor_type="Q4_1", num_layers=2)
    with open_engine(spec, compute=compute) as engine:
        expected = story(engine)
        assert story(engine) == expected, "warm"
        assert story(engine, speculate=True) == expected
        assert story(engine, noise=3) == expected
        engine.check_integrity()
        assert engine.stats().num_held_blocks == 0
    for options in ({"threads": 3}, {"max_batch_tokens": 7}, {"sampler": "reference"}):
        with open_engine(spec, compute=compute, **options) as engine:
            got = story(engine)
            same = [g[0] for g in got] if "sampler" in options else got
            assert same == ([g[0] for g in expected] if "sampler" in options else expected), options


@pytest.mark.parametrize("window", [24, 90])
def test_bits_of_gemma_do_not_depend_on_batching(window):
    path = tiny_gemma_path(TinyGemma(window=window, tensor_types=("Q8_0", "Q5_0", "Q4_1")))
    results = []
    for options in ({}, {"threads": 2}, {"max_batch_tokens": 5}):
        with open_engine(path, compute="int8", **options) as engine:
            results.append(story(engine, noise=2))
    assert results[0] == results[1] == results[2]


def bits(sequence, num_tokens=9):
    return result_bits(sequence.decode(num_tokens, **DECODE))


def test_fork_rollback_and_fresh_sequences_agree():
    engine = open_engine(TinyLlama(), compute="int8")
    head, question = prompt_of(21)
    sequence = open_with(engine, head, question, PASSAGES[:2])
    checkpoint = sequence.checkpoint()
    with sequence.fork() as fork:
        expected = bits(fork)
        assert (fork.num_head_tokens, fork.num_reserved) == (21, RESERVED)
    sequence.detach()
    without = bits(sequence)
    assert without != expected
    sequence.rollback(checkpoint)
    assert bits(sequence) == expected
    plain = engine.sequence(random_ids(3))
    plain.rollback(checkpoint)
    assert (plain.num_head_tokens, plain.num_reserved) == (21, RESERVED)
    assert bits(plain) == expected
    assert bits(open_with(engine, head, question)) == without
    engine.check_integrity()


def test_reattaching_the_same_keeps_what_was_computed():
    engine = open_engine(TinyLlama())
    head, question = prompt_of(33)
    sequence = open_with(engine, head, question, PASSAGES[:2])
    passages = [sequence.encode_passage(PASSAGES[0])]
    sequence.attach(passages)
    first = sequence.decode(4, **DECODE)
    sequence.attach(passages, from_token=len(head) + len(question) - 1)
    again = sequence.decode(4, **DECODE)
    assert first.stats.num_prefilled == 0
    assert again.stats.num_prefilled == 0


# ---- what is shared, and what must not be ----

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


def test_passages_outlive_their_sequence_and_stay_with_their_model():
    engine = open_engine(TinyLlama())
    head, question = prompt_of(12)
    with open_with(engine, head, question) as sequence:
        passage = sequence.encode_passage(PASSAGES[0])
        sequence.attach([passage])
        expected = bits(sequence)
    assert (passage.num_tokens, passage.token_ids, passage.head_ids) == (40, PASSAGES[0], head)
    assert passage.size_bytes == 2 * engine.stats().block_size_bytes == passage.data.size
    with pytest.raises(ValueError, match="read-only"):
        passage.data[0] = 1
    with open_with(engine, head, question) as sequence:
        sequence.attach([passage])
        assert bits(sequence) == expected
    for other in (open_engine(TinyLlama(seed=2)), open_engine(TinyLlama(), compute="int8")):
        with open_with(other, head, question) as sequence, \
                pytest.raises(ConfigError, match="another model or compute mode"):
            sequence.attach([passage])


def test_engines_of_one_model_share_passages():
    from flarecore import Engine

    first = open_engine(TinyLlama())
    head, question = prompt_of(12)
    with open_with(first, head, question) as sequence:
        passage = sequence.encode_passage(PASSAGES[0])
        sequence.attach([passage])
        expected = bits(sequence)
    first.close()
    with Engine(first.model, compute="float32") as second, \
            open_with(second, head, question) as sequence:
        sequence.attach([passage])
        assert bits(sequence) == expected


# ---- refusals and failures ----

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


# ---- random walks against fresh sequences ----

class Walk:
    """One sequence and a description of what it must be: ids, passages, sees_from."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.engine = open_engine(TinyLlama(num_layers=1), compute="int8")
        self.head = random_ids(37, seed=3)
        self.pool = []
        sequence = self.open([*self.head, *random_ids(5)])
        self.pool = [sequence.encode_passage(ids) for ids in PASSAGES]
        self.pairs = [[sequence, [*self.head, *random_ids(5)], [], 0]]

    def open(self, ids):
        return self.engine.sequence(ids, num_head_tokens=37, num_reserved=RESERVED)

    def step(self):
        pair = self.pairs[self.rng.integers(len(self.pairs))]
        sequence, ids, passages, _ = pair
        kind = self.rng.choice(["extend", "decode", "truncate", "attach", "detach", "fork",
                                "rollback", "close"])
        if kind == "extend" and len(ids) < 200:
            more = random_ids(int(self.rng.integers(1, 70)), seed=int(self.rng.integers(4)))
            sequence.extend(more)
            ids += more
        elif kind == "decode" and len(ids) < 200:
            ids += sequence.decode(int(self.rng.integers(1, 12)), **DECODE).token_ids
        elif kind == "truncate":
            kept = int(self.rng.integers(37 if passages else 1, len(ids) + 1))
            if kept >= 37:
                sequence.truncate(kept)
                del ids[kept:]
        elif kind == "attach":
            chosen = self.rng.permutation(4)[: self.rng.integers(1, 4)].tolist()
            pair[3] = int(self.rng.integers(37, len(ids) + 1))
            pair[2] = chosen
            sequence.attach([self.pool[i] for i in chosen], from_token=pair[3])
        elif kind == "detach":
            sequence.detach()
            pair[2] = []
        elif kind == "fork" and len(self.pairs) < 4:
            self.pairs.append([sequence.fork(), [*ids], [*passages], pair[3]])
        elif kind == "rollback":
            checkpoint = sequence.checkpoint()
            sequence.detach()
            sequence.truncate(len(self.head))
            sequence.extend(random_ids(3))
            sequence.rollback(checkpoint)
        elif kind == "close" and len(self.pairs) > 1:
            sequence.close()
            self.pairs.remove(pair)

    def check(self):
        for sequence, ids, passages, sees_from in self.pairs:
            assert sequence.token_ids == ids
            fresh = open_engine(TinyLlama(num_layers=1), compute="int8")
            with fresh:
                seen = fresh.sequence(ids[:37], num_head_tokens=37, num_reserved=RESERVED)
                if passages:
                    # The sequence may have been cut before the first token that sees them.
                    seen.extend([*ids[37:], *random_ids(max(0, sees_from - len(ids)))])
                    seen.attach([seen.encode_passage(PASSAGES[i]) for i in passages],
                                from_token=sees_from)
                    seen.truncate(len(ids))
                else:
                    seen.extend(ids[37:])
                with sequence.fork() as fork:
                    assert fork.score(QUESTION[:9]).probs.tobytes() == \
                        seen.score(QUESTION[:9]).probs.tobytes()


@pytest.mark.parametrize("seed", range(3))
def test_walks_equal_fresh_sequences(seed):
    walk = Walk(seed)
    for number in range(60):
        walk.step()
        walk.engine.check_integrity()
        if number % 12 == 11:
            walk.check()
