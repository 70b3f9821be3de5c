"""What a retriever takes and gives back: passages, the retriever and encoder protocols, checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from flarecore.errors import ConfigError, RetrievalError
from flarecore.validation import check_number

__all__ = [
    "Filter",
    "Passage",
    "Progress",
    "Retriever",
    "TextEncoder",
    "check_results",
    "check_search_arguments",
]

Filter = Mapping[str, Any]
"""Metadata conditions that hold together; see :mod:`flarecore.retrieval.filters`."""

Progress = Callable[[str, int, int], None]
"""``progress(stage, done, total)``; what it raises (Ctrl-C, a cancel) ends the work."""


@dataclass(frozen=True)
class Passage:
    """A piece of text that a retriever can return.

    Parameters
    ----------
    id : str
        Unique within an index, never empty.
    text : str
        The text that is shown to the model.
    title : str
        Heading of the document or section the text belongs to.
    score : float
        Set by the retriever on results: higher is better (cosine similarity for dense retrievers).
    metadata : Mapping of str to JSON value
        What filters look at; kept as given by save and load.

    Raises
    ------
    ConfigError
        `id`, `text` or `title` is no string, or `metadata` no mapping.
    """

    id: str
    text: str
    title: str = ""
    score: float = 0.0
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("id", "text", "title"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(
                    f"Passage.{name} must be a string, got {type(getattr(self, name)).__name__}")
        if not isinstance(self.metadata, Mapping):
            raise ConfigError(
                f"Passage.metadata must map names to values, got {type(self.metadata).__name__}")

    def with_score(self, score: float) -> Passage:
        """The same passage with another score."""
        if type(self) is Passage:
            # What replace would do after looking through the fields; every result is made here.
            return Passage(self.id, self.text, self.title, score, self.metadata)
        return replace(self, score=score)

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values; :meth:`from_json` gives an equal passage back."""
        return {
            "id": self.id,
            "title": self.title,
            "text": self.text,
            "score": self.score,
            "metadata": dict(self.metadata),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Passage:
        """The passage that :meth:`to_json` wrote.

        Raises
        ------
        ConfigError
            A key is missing, unknown or of the wrong type.
        """
        kinds: dict[str, Any] = {
            "id": str, "title": str, "text": str, "score": (int, float), "metadata": Mapping}
        for key, value in data.items():
            if key not in kinds or not isinstance(value, kinds[key]) or isinstance(value, bool):
                raise ConfigError(
                    f"passage: unexpected {key!r} of type {type(value).__name__}; a passage has "
                    "id, title and text (strings), score (a number) and metadata (an object)")
        if "id" not in data or "text" not in data:
            raise ConfigError(f"passage: needs id and text, got only {sorted(data)}")
        return cls(**data)


@runtime_checkable
class Retriever(Protocol):
    """Anything that finds passages for queries."""

    def search(
        self, queries: Sequence[str], k: int, filter: Filter | None = None
    ) -> list[list[Passage]]:
        """One list per query, best first, at most `k` long; fewer (or none) is no error."""
        ...


@runtime_checkable
class TextEncoder(Protocol):
    """Anything that turns texts into vectors of one length."""

    @property
    def dim(self) -> int:
        """Length of a vector."""
        ...

    @property
    def name(self) -> str:
        """What the user knows the encoder by."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal for two encoders only if they give the same vectors."""
        ...

    def encode(self, texts: list[str]) -> npt.NDArray[np.float32]:
        """(len(texts), dim) float32."""
        ...


def check_text_encoder(encoder: object) -> None:
    """Raises ConfigError for what is no encoder."""
    if not isinstance(encoder, TextEncoder):
        raise ConfigError(
            "encoder must have name, dim, fingerprint and encode(texts), got "
            f"{type(encoder).__name__}; SentenceEncoder.load(name_or_path) makes one")


def check_search_arguments(queries: Sequence[str], k: int) -> list[str]:
    """The queries as a list, once both arguments are known to be usable.

    Raises
    ------
    ConfigError
        `queries` is one string or holds something else than strings; `k` is not an int >= 1.
    """
    if isinstance(queries, (str, bytes)) or not isinstance(queries, Sequence):
        raise ConfigError(
            f"search: queries must be a list of strings, got {type(queries).__name__}; "
            "wrap a single query in a list")
    for position, query in enumerate(queries):
        if not isinstance(query, str):
            raise ConfigError(
                f"search: query {position} must be a string, got {type(query).__name__}")
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise ConfigError(f"search: k must be an integer >= 1, got {k!r}")
    return list(queries)


def check_results(results: object, num_queries: int, k: int) -> list[list[Passage]]:
    """What a foreign retriever returned, once it is known to keep the protocol.

    Parameters
    ----------
    results : object
        The return value of ``Retriever.search``.
    num_queries, k : int
        What was asked for.

    Returns
    -------
    list of list of Passage

    Raises
    ------
    RetrievalError
        Another number of lists than queries, a list longer than `k`, or an item that is no
        :class:`Passage` with a text, an id and a finite score.
    """
    if inspect.iscoroutine(results):
        results.close()  # nobody will await it
        raise RetrievalError(
            "retriever: search returned a coroutine; an async method must be called asearch, "
            "beside a plain search")
    if not isinstance(results, (list, tuple)):
        raise RetrievalError(
            f"retriever: search must return a list of lists of Passage, got "
            f"{type(results).__name__}")
    if len(results) != num_queries:
        raise RetrievalError(
            f"retriever: search returned {len(results)} lists for {num_queries} queries")
    return [_check_list(found, position, k) for position, found in enumerate(results)]


def _check_list(found: object, position: int, k: int) -> list[Passage]:
    if not isinstance(found, (list, tuple)):
        raise RetrievalError(
            f"retriever: the result of query {position} must be a list of Passage, got "
            f"{type(found).__name__}")
    if len(found) > k:
        raise RetrievalError(
            f"retriever: query {position} has {len(found)} passages, at most k = {k} were asked "
            "for")
    for rank, passage in enumerate(found):
        where = f"retriever: result {rank} of query {position}"
        if not isinstance(passage, Passage):
            raise RetrievalError(f"{where} must be a Passage, got {type(passage).__name__}")
        if not isinstance(passage.id, str) or not isinstance(passage.text, str):
            raise RetrievalError(
                f"{where} must have a string as id and text, got {type(passage.id).__name__} and "
                f"{type(passage.text).__name__}")
        if not isinstance(passage.title, str):
            raise RetrievalError(
                f"{where}: title must be a string, got {type(passage.title).__name__}")
        score = passage.score
        try:
            check_number("score", score)
        except ConfigError as error:
            raise RetrievalError(f"{where}: {error}") from None
    return list(found)
