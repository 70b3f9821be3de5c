"""What index files of several kinds hold: passages, vectors, an encoder; and how it is checked."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flarecore.errors import ConfigError, IndexFileError
from flarecore.model_files import KNOWN_MODELS
from flarecore.quantization import QUANTIZE
from flarecore.retrieval.index_io import IndexFile
from flarecore.retrieval.passage import Passage, TextEncoder, check_text_encoder
from flarecore.retrieval.ranking import FloatArray
from flarecore.retrieval.store import PassageStore

__all__ = [
    "MAX_COUNT",
    "GivenEncoder",
    "IndexContents",
    "array_bytes",
    "check_encoder",
    "check_kind",
    "encoder_header",
    "passage_lines",
    "read_flag",
    "read_passages_section",
    "read_store",
    "section_lines",
    "store_contents",
]

MAX_COUNT = (1 << 31) - 1
# An encoder, its name or folder, or nothing: its stored name then.
GivenEncoder = TextEncoder | str | os.PathLike[str] | None
_PASSAGES_PER_CHUNK = 1024


@dataclass
class IndexContents:
    """What :func:`flarecore.retrieval.index_io.write_index_file` writes."""

    header: dict[str, Any]
    sections: dict[str, Iterable[bytes | memoryview]]


def check_kind(file: IndexFile, kind: str) -> None:
    """Raises IndexFileError for an index of another kind."""
    if file.header.get("kind") != kind:
        raise IndexFileError(
            f"{file.path}: holds an index of kind {file.header.get('kind')!r}, wanted {kind!r}; "
            "flarecore.load_index opens every kind")


def read_flag(file: IndexFile, name: str) -> bool:
    """A boolean of the header."""
    value = file.header.get(name)
    if not isinstance(value, bool):
        raise IndexFileError(f"{file.path}: header field {name!r} must be a boolean")
    return value


def encoder_header(encoder: TextEncoder) -> dict[str, str]:
    """How a header names an encoder, and how its weights are quantised if they are."""
    header = {"name": encoder.name, "fingerprint": encoder.fingerprint}
    quantize = _quantize_of(encoder)
    if quantize is not None:
        header["quantize"] = quantize
    return header


def _quantize_of(encoder: TextEncoder) -> str | None:
    """As of SentenceEncoder; what another class means by an attribute of that name is its own."""
    from flarecore.retrieval.encoder import SentenceEncoder

    return encoder.quantize if isinstance(encoder, SentenceEncoder) else None


def array_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """The memory of an array, row by row."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def passage_lines(passages: Sequence[Passage]) -> Iterator[bytes]:
    """Section ``passages``: one JSON object a line."""
    for begin in range(0, len(passages), _PASSAGES_PER_CHUNK):
        lines = []
        for passage in passages[begin : begin + _PASSAGES_PER_CHUNK]:
            fields = passage.to_json()
            del fields["score"]
            lines.append(json.dumps(fields, ensure_ascii=False, separators=(",", ":")))
        yield ("\n".join(lines) + "\n").encode("utf-8")


def check_encoder(file: IndexFile, encoder: GivenEncoder) -> TextEncoder:
    """The encoder that the index was built with: the given one, or loaded as the file says."""
    stored = file.header.get("encoder")
    fields = stored if isinstance(stored, dict) else {}
    name, fingerprint = fields.get("name"), fields.get("fingerprint")
    if not isinstance(name, str) or not isinstance(fingerprint, str):
        raise IndexFileError(f"{file.path}: the header does not name the encoder")
    quantize = fields.get("quantize")
    if quantize is not None and quantize not in QUANTIZE:
        raise IndexFileError(f"{file.path}: built with an encoder that is quantised as "
                             f"{quantize!r}, known are {', '.join(QUANTIZE)}")
    if encoder is None or isinstance(encoder, (str, os.PathLike)):
        encoder = _load_encoder(file, name, quantize, encoder)
    check_text_encoder(encoder)
    dim = file.integer("dim", 1, 1 << 16)
    if (encoder.fingerprint, encoder.dim) != (fingerprint, dim):
        own = _described(
            encoder.name, encoder.dim, encoder.fingerprint, _quantize_of(encoder))
        raise IndexFileError(
            f"{file.path}: built with the encoder {_described(name, dim, fingerprint, quantize)}, "
            f"opened with {own}; pass the first, leave it out to have it loaded by its name, or "
            "build the index again")
    return encoder


