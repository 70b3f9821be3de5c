"""What K and V are kept as: guarantee 1 for each format, and that they are not mixed."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import TinyLlama, open_engine, random_ids, result_bits
from helpers_gemma import TinyGemma, tiny_gemma_path

from flarecore import _C, Engine, PassageKvFile, SamplingParams
from flarecore.errors import ConfigError, PassageFileError

FORMATS = ("float16", "int16")
DRAWN = SamplingParams(temperature=1.0, seed=11)
OPTIONS = {"sampling": DRAWN, "until": "eos", "ignore_eos": True}
SPECS = {
    "head 32, 3 a group": TinyLlama(context_length=1024),
    "head 24, 8 a group": TinyLlama(
        tensor_type="Q8_0", num_heads=8, num_kv_heads=1, hidden_size=192, ffn_size=96,
        context_length=1024),
    "windows of 70": tiny_gemma_path(TinyGemma(
        context_length=1024, window=70, tensor_types=("Q8_0", "Q4_0", "Q8_0"))),
}


def open_with(kv_format, spec=None, **options):
    return open_engine(spec or SPECS["head 32, 3 a group"], compute="int8", kv_format=kv_format,
                       **options)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_same_bits_in_any_chunks(spec, kv_format):
    prompt, results = random_ids(640, 240, seed=9), []
    for max_batch_tokens, threads in ((700, 1), (100, 2), (33, 2), (7, 1), (1, 2)):
        engine = open_with(kv_format, spec, max_batch_tokens=max_batch_tokens, threads=threads)
        sequence = engine.sequence(prompt[:500])
        scored = sequence.score(prompt[500:600]).probs.tobytes()
        sequence.extend(prompt[500:630])
        checkpoint = sequence.checkpoint()
        sequence.decode(5, **OPTIONS)
        sequence.rollback(checkpoint)
        sequence.truncate(611)
        sequence.extend(prompt[611:640])
        plain = sequence.fork().decode(20, **OPTIONS)
        proposed = sequence.decode(20, proposal=list(plain.token_ids), **OPTIONS)
        assert result_bits(proposed) == result_bits(plain)
        assert proposed.stats.num_steps < 20 or max_batch_tokens == 1
        results.append((scored, result_bits(plain)))
        engine.close()
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_passages_of_any_place(kv_format):
    """Copied out of blocks at every offset: attached, they give what the first one gave."""
    passage, question = random_ids(45, 240, seed=1), random_ids(9, 240, seed=2)
    for head_size in (1, 3, 31, 40):
        results, head = [], random_ids(head_size, 240, seed=3)
        for max_batch_tokens in (64, 5):
            engine = open_with(kv_format, max_batch_tokens=max_batch_tokens)
            sequence = engine.sequence(head, num_head_tokens=head_size, num_reserved=60)
            kept = sequence.encode_passage(passage)
            sequence.attach([kept])
            sequence.extend(question)
            results.append(result_bits(sequence.decode(12, **OPTIONS)))
            engine.close()
        assert results[0] == results[1]
        alone = open_with(kv_format).sequence([*head, *question]).decode(12, **OPTIONS)
        assert result_bits(alone) != results[0], "the passage has no influence"


@pytest.mark.parametrize("kv_format", FORMATS)
def test_an_attached_passage_is_what_it_was_in_its_sequence(kv_format):
    """Right behind its head it stands where it stood; a sequence without a copy shows it."""
    passage, question = random_ids(45, 240, seed=1), random_ids(9, 240, seed=2)
    engine = open_with(kv_format)
    for head_size in (1, 3, 31, 32, 33, 40):
        head = random_ids(head_size, 240, seed=3)
        sequence = engine.sequence(head, num_head_tokens=head_size, num_reserved=len(passage))
        sequence.attach([sequence.encode_passage(passage)])
        got = np.asarray(sequence.score(question).probs[1:], np.float64)
        plain = engine.sequence([*head, *passage]).score(question).probs[1:]
        # Their splits differ, so their sums do in the last bits; now and then that turns the
        # rounding of an activation, which moves what comes after it.
        assert np.median(np.abs(np.log(got / np.asarray(plain, np.float64)))) < 0.01


def test_formats_are_nearly_equal_and_both_are_used():
    """Of given tokens: integers are as near to float16 as float16 is to what it rounds."""
    prompt, given, probs = random_ids(300, 240, seed=4), random_ids(200, 240, seed=5), {}
    for kv_format in FORMATS:
        engine = open_with(kv_format)
        assert engine.kv_format == kv_format
        probs[kv_format] = engine.sequence(prompt).score(given).probs
        engine.close()
    float16, int16 = (np.asarray(probs[name], np.float64) for name in FORMATS)
    assert not np.array_equal(float16, int16)
    assert np.abs(np.log(float16 / int16)).max() < 0.02


def test_blocks_have_the_size_of_their_format():
    sizes = {name: open_with(name).stats().block_size_bytes for name in FORMATS}
    config = open_with("int16").model.config
    heads = 2 * config.num_layers * config.num_kv_heads
    assert config.head_dim % 16 == 0
    assert sizes["float16"] == heads * 32 * config.head_dim * 2
    assert sizes["int16"] == sizes["float16"] + heads * 32 * 4


def test_the_level_chooses_where_nobody_does():
    wanted = "int16" if _C.cpu_isa() == "avx512" else "float16"
    assert open_with(None).kv_format == wanted
    assert open_engine(TinyLlama()).kv_format == "float32"


@pytest.mark.parametrize(("compute", "kv_format", "message"), [
    ("int8", "float8", r"kv_format must be .*float16.*int16.*'float8'"),
    ("int8", "float32", "kv_format must be .*'float32'"),
    ("float32", "int16", "kv_format must be .*float32.*'int16'"),
    ("int8", 16, "kv_format must be .*16")])
def test_what_does_not_go_together_is_refused(compute, kv_format, message):
    with pytest.raises(ConfigError, match=message):
        open_engine(TinyLlama(), compute=compute, kv_format=kv_format)


def test_passages_of_another_format_are_refused(tmp_path):
    model = open_with("int16").model
    engines = [Engine(model, compute="int8", kv_format=name) for name in FORMATS]
    head = random_ids(8, 240)
    sequences = [e.sequence(head, num_head_tokens=8, num_reserved=40) for e in engines]
    passage = sequences[0].encode_passage(random_ids(20, 240, seed=6))
    with pytest.raises(ConfigError, match="another model, compute mode or kv_format"):
        sequences[1].attach([passage])
    sequences[0].attach([passage])
    path = tmp_path / "kept.flarekv"
    PassageKvFile.write(path, engines[0], [passage])
    assert PassageKvFile.open(path, engines[0]).passages()[0].token_ids == passage.token_ids
    with pytest.raises(PassageFileError, match="kv_format 'float16', not to 'int16'"):
        PassageKvFile.open(path, engines[1])
