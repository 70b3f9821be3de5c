"""The answers of one method on disk: a JSON line each, so that a run can be killed and go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from flarecore.codec import dumps, from_jsonable, loads_object, to_jsonable
from flarecore.errors import ConfigError
from flarecore.eval.record import Record
from flarecore.whole_file import write_whole

__all__ = ["AnswerLog", "read_records", "settings_hash"]


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that stand for the settings."""
    text = json.dumps(settings, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


class AnswerLog:
    """Appends records to ``NAME.jsonl``; ``NAME.json`` beside it holds the settings.

    A context manager: one process at a time has it.

    Parameters
    ----------
    file : path
        ``NAME.jsonl``.
    settings : Mapping
        JSON values; what every answer in the file depends on.

    Raises
    ------
    ConfigError
        Another process writes it, the settings differ from those it was begun with (the message
        says in what), or a line that is not the torn last one is damaged.

    Attributes
    ----------
    hash : str
        Of the settings.
    records : dict of str to Record
        What it holds, by the id of the question.
    """

    def __init__(self, file: Path, settings: Mapping[str, Any]) -> None:
        self._file = file
        self._settings = json.loads(dumps(settings))
        self.hash = settings_hash(self._settings)
        self.records: dict[str, Record] = {}
        self._stream: IO[bytes] | None = None

    def check(self) -> None:
        """Raises ConfigError if the file was begun with other settings. Changes nothing."""
        side = self._file.with_suffix(".json")
        if not side.exists():
            return
        before = loads_object(str(side), side.read_bytes())
        differences = _differences(before, self._settings)
        if differences:
            shown = "; ".join(differences[:6]) + ("; …" if len(differences) > 6 else "")
            raise ConfigError(
                f"{self._file}: was begun with other settings: {shown}. Use the same settings, "
                "another --output, or remove the two files")

    def __enter__(self) -> AnswerLog:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._stream = open(self._file, "ab")
        try:
            self._lock()
            self._check_settings()
            records, size = _read(self._file)
            # What a kill left of a line goes, so that the next record begins one.
            self._stream.truncate(size)
            self.records = _by_id(records, self._file, self.hash)
        except BaseException:
            self._stream.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._stream is not None, "leaving a log that was never entered"
        self._stream.close()

    def append(self, record: Record) -> None:
        """Writes a record; it is on the disk when this returns."""
        assert self._stream is not None, "the log is not open"
        self._stream.write(dumps(to_jsonable(record)).encode("utf-8") + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.records[record.id] = record

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            return
        assert self._stream is not None
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"{self._file}: another evaluation is writing it; wait for it, or use another "
                "--output") from None

    def _check_settings(self) -> None:
        side = self._file.with_suffix(".json")
        if not side.exists():
            if self._file.stat().st_size:
                raise ConfigError(
                    f"{self._file}: its settings {side.name} are gone, so it cannot be told "
                    "whether it may go on; remove it or use another --output")
            write_whole(side, dumps(self._settings, indent=1) + "\n")
            return
        self.check()


def read_records(file: Path) -> tuple[dict[str, Any], list[Record]]:
    """Settings and records of a log, for reports; a torn last line is left out.

    Raises
    ------
    ConfigError
        A file is missing or damaged; names file and line.
    """
    side = file.with_suffix(".json")
    try:
        settings = loads_object(str(side), side.read_bytes())
    except OSError as error:
        raise ConfigError(f"{side}: cannot be read: {error.strerror or error}") from None
    records, _ = _read(file)
    return settings, list(_by_id(records, file, settings_hash(settings)).values())


def _read(file: Path) -> tuple[list[tuple[str, Record]], int]:
    """(where, record) of the lines, and the length in bytes of those that are whole."""
    data = file.read_bytes()
    whole = data[:data.rfind(b"\n") + 1]
    records = []
    for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
        where = f"{file}, line {number}"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{where}: not UTF-8 at byte {error.start} of the line") from None
        records.append((where, from_jsonable(Record, loads_object(where, text), where)))
    return records, len(whole)


def _by_id(records: list[tuple[str, Record]], file: Path, expected: str) -> dict[str, Record]:
    found: dict[str, Record] = {}
    for where, record in records:
        if record.settings_hash != expected:
            raise ConfigError(
                f"{where}: was written with other settings ({record.settings_hash}) than "
                f"{file.with_suffix('.json').name} says ({expected})")
        if record.id in found:
            raise ConfigError(f"{where}: answers the question {record.id!r} a second time")
        found[record.id] = record
    return found


def _differences(before: Any, now: Any, path: str = "") -> list[str]:
    """``name: was X, is Y`` of everything that is not the same."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [line for name in sorted({*before, *now})
                for line in _differences(before.get(name), now.get(name),
                                         f"{path}.{name}" if path else name)]
    if before == now:
        return []
    return [f"{path}: was {_short(before)}, is {_short(now)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:40]}… (sha256 {settings_hash({'': value})[:8]})"
