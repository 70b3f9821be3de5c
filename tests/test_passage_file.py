"""Files of encoded passages: the same bits at no cost, and nothing damaged or forged is read."""

import struct

import pytest
from helpers import DECODE, TinyLlama, open_engine, result_bits
from helpers_passage_cache import HEAD, PASSAGES, open_cached

from flarecore.errors import FlarecoreError, PassageFileError
from flarecore.passage_file import PassageKvFile


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
