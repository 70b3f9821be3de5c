"""The index file: one file of named sections behind a checked header.

Layout, little-endian: 8 bytes ``FLAREIDX``, uint32 format version, uint32 header size in bytes,
32 bytes SHA-256 of the header, the header (JSON), then the sections, each at a multiple of 64 with
zeros between. The header gives offset, size and SHA-256 of every section. The file ends with its
last section. Checksums find damage; that a well-formed file means no harm is checked by whoever
reads a section (counts, links, JSON types), never assumed.

A save is that of :mod:`flarecore.whole_file`: a new file beside the target, flushed to the disk and
renamed over the target. After a crash there is the old index or the new one, at worst with an
unfinished ``.tmp`` beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from flarecore.errors import IndexFileError
from flarecore.retrieval.passage import Passage
from flarecore.validation import check_path
from flarecore.whole_file import open_whole
from flarecore.wording import system_reason

__all__ = ["FORMAT_VERSION", "IndexFile", "index_info", "read_index_file", "write_index_file"]

FORMAT_VERSION = 1

_MAGIC = b"FLAREIDX"
_PROLOGUE = struct.Struct("<8sII32s")
_MAX_HEADER_BYTES = 1 << 20
_ALIGNMENT = 64

ByteArray = npt.NDArray[np.uint8]


class IndexFile:
    """A header and its sections, all checksums verified.

    Attributes
    ----------
    path : Path
    header : dict
        As given to :func:`write_index_file`.
    sections : dict of str to (size_bytes,) uint8
        Empty if only the header was read.
    passages : list of Passage or None
        Those of a part of an index whose passages were read once for all parts.
    """

    def __init__(self, path: Path, header: dict[str, Any], sections: dict[str, ByteArray]) -> None:
        self.path = path
        self.header = header
        self.sections = sections
        self.passages: list[Passage] | None = None

    def part(self, header: dict[str, Any], prefix: str) -> IndexFile:
        """An index inside this one, whose sections have names that begin with `prefix`."""
        return IndexFile(self.path, header, {
            name[len(prefix):]: data for name, data in self.sections.items()
            if name.startswith(prefix)})

    def section(self, name: str, size_bytes: int | None = None) -> ByteArray:
        """A section, once it is known to be there and to have that size."""
        if name not in self.sections:
            raise IndexFileError(f"{self.path}: the index has no section {name!r}")
        data = self.sections[name]
        if size_bytes is not None and len(data) != size_bytes:
            raise IndexFileError(
                f"{self.path}: section {name!r} must have {size_bytes} bytes to fit the header's "
                f"counts, got {len(data)}")
        return data

    def integer(self, name: str, low: int, high: int) -> int:
        """An integer of the header within ``[low, high]``."""
        value = self.header.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise IndexFileError(
                f"{self.path}: header field {name!r} must be an integer from {low} to {high}, got "
                f"{value!r}")
        return value


def index_info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of an index without its contents.

    Returns
    -------
    dict
        ``kind`` ("hnsw", "exact", "bm25" or "hybrid"), ``count`` (passages) and what belongs to the
        kind: ``dim`` and ``encoder`` (``name``, ``fingerprint``) of vectors, ``m``,
        ``ef_construction``, ``ef_search``, ``seed`` and ``graph_rows`` of a graph, ``analyser``,
        ``k1`` and ``b`` of BM25, ``parts`` of a hybrid.

    Raises
    ------
    IndexFileError
        Missing, of another kind or version, or a damaged header.
    """
    return read_index_file(path, header_only=True).header


def write_index_file(
    path: str | os.PathLike[str], header: Mapping[str, Any],
    sections: Mapping[str, Iterable[bytes | memoryview]]
) -> None:
    """Writes an index, or leaves what was at `path` as it was.

    Parameters
    ----------
    path : path
        The target; an existing file is replaced in one step, a symbolic link is followed.
    header : mapping of JSON values
    sections : mapping of name to chunks of bytes

    Raises
    ------
    IndexFileError
        The file cannot be written (no such folder, no space, a directory or a pipe in its
        place).
    """
    try:
        with open_whole(path, needs_seek=True) as file:
            _write(file, header, sections)
    except OSError as error:
        raise IndexFileError(
            f"{path}: the index cannot be written: {system_reason(error)}") from error


