"""Questions with known answers and the passages to answer them from, read from disk."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarecore.codec import loads_object
from flarecore.errors import ConfigError
from flarecore.retrieval.corpus import read_passages
from flarecore.retrieval.passage import Passage, Progress

__all__ = ["EvalData", "Question", "data_files", "load_data", "read_lines", "read_questions"]


@dataclass(frozen=True)
class Question:
    """A question with its known answers.

    Parameters
    ----------
    id, text : str
        Unique in its file; what is asked.
    answers : tuple of str
        At least one; any of them is right.
    kind : str
        The data set's own class of the question (``type``); empty if it has none.
    gold_titles, gold_ids : tuple of str
        Titles or ids of the passages that the answer stands in, as far as the data set tells.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    kind: str = ""
    gold_titles: tuple[str, ...] = ()
    gold_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class EvalData:
    """Questions, passages, and checksums of the files they were read from.

    Parameters
    ----------
    questions : tuple of Question
        In the order of the file.
    passages : tuple of Passage
        The corpus.
    queries_sha256, corpus_sha256 : str
        Of the files' bytes, hexadecimal.
    name : str
        What a report calls it.
    num_gold : int
        Most gold passages of any question of the file, also of those beyond a limit.
    """

    questions: tuple[Question, ...]
    passages: tuple[Passage, ...]
    queries_sha256: str
    corpus_sha256: str
    name: str
    num_gold: int


def load_data(
    folder: str | os.PathLike[str] | None = None, *, prefix: str = "",
    queries: str | os.PathLike[str] | None = None, corpus: str | os.PathLike[str] | None = None,
    limit: int | None = None, progress: Progress | None = None,
) -> EvalData:
    """Questions and passages of a folder or of two files.

    Parameters
    ----------
    folder : path, optional
        Holds ``queries.jsonl`` and ``corpus.jsonl``; with `prefix` ``zh``, ``zh.queries.jsonl`` and
        ``zh.corpus.jsonl``.
    prefix : str
        See above.
    queries, corpus : path, optional
        Other files; needed where there is no folder. Of the corpus, everything that
        ``read_passages`` reads.
    limit : int, optional
        Only the first questions of the file.
    progress : callable, optional
        As for ``read_passages``.

    Raises
    ------
    ConfigError
        A file is missing, a line is no question or passage (names file and line), an id occurs
        twice, or a question's gold passage is not in the corpus.
    """
    if folder is None and (queries is None or corpus is None):
        raise ConfigError("name a folder with queries.jsonl and corpus.jsonl, or both files")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be >= 1, got {limit}")
    queries_file, corpus_file = data_files(folder, prefix, queries, corpus)
    questions = read_questions(queries_file)
    passages = read_passages(corpus_file, progress=progress)
    _check_gold(questions, passages, queries_file)
    base = queries_file.parent.resolve().name if folder is None else Path(folder).resolve().name
    return EvalData(
        questions=tuple(questions[:limit]), passages=tuple(passages),
        queries_sha256=_sha256(queries_file), corpus_sha256=_sha256(corpus_file),
        name=f"{base} ({prefix})" if prefix else base,
        num_gold=max(max(len(q.gold_titles), len(q.gold_ids)) for q in questions))


def data_files(
    folder: str | os.PathLike[str] | None, prefix: str = "",
    queries: str | os.PathLike[str] | None = None, corpus: str | os.PathLike[str] | None = None,
) -> tuple[Path, Path]:
    """The files of questions and of passages; arguments and errors as for :func:`load_data`."""
    start = f"{prefix}." if prefix else ""
    return (_named(folder, start + "queries.jsonl", queries),
            _named(folder, start + "corpus.jsonl", corpus))


def _named(folder: Any, name: str, given: Any) -> Path:
    """A file of the layout.

    Raises
    ------
    ConfigError
        It is not there; names the prefixes that are.
    """
    if given is not None:
        return Path(given)
    root = Path(folder)
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder")
    if not (root / name).is_file():
        kind = name.rsplit(".", 2)[-2]
        found = sorted(p.name.removesuffix(f".{kind}.jsonl") for p in root.glob(f"*.{kind}.jsonl"))
        hint = f"; use --prefix with one of {', '.join(found)}" if found else ""
        raise ConfigError(f"{root}: holds no {name}{hint}")
    return root / name


def read_lines(file: Path) -> list[tuple[str, str]]:
    """(where, text) of the lines of a UTF-8 file that are not blank.

    Lines end at a line feed alone: JSON may hold U+2028 inside.

    Raises
    ------
    ConfigError
        The file cannot be read or a line is not UTF-8.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from None
    lines = []
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        where = f"{file}, line {number}"
        try:
            text = raw.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{where}: not UTF-8 at byte {error.start} of the line") from None
        if text:
            lines.append((where, text))
    return lines


def read_questions(file: str | os.PathLike[str]) -> list[Question]:
    """The questions of a JSONL file: ``{"id", "question", "answers", ...}`` a line.

    Raises
    ------
    ConfigError
        The file holds no question, or a line is none; names file and line.
    """
    questions: list[Question] = []
    seen: dict[str, str] = {}
    for where, text in read_lines(Path(file)):
        question = _question(loads_object(where, text), where)
        if question.id in seen:
            raise ConfigError(f"{where}: the id {question.id!r} is taken by {seen[question.id]}")
        seen[question.id] = where
        questions.append(question)
    if not questions:
        raise ConfigError(f"{file}: holds no question")
    return questions


def _question(row: dict[str, Any], where: str) -> Question:
    name = row.get("id")
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    return Question(
        id=_text(where, "id", name), text=_text(where, "question", row.get("question")),
        answers=_texts(where, "answers", row.get("answers"), at_least=1),
        kind=_text(where, "type", row["type"]) if row.get("type") is not None else "",
        gold_titles=_texts(where, "gold_titles", row.get("gold_titles") or []),
        gold_ids=_texts(where, "gold_ids", row.get("gold_ids") or []))


def _text(where: str, name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(
            f"{where}: {name!r} must be a string that is not empty, got {value!r:.80}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError(
            f"{where}: {name!r} holds half of a surrogate pair, got {value!r:.80}") from None
    return value.strip()


def _texts(where: str, name: str, value: object, at_least: int = 0) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) < at_least:
        raise ConfigError(
            f"{where}: {name!r} must be a list of at least {at_least} strings, got {value!r:.80}")
    return tuple(_text(where, f"{name}[{i}]", item) for i, item in enumerate(value))


def _check_gold(questions: list[Question], passages: list[Passage], file: Path) -> None:
    """Gold ids must exist, else recall would quietly be too low. Titles may be incomplete."""
    known = {passage.id for passage in passages}
    for question in questions:
        missing = [name for name in question.gold_ids if name not in known]
        if missing:
            raise ConfigError(
                f"{file}: question {question.id!r} names the gold passage {missing[0]!r}, which "
                "the corpus does not hold")


def _sha256(path: Path) -> str:
    """Of a file, or of all files of a folder with their names."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        if path.is_dir():
            digest.update(file.relative_to(path).as_posix().encode() + b"\0")
        digest.update(file.read_bytes())
    return digest.hexdigest()
