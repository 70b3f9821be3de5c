"""Passage KV in a file: encoded once, mapped into memory ever after (placement ``parallel``).

A passage is found by its own ids and those of the head, which say all that a template does. Header
and tables are checked when a file is opened, blocks when they are first used. The layout is in
passage_format.py.
"""

from __future__ import annotations

import os
import threading
import weakref
import zlib
from collections.abc import Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flarecore import _C
from flarecore.errors import ModelFileError, PassageFileError
from flarecore.passage_format import StoredPassage, Table, read_tables, write_passages
from flarecore.passage_kv import PassageKv
from flarecore.validation import check_path
from flarecore.wording import system_reason

if TYPE_CHECKING:
    from flarecore.engine import Engine

__all__ = ["PassageKvFile"]


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
        """Maps a file of the same model, compute mode, `kv_format` and CPU level or GPU.

        Raises
        ------
        PassageFileError
            The file is missing, damaged, hostile, of another version, or belongs to another model,
            compute mode, `kv_format`, CPU level or GPU; the message says which.
        """
        where = check_path("the path of a passage file", path)
        try:
            mapped = _C.MappedFile(where)
        except ModelFileError as error:
            raise PassageFileError(f"passage file {error}") from None
        return cls(where, engine, mapped, read_tables(where, mapped.data, _key_of(engine)))

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
        check_path("the path of a passage file", path)
        kept = extends._stored() if extends is not None else []
        given: list[PassageKv | StoredPassage] = [*passages, *kept]
        unique = {(tuple(p.head_ids), tuple(p.token_ids)): p for p in given}
        try:
            write_passages(path, _key_of(engine), list(unique.values()))
        except OSError as error:
            raise PassageFileError(f"passage file {os.fspath(path)}: cannot be written: "
                                   f"{system_reason(error)}") from None

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

    def _stored(self) -> list[StoredPassage]:
        """All passages as they lie in the file, checked."""
        return [StoredPassage(*self._ids_of(row), self._checked_blocks(row))
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
        "kv_format": engine.kv_format,
        "isa": _C.cpu_isa() if engine.model.device == "cpu" else engine._native.level,
        "num_layers": config.num_layers, "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "block_size_bytes": engine.stats().block_size_bytes}
