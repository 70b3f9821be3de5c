"""The cache of encoded passages: budget, one computation for many, files."""

import asyncio
import contextlib
import struct
import threading

import pytest
from helpers import DECODE, TinyLlama, open_engine, random_ids, result_bits

from flarecore.errors import (
    CancelledError,
    ConfigError,
    DeadlineExceeded,
    FlarecoreError,
    PassageFileError,
)
from flarecore.passage_file import PassageKvFile

HEAD = random_ids(21, seed=1)
QUESTION = random_ids(9, seed=2)
PASSAGES = [random_ids(40, seed=10 + n) for n in range(5)]


def open_cached(**options):
    engine = open_engine(TinyLlama(), **options)
    sequence = engine.sequence([*HEAD, *QUESTION], num_head_tokens=21, num_reserved=64)
    return engine, sequence


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
        with contextlib.suppress(CancelledError):
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


# ---- files ----

def written(path, **options):
    """A file with two passages, and what a sequence says with them attached."""
    engine, sequence = open_cached(**options)
    passages = [engine.passages.fetch_async(sequence, ids).result().passage
                for ids in PASSAGES[:2]]
    PassageKvFile.write(path, engine, engine.passages.passages())
    sequence.attach(passages)
    return result_bits(sequence.decode(6, **DECODE))


@pytest.mark.parametrize("compute", ["int8", "float32"])
def test_a_file_gives_the_same_bits_and_costs_nothing(tmp_path, compute):
    path = tmp_path / "passages.kv"
    expected = written(path, compute=compute)
    engine, sequence = open_cached(compute=compute)
    file = PassageKvFile.open(path, engine)
    engine.passages.attach_file(file)
    assert file.num_passages == 2 and file.num_loaded == 0
    rows = engine.stats().num_rows
    found = [engine.passages.get(HEAD, ids) for ids in PASSAGES[:2]]
    assert engine.passages.get(HEAD, PASSAGES[2]) is None
    assert engine.passages.get(HEAD[:-1], PASSAGES[0]) is None
    assert engine.stats().num_rows == rows and file.num_loaded == 2
    assert engine.passages.get(HEAD, PASSAGES[0]) is found[0]
    assert engine.passages.stats().num_loaded == 2
    sequence.attach(found)
    del file, found
    engine.passages.clear()
    path.unlink()  # the mapping outlives the name
    assert result_bits(sequence.decode(6, **DECODE)) == expected


def test_a_file_can_be_extended(tmp_path):
    path = tmp_path / "passages.kv"
    written(path)
    engine, sequence = open_cached()
    file = PassageKvFile.open(path, engine)
    engine.passages.fetch_async(sequence, PASSAGES[4]).result()
    PassageKvFile.write(path, engine, engine.passages.passages(), extends=file)
    again = PassageKvFile.open(path, engine)
    assert again.num_passages == 3 and file.num_loaded == 0
    assert [(p.token_ids, p.data.tobytes()) for p in again.passages()[1:]] == [
        (p.token_ids, p.data.tobytes()) for p in file.passages()]
    PassageKvFile.write(path, engine, [])
    assert PassageKvFile.open(path, engine).num_passages == 0


def test_files_of_another_model_or_mode_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "passages.kv"
    written(path)
    for other, what in ((open_engine(TinyLlama(seed=2)), "model"),
                        (open_engine(TinyLlama(), compute="int8"), "compute")):
        with pytest.raises(PassageFileError, match=f"belongs to {what}"):
            PassageKvFile.open(path, other)
    engine, _ = open_cached()
    from flarecore import passage_file

    class OtherLevel:
        MappedFile = passage_file._C.MappedFile

        @staticmethod
        def cpu_isa():
            return "another"

    monkeypatch.setattr(passage_file, "_C", OtherLevel)
    with pytest.raises(PassageFileError, match="belongs to isa"):
        PassageKvFile.open(path, engine)


