"""Layout of passage files (passage_file.py), written and read; nothing in a read one is trusted.

Little-endian: 8 bytes ``FLAREPKV``, uint32 format version, uint32 header size in bytes, 32 bytes
SHA-256 of header and tables, the header (JSON), then three tables: ids (int32), heads (int64: first
id, number of ids) and passages (int64: head, first id, number of ids, offset of the blocks, their
size in bytes, their CRC-32); each begins at a multiple of 64. The blocks of a passage begin at a
multiple of 4096. The header names what the bits depend on: the model (SHA-256 of its file), compute
mode, format of K and V, CPU level or GPU, and shape of the blocks.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore.errors import PassageFileError
from flarecore.passage_kv import PassageKv
from flarecore.whole_file import open_whole

__all__ = ["FORMAT_VERSION", "TABLES", "StoredPassage", "Table", "read_tables", "table_places",
           "write_passages"]

FORMAT_VERSION = 1

_MAGIC = b"FLAREPKV"
_PROLOGUE = struct.Struct("<8sII32s")
_MAX_HEADER_BYTES = 1 << 16
_TABLE_ALIGNMENT, _BLOCK_ALIGNMENT = 64, 4096
# (name, values of one entry, type) in the order of the file.
TABLES = (("ids", 1, "<i4"), ("heads", 2, "<i8"), ("passages", 6, "<i8"))

Table = npt.NDArray[Any]


@dataclass(frozen=True)
class StoredPassage:
    """A passage whose blocks are mapped, as far as writing it goes; ``data`` is (bytes,) uint8."""

    head_ids: list[int]
    token_ids: list[int]
    data: npt.NDArray[np.uint8]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


def _aligned(size: int, to: int) -> int:
    return (size + to - 1) // to * to


def write_passages(path: str | os.PathLike[str], key: dict[str, Any],
                   passages: Sequence[PassageKv | StoredPassage]) -> None:
    """Writes a file whose blocks depend on `key`. Raises OSError; what was there stays then."""
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
    end = table_places(len(header), {n: t.nbytes for n, t in tables.items()})["end"]
    with open_whole(path, needs_seek=True) as file:
        for n, passage in enumerate(passages):
            offset, data = _aligned(end, _BLOCK_ALIGNMENT), passage.data.data
            file.seek(offset)
            file.write(data)
            tables["passages"][n] = [
                heads[tuple(passage.head_ids)], begins[len(heads) + n], passage.num_tokens,
                offset, len(data), zlib.crc32(data)]
            end = offset + len(data)
        places = table_places(len(header), {n: t.nbytes for n, t in tables.items()})
        digest = hashlib.sha256(header)
        for name, table in tables.items():
            digest.update(table.tobytes())
            file.seek(places[name])
            file.write(table.tobytes())
        file.seek(0)
        file.write(_PROLOGUE.pack(_MAGIC, FORMAT_VERSION, len(header), digest.digest()))
        file.write(header)
        file.truncate(max(end, places["end"]))


def table_places(header_size: int, sizes: dict[str, int]) -> dict[str, int]:
    """Offset of each table, by their sizes in bytes, and the ``"end"`` of the last."""
    places, end = {}, _PROLOGUE.size + header_size
    for name, _, _ in TABLES:
        places[name] = _aligned(end, _TABLE_ALIGNMENT)
        end = places[name] + sizes[name]
    return places | {"end": end}


def read_tables(where: str, data: Table, key: dict[str, Any]) -> dict[str, Table]:
    """The tables, once everything in them is known to lie inside the file.

    Parameters
    ----------
    where
        The file's name, for messages.
    data
        (bytes,) uint8, the file.
    key
        What the header must name.

    Raises
    ------
    PassageFileError
        See :meth:`flarecore.passage_file.PassageKvFile.open`.
    """
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
    sizes = {name: counts[name] * width * np.dtype(kind).itemsize for name, width, kind in TABLES}
    places = table_places(header_size, sizes)
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
              for name, width, kind in TABLES}
    _check_tables(tables, len(data), key["block_size_bytes"], refuse)
    return tables


def _read_header(header: bytes, refuse: Any) -> tuple[dict[str, int], dict[str, Any]]:
    try:
        parsed = json.loads(header)
        counts, key = parsed["counts"], parsed["key"]
        numbers = {name: counts[name] for name, _, _ in TABLES}
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