def _described(name: str, dim: int, fingerprint: str, quantize: str | None) -> str:
    how = "not quantised" if quantize is None else f"quantised as {quantize}"
    return f"{name!r} ({how}, dim {dim}, fingerprint {fingerprint[:12]})"


def _load_encoder(
    file: IndexFile, name: str, quantize: str | None, given: str | os.PathLike[str] | None
) -> TextEncoder:
    """By its stored name, or from where the caller says it is."""
    from flarecore.retrieval.encoder import SentenceEncoder

    # A name from a file may pick a known model, never a place on the disk.
    if given is None and name not in KNOWN_MODELS:
        raise IndexFileError(
            f"{file.path}: built with the encoder {name!r}, which is no known model; pass "
            "encoder=, the encoder or its folder (flarecore generate --encoder DIR)")
    return SentenceEncoder.load(name if given is None else given, quantize=quantize)


def store_contents(
    kind: str, encoder: TextEncoder, store: PassageStore, *, title_in_text: bool
) -> IndexContents:
    """What every index with an encoder holds; :func:`read_store` reads it."""
    header = {"kind": kind, "count": len(store), "dim": store.dim,
              "encoder": encoder_header(encoder), "title_in_text": title_in_text}
    return IndexContents(header, {
        "passages": passage_lines(store.passages),
        "vectors": [array_bytes(store.vectors.astype("<f4", copy=False))]})


def read_store(file: IndexFile, encoder: TextEncoder) -> PassageStore:
    """Sections ``passages`` and ``vectors``, (count, dim) float32, of an index with an encoder."""
    count = file.integer("count", 0, MAX_COUNT)
    vectors = _read_vectors(file, count, encoder.dim)
    store = PassageStore(encoder.dim)
    try:
        store.append_embedded(store.check_new(read_passages_section(file, count)), vectors)
    except ConfigError as error:
        raise IndexFileError(f"{file.path}: {error}") from error
    return store


def _read_vectors(file: IndexFile, count: int, dim: int) -> FloatArray:
    data = file.section("vectors", count * dim * 4)
    vectors: FloatArray = data.view("<f4").reshape(count, dim).astype(np.float32, copy=False)
    # Also false for NaN. exact_top_k relies on lengths of at most 1.
    if not (np.einsum("ij,ij->i", vectors, vectors) <= 1.001).all():
        raise IndexFileError(f"{file.path}: a vector is longer than 1 or not finite")
    return vectors


def read_passages_section(file: IndexFile, count: int) -> Iterator[Passage]:
    """The passages of a section; they are not checked further."""
    if file.passages is not None:
        if len(file.passages) != count:
            raise IndexFileError(
                f"{file.path}: has {len(file.passages)} passages, a part of it says {count}")
        yield from file.passages
        return
    for number, line in enumerate(section_lines(file, "passages", count), start=1):
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict) or "score" in fields:
                raise ConfigError("a line must be an object without a score")
            yield Passage.from_json(fields)
        except (ValueError, RecursionError) as error:  # ConfigError is a ValueError
            raise IndexFileError(
                f"{file.path}: section 'passages', line {number}: {error}") from error


def section_lines(file: IndexFile, name: str, count: int) -> list[bytes]:
    """The lines of a section, which must be `count`, each with its end."""
    lines = file.section(name).tobytes().split(b"\n")
    if len(lines) != count + 1 or lines[-1]:
        raise IndexFileError(
            f"{file.path}: section {name!r} must have {count} lines, got {len(lines) - 1}")
    return lines[:-1]
