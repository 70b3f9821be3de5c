"""Passage KV in a file: encoded once, mapped into memory ever after (placement ``parallel``).

Layout, little-endian: 8 bytes ``FLAREPKV``, uint32 format version, uint32 header size in bytes,
32 bytes SHA-256 of header and tables, the header (JSON), then three tables: ids (int32), heads
(int64: first id, number of ids) and passages (int64: head, first id, number of ids, offset of the
blocks, their size in bytes, their CRC-32); each begins at a multiple of 64. The blocks of a passage
begin at a multiple of 4096. The header names what the bits depend on: the model (SHA-256 of its
file), compute mode, CPU level or GPU, and shape of the blocks. A passage is found by its own ids
and those of the head, which say all that a template does.

Header and tables are checked when a file is opened, blocks when they are first used.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flarecore import _C
from flarecore.errors import ModelFileError, PassageFileError
from flarecore.passage_kv import PassageKv
from flarecore.whole_file import open_whole

if TYPE_CHECKING:
    from flarecore.engine import Engine

__all__ = ["FORMAT_VERSION", "PassageKvFile"]

FORMAT_VERSION = 1

_MAGIC = b"FLAREPKV"
_PROLOGUE = struct.Struct("<8sII32s")
_MAX_HEADER_BYTES = 1 << 16
_TABLE_ALIGNMENT, _BLOCK_ALIGNMENT = 64, 4096
# (name, values of one entry, type) in the order of the file.
_TABLES = (("ids", 1, "<i4"), ("heads", 2, "<i8"), ("passages", 6, "<i8"))

Table = npt.NDArray[Any]


@dataclass(frozen=True)
class _StoredPassage:
    """A passage whose blocks are mapped, as far as writing it goes; ``data`` is (bytes,) uint8."""

    head_ids: list[int]
    token_ids: list[int]
    data: npt.NDArray[np.uint8]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class PassageKvFile:
    """Passages in a file, mapped read-only. Replace such a file by renaming, never write into it.

    Make one with :meth:`write`, use it with :meth:`open` and :meth:`PassageCache.attach_file`.
    """

    def __init__(self, path: str, engine: Engine, mapped: _C.MappedFile,
                 tables: dict[str, Table]) -> None:
        self.path = path
        self.num_loaded = 0
        self._engine = engine
        self._mapped = mapped
        self._tables = tables
        self._lock = threading.Lock()
        self.is_mapped = engine.model.device == "cpu"  # else blocks are copied to the device
        self._loaded: MutableMapping[int, PassageKv] = (
            {} if self.is_mapped else weakref.WeakValueDictionary())
        heads = [self._ids(begin, size).tobytes() for begin, size in tables["heads"].tolist()]
        self._rows = {
            (heads[row[0]], self._ids(row[1], row[2]).tobytes()): n
            for n, row in enumerate(tables["passages"].tolist())}

    @property
    def num_passages(self) -> int:
        """Passages in the file."""
        return len(self._rows)

    @classmethod
    def open(cls, path: str | os.PathLike[str], engine: Engine) -> PassageKvFile:
        """Maps a file that was written with the same model, compute mode and CPU level or GPU.

        Raises
        ------
        PassageFileError
            The file is missing, damaged, hostile, of another version, or belongs to another model,
            compute mode, CPU level or GPU; the message says which.
        """
        where = os.fspath(path)
        try:
            mapped = _C.MappedFile(where)
        except ModelFileError as error:
            raise PassageFileError(f"passage file {error}") from None
        return cls(where, engine, mapped, _read_tables(where, mapped.data, _key_of(engine)))

    @classmethod
    def write(cls, path: str | os.PathLike[str], engine: Engine, passages: Iterable[PassageKv], *,
              extends: PassageKvFile | None = None) -> None:
        """Writes passages that `engine` encoded; an existing file is replaced in one step.

        Parameters
        ----------
        path : path
        engine : Engine
        passages : iterable of PassageKv
        extends : PassageKvFile, optional
            Its passages are written as well, from where they are mapped: however many there are,
            none of them takes memory of the engine.

        Raises
        ------
        PassageFileError
            The file cannot be written, or blocks of the one that it extends are damaged; what was
            there is as it was.
        """
        kept = extends._stored() if extends is not None else []
        given: list[PassageKv | _StoredPassage] = [*passages, *kept]
        unique = {(tuple(p.head_ids), tuple(p.token_ids)): p for p in given}
        try:
            _write(path, _key_of(engine), list(unique.values()))
        except OSError as error:
            raise PassageFileError(
                f"passage file {os.fspath(path)}: cannot be written: {error}") from None

    def find(self, head_ids: Sequence[int], token_ids: Sequence[int]) -> PassageKv | None:
        """A passage, its blocks where they are mapped (a GPU engine copies them); None if the file
        has it not.

        Raises
        ------
        PassageFileError
            Its blocks are damaged.
        """
        return self._find(head_ids, token_ids)[0]

    def _find(self, head_ids: Sequence[int],
              token_ids: Sequence[int]) -> tuple[PassageKv | None, bool]:
        """The passage, and whether it was loaded just now."""
        key = (np.asarray(head_ids, "<i4").tobytes(), np.asarray(token_ids, "<i4").tobytes())
        row = self._rows.get(key)
        if row is None:
            return None, False
        with self._lock:
            passage = self._loaded.get(row)
            if passage is not None:
                return passage, False
            passage = self._loaded[row] = self._load(row, head_ids, token_ids)
            self.num_loaded += 1
            return passage, True

    def passages(self) -> list[PassageKv]:
        """All passages of the file, checked; a GPU engine must have the blocks for all of them."""
        found = []
        for row in range(len(self._tables["passages"])):
            passage = self.find(*self._ids_of(row))
            assert passage is not None
            found.append(passage)
        return found

    def _stored(self) -> list[_StoredPassage]:
        """All passages as they lie in the file, checked."""
        return [_StoredPassage(*self._ids_of(row), self._checked_blocks(row))
                for row in range(len(self._tables["passages"]))]

    def _ids_of(self, row: int) -> tuple[list[int], list[int]]:
        """Of head and passage."""
        head, begin, size = self._tables["passages"][row, :3].tolist()
        return (self._ids(*self._tables["heads"][head].tolist()).tolist(),
                self._ids(begin, size).tolist())

    def _checked_blocks(self, row: int) -> npt.NDArray[np.uint8]:
        offset, size, checksum = self._tables["passages"][row, 3:].tolist()
        blocks: npt.NDArray[np.uint8] = self._mapped.data[offset:offset + size]
        if zlib.crc32(blocks.data) != checksum:
            raise PassageFileError(
                f"passage file {self.path}: the blocks of passage {row} are damaged")
        return blocks

    def _ids(self, begin: int, size: int) -> Table:
        return self._tables["ids"][begin:begin + size, 0]

    def _load(self, row: int, head_ids: Sequence[int], token_ids: Sequence[int]) -> PassageKv:
        self._checked_blocks(row)
        offset, size = self._tables["passages"][row, 3:5].tolist()
        return PassageKv(self._engine._native.load_passage(
            self._mapped, offset, size, list(head_ids), list(token_ids)))


def _key_of(engine: Engine) -> dict[str, Any]:
    """What the bits of a passage's K and V depend on, besides its ids."""
    config = engine.model.config
    return {
        "model": engine.model.fingerprint, "compute": engine.compute,
        "isa": _C.cpu_isa() if engine.model.device == "cpu" else engine._native.level,
        "num_layers": config.num_layers, "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "block_size_bytes": engine.stats().block_size_bytes}


def _aligned(size: int, to: int) -> int:
    return (size + to - 1) // to * to


def _write(path: str | os.PathLike[str], key: dict[str, Any],
           passages: Sequence[PassageKv | _StoredPassage]) -> None:
    heads: dict[tuple[int, ...], int] = {}
    for passage in passages:
        heads.setdefault(tuple(passage.head_ids), len(heads))
    runs = [*heads, *(tuple(p.token_ids) for p in passages)]
    begins = np.cumsum([0, *map(len, runs)]).tolist()
    tables: dict[str, Table] = {
        "ids": np.array([i for run in runs for i in run], "<i4"),
        "heads": np.array([[begins[n], len(head)] for n, head in enumerate(heads)], "<i8"),
        "passages": np.zeros((len(passages), 6), "<i8")}
    header = json.dumps({"key": key, "counts": {
        "ids": len(tables["ids"]), "heads": len(heads), "passages": len(passages)}}).encode()
    end = _layout(len(header), {n: t.nbytes for n, t in tables.items()})["end"]
    with open_whole(path) as file:
        for n, passage in enumerate(passages):
            offset, data = _aligned(end, _BLOCK_ALIGNMENT), passage.data.data
            file.seek(offset)
            file.write(data)
            tables["passages"][n] = [
                heads[tuple(passage.head_ids)], begins[len(heads) + n], passage.num_tokens,
                offset, len(data), zlib.crc32(data)]
            end = offset + len(data)
        places = _layout(len(header), {n: t.nbytes for n, t in tables.items()})
        digest = hashlib.sha256(header)
        for name, table in tables.items():
            digest.update(table.tobytes())
            file.seek(places[name])
            file.write(table.tobytes())
        file.seek(0)
        file.write(_PROLOGUE.pack(_MAGIC, FORMAT_VERSION, len(header), digest.digest()))
        file.write(header)
        file.truncate(max(end, places["end"]))


def _layout(header_size: int, sizes: dict[str, int]) -> dict[str, int]:
    """Offset of each table, and the end of the last."""
    places, end = {}, _PROLOGUE.size + header_size
    for name, _, _ in _TABLES:
        places[name] = _aligned(end, _TABLE_ALIGNMENT)
        end = places[name] + sizes[name]
    return places | {"end": end}


def _read_tables(where: str, data: Table, key: dict[str, Any]) -> dict[str, Table]:
    """The tables, once everything in them is known to lie inside the file."""
    def refuse(what: str) -> PassageFileError:
        return PassageFileError(f"passage file {where}: {what}")

    if len(data) < _PROLOGUE.size:
        raise refuse(f"only {len(data)} bytes long")
    magic, version, header_size, digest = _PROLOGUE.unpack(data[:_PROLOGUE.size].tobytes())
    if magic != _MAGIC:
        raise PassageFileError(f"{where} is no passage file")
    if version != FORMAT_VERSION:
        raise refuse(f"format version {version}, this flarecore reads {FORMAT_VERSION}")
    header_end = _PROLOGUE.size + header_size
    if header_size > _MAX_HEADER_BYTES or header_end > len(data):
        raise refuse(f"a header of {header_size} bytes does not fit")
    header = data[_PROLOGUE.size:header_end].tobytes()
    counts, written_key = _read_header(header, refuse)
    sizes = {name: counts[name] * width * np.dtype(kind).itemsize for name, width, kind in _TABLES}
    places = _layout(header_size, sizes)
    if places["end"] > len(data):
        raise refuse(f"tables of {places['end']} bytes in a file of {len(data)}")
    raw = {name: data[places[name]:places[name] + sizes[name]].tobytes() for name in sizes}
    if hashlib.sha256(header + b"".join(raw.values())).digest() != digest:
        raise refuse("the checksum of its tables is wrong")
    differing = [name for name in key if written_key.get(name) != key[name]]
    if differing:
        name = differing[0]
        raise refuse(f"it belongs to {name} {written_key.get(name)!r:.70}, not to {key[name]!r}")
    tables = {name: np.frombuffer(raw[name], kind).reshape(-1, width)
              for name, width, kind in _TABLES}
    _check_tables(tables, len(data), key["block_size_bytes"], refuse)
    return tables


def _read_header(header: bytes, refuse: Any) -> tuple[dict[str, int], dict[str, Any]]:
    try:
        parsed = json.loads(header)
        counts, key = parsed["counts"], parsed["key"]
        numbers = {name: counts[name] for name, _, _ in _TABLES}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise refuse("its header is no header of such a file") from None
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**40:
            raise refuse(f"its header counts {number!r:.40} {name}")
    if not isinstance(key, dict):
        raise refuse("its header names no model")
    return numbers, key


def _check_tables(
    tables: dict[str, Table], file_size: int, block_size: int, refuse: Any
) -> None:
    """A well-formed checksum proves no good will: every number must make sense by itself."""
    num_ids = len(tables["ids"])
    heads, rows = tables["heads"], tables["passages"]

    def runs_inside(runs: Table) -> bool:
        return bool(((runs >= 0) & (runs <= num_ids)).all()
                    and (runs[:, 0] + runs[:, 1] <= num_ids).all())

    if not runs_inside(heads) or not runs_inside(rows[:, 1:3]) or (tables["ids"] < 0).any():
        raise refuse("its token ids lie outside the file")
    if ((rows[:, 0] < 0) | (rows[:, 0] >= max(len(heads), 1))).any() or (
            len(rows) and not len(heads)):
        raise refuse("a passage has a head that is not there")
    offset, size, num_tokens = rows[:, 3], rows[:, 4], rows[:, 2]
    blocks = (num_tokens + 31) // 32
    if (num_tokens < 1).any() or (blocks > file_size // block_size).any() \
            or (size != blocks * block_size).any():
        raise refuse("a passage has blocks of the wrong size")
    if ((offset < 0) | (offset > file_size)).any() or (offset + size > file_size).any() \
            or (offset % _TABLE_ALIGNMENT).any():
        raise refuse("blocks lie outside the file")
