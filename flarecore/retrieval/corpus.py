"""Reading a knowledge base from disk: JSONL passages, or a folder of documents to be cut up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flarecore.errors import ConfigError
from flarecore.retrieval.chunking import Section, markdown_sections, split_text
from flarecore.retrieval.passage import Passage, Progress
from flarecore.validation import check_path
from flarecore.wording import system_reason

__all__ = ["read_passages"]

_JSONL = (".jsonl", ".ndjson")
_MAX_FIRST_LINE = 1 << 20
_MARKDOWN = (".md", ".markdown")
_SUFFIXES = (*_JSONL, *_MARKDOWN, ".txt")
LeftOut = Callable[[str, str], None]


def read_passages(
    path: str | os.PathLike[str], *, max_words: int = 100, overlap: int = 0,
    progress: Progress | None = None, left_out: LeftOut | None = None
) -> list[Passage]:
    """All passages of a file or folder.

    Parameters
    ----------
    path : path
        A ``.jsonl`` file, a ``.txt`` or ``.md`` document, or a folder that is searched for all of
        these (sorted by name; hidden files and folders are left out).

        A JSONL line is ``{"text": ..., "id": ..., "title": ...}`` and is taken as it is; all other
        keys are metadata, as are those of an object under ``"metadata"``. `id` may be an integer
        and defaults to "file:line". Documents are cut by
        :func:`flarecore.retrieval.chunking.split_text`; their passages are called "file#n", carry
        the headings above them (or the file's name) as title and ``{"source": file}`` as metadata.
        Files are named relative to the folder, with forward slashes.
    max_words, overlap : int
        Sizes for documents, see ``split_text``.
    progress : callable, optional
        ``progress("read", bytes_done, bytes_total)`` after each file.
    left_out : callable, optional
        ``left_out(name, reason)`` for each file of a folder that gives no passage: of another kind,
        without text, or the questions of a folder for ``flarecore eval`` (``queries.jsonl`` beside
        ``corpus.jsonl``). Hidden files are not named.

    Returns
    -------
    list of Passage

    Raises
    ------
    ConfigError
        The path is missing, holds nothing readable, is not UTF-8, or a line is no passage; an id
        occurs twice. Names file and line.
    """
    root = Path(check_path("path", path))
    split_text("", max_words=max_words, overlap=overlap)  # wrong sizes fail before any reading
    leave_out = left_out or (lambda name, reason: None)
    files = _find_files(root, leave_out)
    total = sum(size for _, _, size in files)
    passages: list[Passage] = []
    seen: dict[str, str] = {}
    done = 0
    for file, name, size in files:
        num_before = len(passages)
        for passage, where in _read_file(file, name, max_words, overlap):
            if passage.id in seen:
                raise ConfigError(
                    f"{where}: the id {passage.id!r} is taken by {seen[passage.id]}; ids must be "
                    "unique")
            seen[passage.id] = where
            passages.append(passage)
        if len(passages) == num_before:
            leave_out(name, "without text")
        done += size
        if progress is not None:
            progress("read", done, total)
    if not passages:
        raise ConfigError(f"{root}: holds no text, so there is nothing to index")
    return passages


def _find_files(root: Path, left_out: LeftOut) -> list[tuple[Path, str, int]]:
    """(path, name relative to the root, size in bytes) of every readable file, sorted by name."""
    try:
        if root.is_file():
            found = [(root, root.name)]
            if root.suffix.lower() not in _SUFFIXES:
                raise ConfigError(f"{root}: must be a folder or end in {', '.join(_SUFFIXES)}")
        elif root.is_dir():
            found = []
            for file in sorted(_walk(root)):
                name, reason = file.relative_to(root).as_posix(), _why_not(file)
                if reason is None:
                    found.append((file, name))
                else:
                    left_out(name, reason)
        elif root.exists():
            raise ConfigError(f"{root}: neither a regular file nor a folder")
        else:
            raise ConfigError(f"{root}: no such file or folder")
        if not found:
            raise ConfigError(f"{root}: holds no file ending in {', '.join(_SUFFIXES)}")
        return [(file, name, file.stat().st_size) for file, name in sorted(found)]
    except OSError as error:
        raise ConfigError(f"{root}: cannot be read: {system_reason(error)}") from error


def _walk(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in names:
            file = Path(folder, name)
            if name.startswith("."):
                continue
            is_wanted = file.suffix.lower() in _SUFFIXES
            if is_wanted and not file.is_file():  # a pipe would be waited for
                raise ConfigError(
                    f"{file}: a broken link or not a regular file; remove or rename it")
            yield file


def _why_not(file: Path) -> str | None:
    """Why a file of a folder is not read; None if it is."""
    if file.suffix.lower() not in _SUFFIXES:
        return f"of another kind than {', '.join(_SUFFIXES)}"
    corpus = file.with_name(file.name.removesuffix("queries.jsonl") + "corpus.jsonl")
    if not file.name.endswith("queries.jsonl") or not corpus.is_file():
        return None
    with file.open("rb") as lines:
        line = lines.readline(_MAX_FIRST_LINE)
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None  # reading it will say what is wrong
    is_question = isinstance(row, dict) and "question" in row and "text" not in row
    return f"questions, whose passages are in {corpus.name}" if is_question else None


def _read_file(
    file: Path, name: str, max_words: int, overlap: int
) -> Iterator[tuple[Passage, str]]:
    """The passages of one file, each with where it stands for messages."""
    if file.suffix.lower() in _JSONL:
        yield from _read_jsonl(file, name)
        return
    text, stem = _decode(_read_bytes(file), str(file)), Path(name).stem
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    is_markdown = file.suffix.lower() in _MARKDOWN
    sections = markdown_sections(text, stem) if is_markdown else [Section(stem, text)]
    number = 0
    for section in sections:
        for part in split_text(section.text, max_words=max_words, overlap=overlap):
            number += 1
            passage = Passage(id=f"{name}#{number}", text=part, title=section.title,
                              metadata={"source": name})
            yield passage, f"{file}, passage {number}"


def _read_jsonl(file: Path, name: str) -> Iterator[tuple[Passage, str]]:
    # Lines end at "\n" alone: splitlines() would also cut at the U+2028 that JSON allows inside.
    for number, raw in enumerate(_read_bytes(file).split(b"\n"), start=1):
        where = f"{file}, line {number}"
        line = _decode(raw, where).strip()
        if not line:
            continue
        try:
            row = json.loads(line, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{where}: must be a JSON object, got {type(row).__name__}")
        yield _row_passage(row, where, f"{name}:{number}"), where


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _row_passage(row: dict[str, Any], where: str, default_id: str) -> Passage:
    name, title, text = row.pop("id", default_id), row.pop("title", None), row.pop("text", None)
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: 'id' must be a non-empty string or an integer, got {name!r}")
    if not isinstance(text, str) or not text.strip():
        hint = ""
        if text is None and "question" in row:
            hint = "; this is a question: the passages of a folder for eval are in corpus.jsonl"
        raise ConfigError(f"{where}: 'text' must be a non-empty string, got {text!r:.80}{hint}")
    if title is not None and not isinstance(title, str):
        raise ConfigError(f"{where}: 'title' must be a string, got {title!r:.80}")
    row.pop("score", None)  # of a passage that some search returned
    nested = row.pop("metadata", {})
    if not isinstance(nested, dict) or row.keys() & nested.keys():
        raise ConfigError(
            f"{where}: 'metadata' must be an object whose keys do not occur beside it")
    return Passage(id=name, text=text, title=title or "", metadata={**row, **nested})


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {system_reason(error)}") from error


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        at = f", line {line}" if b"\n" in data else ""
        raise ConfigError(
            f"{where}{at}: not UTF-8 at byte {error.start} ({error.reason}); convert the file to "
            "UTF-8") from error