def test_missing_foreign_and_cut_files_are_refused(tmp_path):
    engine, _ = open_cached()
    path = tmp_path / "passages.kv"
    with pytest.raises(PassageFileError):
        PassageKvFile.open(path, engine)
    with pytest.raises(PassageFileError, match="written"):
        PassageKvFile.write(tmp_path / "no" / "folder", engine, [])
    written(path)
    whole = path.read_bytes()
    for size in (*range(0, 400, 13), 4096, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(PassageFileError):
            PassageKvFile.open(path, engine).passages()
    path.write_bytes(b"GGUF" + whole[4:])
    with pytest.raises(PassageFileError, match="no passage file"):
        PassageKvFile.open(path, engine)
    path.write_bytes(whole[:8] + struct.pack("<I", 9) + whole[12:])
    with pytest.raises(PassageFileError, match="version 9"):
        PassageKvFile.open(path, engine)


def test_every_damaged_byte_is_found(tmp_path):
    engine, _ = open_cached()
    path = tmp_path / "passages.kv"
    written(path)
    whole = bytearray(path.read_bytes())
    # Header and tables byte by byte, blocks here and there; zeros that only align are not read.
    for place in [*range(0, 900), *range(4096, len(whole), 2003)]:
        damaged = bytearray(whole)
        damaged[place] ^= 0x41
        path.write_bytes(damaged)
        try:
            found = PassageKvFile.open(path, engine).passages()
        except PassageFileError:
            continue
        assert whole[place] == 0 and len(found) == 2, place


def forged(whole, change):
    """The file with changed tables and a right checksum."""
    import hashlib
    import json

    import numpy as np

    from flarecore import passage_format as format

    size = struct.unpack_from("<I", whole, 12)[0]
    header = bytes(whole[48:48 + size])
    counts = json.loads(header)["counts"]
    kinds = {name: (width, kind) for name, width, kind in format.TABLES}
    sizes = {n: counts[n] * w * np.dtype(k).itemsize for n, (w, k) in kinds.items()}
    places = format.table_places(size, sizes)
    tables = {n: np.frombuffer(whole, k, counts[n] * w, places[n]).reshape(-1, w).copy()
              for n, (w, k) in kinds.items()}
    change(tables)
    data = bytearray(whole)
    digest = hashlib.sha256(header)
    for name, table in tables.items():
        data[places[name]:places[name] + sizes[name]] = table.tobytes()
        digest.update(table.tobytes())
    data[16:48] = digest.digest()
    return bytes(data)


@pytest.mark.parametrize(("table", "place", "value"), [
    ("ids", (0, 0), -1), ("heads", (0, 0), -1), ("heads", (0, 0), 10**9), ("heads", (0, 1), 2**62),
    ("passages", (0, 0), 1), ("passages", (1, 0), -1), ("passages", (0, 1), 2**62),
    ("passages", (0, 2), 0), ("passages", (0, 2), 2**62), ("passages", (0, 3), 2**62),
    ("passages", (0, 3), -64), ("passages", (0, 3), 4097), ("passages", (0, 4), 2**62),
    ("passages", (0, 4), 0), ("passages", (1, 4), -1)])
def test_well_formed_lies_are_refused(tmp_path, table, place, value):
    engine, _ = open_cached()
    path = tmp_path / "passages.kv"
    written(path)
    whole = path.read_bytes()

    def lie(tables):
        tables[table][place] = value

    path.write_bytes(forged(whole, lambda tables: None))
    assert len(PassageKvFile.open(path, engine).passages()) == 2
    path.write_bytes(forged(whole, lie))
    with pytest.raises(PassageFileError):
        PassageKvFile.open(path, engine).passages()


def test_ids_of_no_token_are_refused(tmp_path):
    engine, _ = open_cached()
    path = tmp_path / "passages.kv"
    written(path)

    def lie(tables):
        tables["ids"][-1] = 10**6

    path.write_bytes(forged(path.read_bytes(), lie))
    with pytest.raises(FlarecoreError, match="vocabulary"):
        PassageKvFile.open(path, engine).passages()
