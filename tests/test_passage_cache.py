"""The cache of encoded passages: budget, one computation for many."""

import asyncio
import contextlib
import threading

import pytest
from helpers import DECODE, TinyLlama, open_engine, random_ids, result_bits
from helpers_passage_cache import HEAD, PASSAGES, open_cached

from flarecore.errors import (
    CancelledError,
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    FlarecoreError,
)


def block_bytes():
    with open_engine(TinyLlama()) as engine:
        return engine.stats().block_size_bytes


def test_a_passage_is_computed_once():
    engine, sequence = open_cached()
    cache = engine.passages
    assert cache.get(HEAD, PASSAGES[0]) is None
    encoded = cache.fetch_async(sequence, PASSAGES[0]).result()
    # Its tokens, and the head's last one, whose row the extension left to the next operation.
    assert encoded.num_prefilled in (40, 41)
    assert cache.get(HEAD, PASSAGES[0]) is encoded.passage
    assert cache.get(HEAD[1:], PASSAGES[0]) is None
    again = cache.fetch_async(sequence, PASSAGES[0])
    assert again.done() and again.result().num_prefilled == 0
    stats = cache.stats()
    assert (stats.num_hits, stats.num_misses, stats.num_encoded, stats.num_passages) == (1, 2, 1, 1)
    assert stats.size_bytes == 2 * block_bytes() == encoded.passage.size_bytes
    assert cache.passages() == [encoded.passage]
    cache.clear()
    assert cache.stats().size_bytes == 0 and cache.get(HEAD, PASSAGES[0]) is None


def test_many_requests_share_one_computation():
    engine, sequence = open_cached()
    busy = engine.sequence(random_ids(400)).decode_async(90, **DECODE)
    requests = [engine.passages.fetch_async(sequence, PASSAGES[0]) for _ in range(6)]
    results = [request.result() for request in requests]
    busy.result()
    assert len({id(r.passage) for r in results}) == 1
    assert sum(r.num_prefilled > 0 for r in results) == 1
    assert engine.passages.stats().num_encoded == 1


def test_threads_share_one_computation():
    engine, sequence = open_cached()
    found = []

    def fetch():
        for ids in PASSAGES:
            found.append(engine.passages.fetch_async(sequence, ids).result().passage)

    threads = [threading.Thread(target=fetch) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(p) for p in found}) == len(PASSAGES) == engine.passages.stats().num_encoded
    engine.check_integrity()


def hold_up(engine):
    """Work that keeps the engine from finishing anything else at once."""
    sequence = engine.sequence(random_ids(10))
    return sequence, sequence.decode_async(400, **DECODE)


def test_who_leaves_does_not_take_the_computation_from_others():
    engine, sequence = open_cached(max_batch_tokens=1)
    first = engine.passages.fetch_async(sequence, PASSAGES[0])
    second = engine.passages.fetch_async(sequence, PASSAGES[0])
    first.cancel()
    first.cancel()
    assert first.done()
    with pytest.raises(CancelledError):
        first.result()
    passage = second.result().passage
    assert engine.passages.get(HEAD, PASSAGES[0]) is passage


def test_a_computation_that_nobody_wants_is_cancelled():
    engine, sequence = open_cached(max_batch_tokens=1)
    _, noise = hold_up(engine)
    requests = [engine.passages.fetch_async(sequence, PASSAGES[0]) for _ in range(3)]
    for request in requests:
        request.cancel()
    # Who comes now begins anew instead of waiting for something cancelled.
    assert engine.passages.fetch_async(sequence, PASSAGES[0]).result().passage.num_tokens == 40
    noise.cancel()
    with contextlib.suppress(CancelledError):
        noise.result()
    engine.check_integrity()
    assert engine.passages.stats().num_passages == 1


def test_asyncio_requests_and_their_cancellation():
    engine, sequence = open_cached(max_batch_tokens=1)

    async def fetch(ids):
        return (await engine.passages.fetch_async(sequence, ids)).passage

    async def run():
        left = asyncio.create_task(fetch(PASSAGES[0]))
        stays = asyncio.create_task(fetch(PASSAGES[0]))
        await asyncio.sleep(0)
        left.cancel()
        passage = await stays
        with pytest.raises(asyncio.CancelledError):
            await left
        assert await fetch(PASSAGES[0]) is passage

    asyncio.run(run())
    assert engine.passages.stats().num_encoded == 1


def test_a_failed_computation_leaves_nothing_behind():
    engine, sequence = open_cached()
    with pytest.raises(ConfigError, match="vocabulary"):
        engine.passages.fetch_async(sequence, [10**6])
    with pytest.raises((DeadlineExceeded, FlarecoreError)):
        sequence.encode_passage(PASSAGES[0], deadline_ms=1e-6)
    requests = [engine.passages.fetch_async(sequence, ids) for ids in PASSAGES]
    engine.close()
    for request in requests:
        with contextlib.suppress(ClosedError):
            request.result()
    assert engine.passages._running == {}


def test_the_least_recently_used_goes_first():
    engine, sequence = open_cached(passage_cache_bytes=4 * block_bytes())
    cache = engine.passages

    def fetch(n):
        return cache.fetch_async(sequence, PASSAGES[n]).result().passage

    fetch(0)
    fetch(1)
    assert cache.get(HEAD, PASSAGES[0]) is not None  # now 1 is the oldest
    fetch(2)
    assert cache.get(HEAD, PASSAGES[1]) is None
    assert cache.get(HEAD, PASSAGES[0]) is not None and cache.get(HEAD, PASSAGES[2]) is not None
    stats = cache.stats()
    assert stats.num_evicted == 1 and stats.size_bytes == stats.budget_bytes


def test_attached_passages_stay_whatever_the_budget():
    engine, sequence = open_cached(passage_cache_bytes=2 * block_bytes())
    cache = engine.passages
    passage = cache.fetch_async(sequence, PASSAGES[0]).result().passage
    sequence.attach([passage])
    assert passage.is_attached
    with sequence.fork() as fork:
        expected = result_bits(fork.decode(5, **DECODE))
    cache.fetch_async(sequence, PASSAGES[1]).result()
    assert cache.get(HEAD, PASSAGES[0]) is passage
    sequence.detach()
    assert not passage.is_attached
    cache.fetch_async(sequence, PASSAGES[2]).result()
    assert cache.get(HEAD, PASSAGES[0]) is None
    # Dropped, computed again, and the same.
    sequence.attach([cache.fetch_async(sequence, PASSAGES[0]).result().passage])
    assert result_bits(sequence.decode(5, **DECODE)) == expected


def test_a_budget_of_nothing_still_gives_passages():
    engine, sequence = open_cached(passage_cache_bytes=0)
    passage = engine.passages.fetch_async(sequence, PASSAGES[0]).result().passage
    sequence.attach([passage])
    assert engine.passages.stats().num_passages == 0
    with pytest.raises(ConfigError, match="passage_cache_bytes"):
        open_engine(TinyLlama(), passage_cache_bytes=-1)
