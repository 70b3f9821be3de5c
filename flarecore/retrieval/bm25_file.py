"""What an index file of :class:`BM25Retriever` holds, and how its parts are checked.

Sections: ``passages`` (one JSON object a line), ``terms`` (one JSON string a line), ``lengths``
(count) and ``numbers`` (sum of lengths) uint32 as in ``TermTable``. Scores are computed anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from flarecore.errors import ConfigError, IndexFileError
from flarecore.retrieval.analysis import Analyser, TextAnalyser
from flarecore.retrieval.bm25_terms import BM25Params, TermTable, analysed
from flarecore.retrieval.index_io import IndexFile
from flarecore.retrieval.index_sections import (
    MAX_COUNT,
    IndexContents,
    array_bytes,
    check_kind,
    passage_lines,
    read_flag,
    read_passages_section,
    section_lines,
)
from flarecore.retrieval.passage_table import PassageTable

__all__ = ["BM25Parts", "bm25_contents", "parts_from_file"]

_KIND = "bm25"
_TERMS_PER_CHUNK = 4096
_NUM_SAMPLES = 8


@dataclass
class BM25Parts:
    """Everything a retriever consists of but the scores, which follow from it."""

    table: PassageTable
    terms: TermTable
    analyser: Analyser
    params: BM25Params
    title_in_text: bool


def bm25_contents(parts: BM25Parts) -> IndexContents:
    """What an index file of these parts holds."""
    header = {
        "kind": _KIND,
        "count": len(parts.table),
        "num_terms": len(parts.terms.number_of),
        "analyser": {"name": parts.analyser.name, "options": dict(parts.analyser.options)},
        "title_in_text": parts.title_in_text,
        "k1": parts.params.k1,
        "b": parts.params.b,
    }
    return IndexContents(header, {
        "passages": passage_lines(parts.table.passages),
        "terms": _term_lines(parts.terms),
        "lengths": [array_bytes(parts.terms.lengths.astype("<u4", copy=False))],
        "numbers": [array_bytes(parts.terms.numbers.astype("<u4", copy=False))],
    })


def _term_lines(terms: TermTable) -> Iterator[bytes]:
    texts = list(terms.number_of)
    for begin in range(0, len(texts), _TERMS_PER_CHUNK):
        yield "".join(f"{json.dumps(text)}\n"
                      for text in texts[begin : begin + _TERMS_PER_CHUNK]).encode("ascii")


def parts_from_file(file: IndexFile, analyser: Analyser | None) -> BM25Parts:
    """The checked parts of an index file; see ``BM25Retriever.load``."""
    check_kind(file, _KIND)
    analyser = _check_analyser(file, analyser)
    count = file.integer("count", 0, MAX_COUNT)
    terms = _read_terms(file, count)
    table = PassageTable()
    try:
        params = BM25Params(*(_number(file, name) for name in ("k1", "b")))
        table.append(table.check_new(read_passages_section(file, count)))
    except ConfigError as error:
        raise IndexFileError(f"{file.path}: {error}") from error
    parts = BM25Parts(table, terms, analyser, params, read_flag(file, "title_in_text"))
    _check_samples(file, parts)
    return parts


def _number(file: IndexFile, name: str) -> float:
    value = file.header.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise IndexFileError(f"{file.path}: header field {name!r} must be a number, got {value!r}")
    return value


def _check_analyser(file: IndexFile, analyser: Analyser | None) -> Analyser:
    stored = file.header.get("analyser")
    fields = stored if isinstance(stored, dict) else {}
    name, options = fields.get("name"), fields.get("options")
    if not isinstance(name, str) or not isinstance(options, dict):
        raise IndexFileError(f"{file.path}: the header does not name the analyser")
    if analyser is None:
        analyser = _analyser_by_name(file, name, options)
    # As they come back from JSON, where a tuple is a list.
    given = json.loads(json.dumps(dict(analyser.options)))
    if (analyser.name, given) != (name, options):
        raise IndexFileError(
            f"{file.path}: built with the analyser {name!r} {options}, opened with "
            f"{analyser.name!r} {given}; pass the first or build the index again")
    return analyser


def _analyser_by_name(file: IndexFile, name: str, options: dict[str, Any]) -> Analyser:
    if name != TextAnalyser().name:
        raise IndexFileError(
            f"{file.path}: built with the analyser {name!r}, which is not of this version; pass "
            "analyser= or build the index again")
    try:
        return TextAnalyser(**options)
    except (TypeError, ConfigError) as error:
        raise IndexFileError(f"{file.path}: the analyser's options {options}: {error}") from error


def _read_terms(file: IndexFile, count: int) -> TermTable:
    num_terms = file.integer("num_terms", 0, MAX_COUNT)
    lengths = file.section("lengths", count * 4).view("<u4").astype(np.uint32, copy=False)
    total = int(lengths.sum(dtype=np.int64))
    numbers = file.section("numbers", total * 4).view("<u4").astype(np.uint32, copy=False)
    number_of: dict[str, int] = {}
    for number, line in enumerate(section_lines(file, "terms", num_terms)):
        try:
            term = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise IndexFileError(
                f"{file.path}: section 'terms', line {number + 1}: {error}") from error
        if not isinstance(term, str) or not term or term in number_of:
            raise IndexFileError(
                f"{file.path}: section 'terms', line {number + 1}: must be a string that is not "
                f"empty and not there already, got {term!r:.100}")
        number_of[term] = number
    # Every term has to occur: its weight divides by how often.
    used = np.zeros(num_terms, dtype=np.bool_)
    if total and int(numbers.max()) < num_terms:
        used[numbers] = True
    if (total and int(numbers.max()) >= num_terms) or not used.all():
        raise IndexFileError(
            f"{file.path}: section 'numbers' must name each of the {num_terms} terms and no other")
    return TermTable(number_of, lengths, numbers)


def _check_samples(file: IndexFile, parts: BM25Parts) -> None:
    """Whether the analyser still makes the stored terms: its name alone does not prove it."""
    count = len(parts.table)
    ends, texts = parts.terms.ends(), list(parts.terms.number_of)
    for row in sorted({*np.linspace(0, count - 1, min(count, _NUM_SAMPLES)).astype(int).tolist()}):
        begin = int(ends[row] - parts.terms.lengths[row])
        stored = [texts[number] for number in parts.terms.numbers[begin : int(ends[row])]]
        passage = parts.table.passages[row]
        if list(analysed(parts.analyser, [passage], parts.title_in_text)[0]) != stored:
            raise IndexFileError(
                f"{file.path}: the analyser {parts.analyser.name!r} makes other terms of passage "
                f"{passage.id!r} than when the index was built; build the index again")
