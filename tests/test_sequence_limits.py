"""Limits and arguments of a sequence's operations; a refused call changes nothing."""

import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import (
    DECODE,
    TinyLlama,
    open_engine,
    random_ids,
    result_bits,
    smollm2_path,
    state,
)

from flarecore.errors import ConfigError, ContextOverflowError
from flarecore.sampling import SamplingParams

SPEC = TinyLlama(context_length=512)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_preallocated_memory_is_there_at_once():
    size = 256 << 20
    results, grown = [], []
    for preallocate in (False, True):
        before = resident_bytes()
        with open_engine(SPEC, kv_cache_bytes=size, preallocate=preallocate) as engine:
            grown.append(resident_bytes() - before)
            results.append(result_bits(engine.sequence(random_ids(40)).decode(20, **DECODE)))
            engine.check_integrity()
    assert results[0] == results[1]
    assert grown[0] < size / 2 and grown[1] > 0.9 * size
    with pytest.raises(ConfigError, match="preallocate"):
        open_engine(SPEC, preallocate="yes")


def test_more_memory_than_there_is_is_not_taken():
    machine = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
    with pytest.raises(ConfigError, match=r"has (\d+) bytes of memory in all") as refused:
        open_engine(smollm2_path(), compute="int8", kv_cache_bytes=2 * machine)
    memory = int(re.findall(r"\d+", str(refused.value))[-1])
    assert memory <= machine
    with pytest.raises(ConfigError, match=r"preallocate needs \d+ bytes and \d+ are available"):
        open_engine(smollm2_path(), compute="int8", kv_cache_bytes=memory, preallocate=True)


def test_context_overflow_changes_nothing(engine):
    sequence = engine.sequence(random_ids(500))
    before = state(sequence)
    with pytest.raises(ContextOverflowError, match=r"512"):
        sequence.extend(random_ids(13))
    with pytest.raises(ContextOverflowError):
        sequence.score(random_ids(13))
    with pytest.raises(ContextOverflowError):
        sequence.regenerate(random_ids(13), max_tokens=1)
    with pytest.raises(ContextOverflowError):
        engine.sequence(random_ids(513))
    assert state(sequence) == before


def test_decode_ends_at_the_context(engine):
    sequence = engine.sequence(random_ids(500))
    decoded = sequence.decode(100, **DECODE)
    assert decoded.stop_reason == "context_length"
    assert len(decoded.token_ids) == 12 and sequence.num_tokens == 512
    with pytest.raises(ContextOverflowError):
        sequence.decode(1, **DECODE)
    with pytest.raises(ContextOverflowError):
        sequence.extend([1])
    exact = engine.sequence(random_ids(500)).decode(12, **DECODE)
    assert result_bits(exact) == result_bits(decoded)
    assert exact.stop_reason == "max_tokens"


def test_bad_arguments(engine):
    sequence = engine.sequence(random_ids(10))
    calls = (
        lambda: sequence.extend([271]),
        lambda: sequence.extend([-1]),
        lambda: sequence.score([271]),
        lambda: sequence.score([-1]),
        lambda: sequence.decode(0),
        lambda: sequence.decode(-5),
        lambda: sequence.decode(5, until="paragraph"),
        lambda: sequence.decode(5, stop="word"),
        lambda: sequence.decode(5, proposal=[271]),
        lambda: sequence.decode(5, proposal=[-1]),
        lambda: sequence.decode(5, sampling=SamplingParams(logit_bias={271: 1.0})),
        lambda: sequence.decode(5, beta=1.5),
        lambda: sequence.regenerate([271], max_tokens=5),
        lambda: engine.sequence().decode(5),
        lambda: engine.sequence().score([1]),
        lambda: engine.sequence([271]),
        lambda: sequence.decode(5, unknown_option=1),
        lambda: sequence.rollback(None),
    )
    for number, call in enumerate(calls):
        try:
            call()
        except ConfigError as error:
            assert str(error)
        else:
            pytest.fail(f"call {number} was accepted")
    assert sequence.token_ids == random_ids(10)


def test_empty_extend_and_score(engine):
    sequence = engine.sequence(random_ids(10))
    sequence.extend([])
    assert sequence.token_ids == random_ids(10)
    scored = sequence.score([])
    assert scored.token_ids == () and scored.probs.shape == (0,)
    assert scored.min_prob == 1.0
    assert engine.sequence([]).num_tokens == 0


def test_score_leaves_the_sequence(engine):
    sequence = engine.sequence(random_ids(40))
    before = state(sequence)
    first = sequence.score(random_ids(33, seed=1), beta=1e-5)
    second = sequence.score(random_ids(33, seed=1), beta=1e-5)
    assert first.probs.tobytes() == second.probs.tobytes()
    assert (first.mask == (first.probs < 1e-5)).all() and 0 < first.mask.sum() < 33
    assert first.min_prob == first.probs.min()
    assert state(sequence) == before