def _write(
    file: IO[bytes], header: Mapping[str, Any],
    sections: Mapping[str, Iterable[bytes | memoryview]]
) -> None:
    # The header comes first but holds the checksums, so its room is kept by a draft whose numbers
    # and digests have their full width; the unused rest is filled with spaces, which JSON ignores.
    draft = {name: {"offset": 1 << 62, "size_bytes": 1 << 62, "sha256": "0" * 64}
             for name in sections}
    room = len(_encode_header(header, draft))
    end = _PROLOGUE.size + room
    table = {}
    for name, chunks in sections.items():
        position = _aligned(end)
        file.seek(position)
        digest, size = hashlib.sha256(), 0
        for chunk in chunks:
            digest.update(chunk)
            size += file.write(chunk)
        table[name] = {"offset": position, "size_bytes": size, "sha256": digest.hexdigest()}
        end = position + size
    file.truncate(end)  # an empty last section may lie behind what was written
    encoded = _encode_header(header, table).ljust(room)
    file.seek(0)
    file.write(_PROLOGUE.pack(_MAGIC, FORMAT_VERSION, room, hashlib.sha256(encoded).digest()))
    file.write(encoded)


def _encode_header(header: Mapping[str, Any], sections: Mapping[str, Any]) -> bytes:
    return json.dumps({**header, "sections": sections}, sort_keys=True).encode("ascii")


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def read_index_file(path: str | os.PathLike[str], *, header_only: bool = False) -> IndexFile:
    """Reads an index into memory and verifies its checksums.

    Raises
    ------
    IndexFileError
        Missing, of another kind or version, cut off, or damaged anywhere.
    """
    source = Path(check_path("the path of an index", path))
    try:
        with open(source, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise IndexFileError(f"{source}: not a regular file; give the path of the index")
            size = status.st_size
            header, begin = _read_header(source, file, size)
            table = _check_table(source, header.pop("sections", None), begin, size)
            sections = {} if header_only else _read_sections(source, file, begin, table)
    except OSError as error:
        raise IndexFileError(
            f"{source}: the index cannot be read: {system_reason(error)}") from error
    return IndexFile(source, header, sections)


def _open_at_once(path: str, flags: int) -> int:
    """Opens a file; of a pipe this does not wait for its writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read_header(source: Path, file: BufferedReader, file_size: int) -> tuple[dict[str, Any], int]:
    prologue = file.read(_PROLOGUE.size)
    if len(prologue) < _PROLOGUE.size or not prologue.startswith(_MAGIC):
        raise IndexFileError(f"{source}: not a flarecore index; make one with `flarecore index`")
    _, version, size, digest = _PROLOGUE.unpack(prologue)
    if version != FORMAT_VERSION:
        raise IndexFileError(
            f"{source}: index format {version}, this version reads {FORMAT_VERSION}; build the "
            "index again")
    if size > min(_MAX_HEADER_BYTES, file_size):
        raise IndexFileError(
            f"{source}: a header of {size} bytes is more than the limit or the file; the index is "
            "damaged")
    encoded = file.read(size)
    if len(encoded) != size or hashlib.sha256(encoded).digest() != digest:
        raise IndexFileError(f"{source}: the header does not match its checksum; it is damaged")
    try:
        header = json.loads(encoded)
    except (ValueError, RecursionError) as error:
        raise IndexFileError(f"{source}: the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise IndexFileError(f"{source}: the header must be a JSON object")
    return header, _PROLOGUE.size + size


def _check_table(
    source: Path, table: object, begin: int, file_size: int
) -> dict[str, tuple[int, int, str]]:
    if not isinstance(table, dict):
        raise IndexFileError(f"{source}: the header names no sections")
    places = {}
    for name, entry in table.items():
        fields = entry if isinstance(entry, dict) else {}
        offset, size, digest = (fields.get(key) for key in ("offset", "size_bytes", "sha256"))
        if type(offset) is not int or type(size) is not int or not isinstance(digest, str):
            raise IndexFileError(f"{source}: section {name!r} has no offset, size or checksum")
        places[name] = (offset, size, digest)
    end = begin
    for name, (offset, size, _) in sorted(places.items(), key=lambda item: item[1][:2]):
        if offset != _aligned(end) or size < 0 or offset + size > file_size:
            raise IndexFileError(
                f"{source}: section {name!r} at {offset} with {size} bytes overlaps another or "
                f"lies outside the {file_size} bytes of the file")
        end = offset + size
    if end != file_size:
        raise IndexFileError(
            f"{source}: the file has {file_size} bytes, its sections end at {end}; it is damaged")
    return places


def _read_sections(
    source: Path, file: BufferedReader, end: int, table: dict[str, tuple[int, int, str]]
) -> dict[str, ByteArray]:
    sections = {}
    for name, (offset, size, digest) in sorted(table.items(), key=lambda item: item[1][:2]):
        file.seek(end)
        padding = file.read(offset - end)
        data = np.empty(size, dtype=np.uint8)
        got = file.readinto(data.data) if size else 0
        if any(padding) or got != size or hashlib.sha256(data.data).hexdigest() != digest:
            raise IndexFileError(
                f"{source}: section {name!r} does not match its checksum; the index is damaged, "
                "build it again")
        sections[name] = data
        end = offset + size
    return sections