def test_mask_and_minimum(engine):
    decoded = engine.sequence(random_ids(40)).decode(60, beta=0.2, **DECODE)
    assert decoded.probs.dtype == "float32" and len(decoded.probs) == 60
    assert (decoded.mask == (decoded.probs < 0.2)).all() and 0 < decoded.mask.sum() < 60
    assert decoded.min_prob == decoded.probs.min()
    none = engine.sequence(random_ids(40)).decode(60, **DECODE)
    assert not none.mask.any()


def test_statistics_count_what_was_done(engine):
    sequence = engine.sequence()
    assert sequence.extend(random_ids(100)).num_prefilled in (99, 100)
    decoded = sequence.decode(10, **DECODE)
    assert decoded.stats.num_decoded == 10
    # Only the last prompt token's row may be left over; nothing is prefilled twice.
    assert decoded.stats.num_prefilled <= 1
    assert sequence.extend(random_ids(20, seed=1)).num_prefilled <= 21


TOO_LARGE = {
    "token id": lambda s: s.extend([2**40]),
    "max_tokens": lambda s: s.decode(2**40),
    "pass_index": lambda s: s.decode(3, pass_index=2**33),
    "negative pass_index": lambda s: s.decode(3, pass_index=-1),
    "proposal": lambda s: s.decode(3, proposal=[2**40]),
    "stream": lambda s: s.decode(3, sampling=SamplingParams(temperature=1.0, stream=2**40)),
    "top_k": lambda s: s.decode(3, sampling=SamplingParams(temperature=1.0, top_k=2**40)),
    "biased id": lambda s: s.decode(3, sampling=SamplingParams(logit_bias={2**40: 1.0})),
    "truncate": lambda s: s.truncate(2**40),
    "beta": lambda s: s.decode(3, beta=float("nan")),
    "id of 64 bits": lambda s: s.extend([2**63]),
    "negative id of 64 bits": lambda s: s.extend([-(2**63)]),
    "temperature": lambda s: s.decode(3, sampling=SamplingParams(temperature=10**400)),
    "bias": lambda s: s.decode(3, sampling=SamplingParams(logit_bias={1: -(10**400)})),
    "seed of thousands of digits": lambda s: s.decode(3, sampling=SamplingParams(seed=10**5000)),
    "number of thousands of digits": lambda s: s.decode(3, deadline_ms=10**5000),
    "no checkpoint": lambda s: s.rollback(None),
    "sequence for checkpoint": lambda s: s.rollback(s),
    "half a surrogate pair": lambda s: s.decode(3, stop=["a\ud800"]),
    "text for ids": lambda s: s.extend("abc"),
    "fraction": lambda s: s.extend([1.5]),
    "fraction of tokens": lambda s: s.decode(2.5),
    "kv_cache_bytes": lambda s: open_engine(SPEC, kv_cache_bytes=2**70),
    "max_batch_tokens": lambda s: open_engine(SPEC, max_batch_tokens=2**40),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_numbers_that_do_not_fit_have_a_typed_error(engine, name):
    """Not the binding's own complaint about types."""
    sequence = engine.sequence(random_ids(10))
    with pytest.raises(ConfigError):
        TOO_LARGE[name](sequence)
    assert sequence.token_ids == random_ids(10)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space")
def test_a_system_without_further_threads_is_a_typed_error():
    """Some of the threads run already when one is refused; the process must live on."""
    code = (
        "import resource, sys; sys.path.insert(0, sys.argv[1])\n"
        "from helpers import DECODE, TinyLlama, open_engine, random_ids\n"
        "from flarecore.errors import UnsupportedError\n"
        "with open_engine(TinyLlama(), kv_cache_bytes=2**20) as engine:\n"
        "    status = open('/proc/self/status').read()\n"
        "    used = int(status.split('VmSize:')[1].split()[0]) * 1024\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))\n"
        "    try:\n"
        "        open_engine(TinyLlama(), threads=1024, kv_cache_bytes=2**20)\n"
        "    except UnsupportedError as error:\n"
        "        print(error)\n"
        "    print(len(engine.sequence(random_ids(9)).decode(8, **DECODE).token_ids))\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)],
                         capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("the system starts no further thread")
    assert run.stdout.endswith("\n8\n"), "the first engine goes on"


@pytest.mark.skipif(sys.platform != "linux", reason="stacks of threads by ulimit -s")
def test_small_stacks_of_threads_are_enough():
    """What is large of a long context lies in memory of the engine, not on its threads' stacks."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from helpers import DECODE, TinyLlama, open_engine, random_ids\n"
        "spec = TinyLlama(context_length=1024)\n"
        "with open_engine(spec, compute='int8', threads=3) as engine:\n"
        "    sequence = engine.sequence(random_ids(900))\n"
        "    print(len(sequence.decode(8, **DECODE).token_ids))\n"
    )
    command = f"ulimit -s 256 && exec {shlex.quote(sys.executable)} -c \"$CODE\" \"$TESTS\""
    env = {**os.environ, "CODE": code, "TESTS": str(Path(__file__).parent)}
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr
