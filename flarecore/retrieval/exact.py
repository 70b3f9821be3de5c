"""Exact search over dense vectors: the oracle, and all that a small collection needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from flarecore.retrieval.filters import compile_filter
from flarecore.retrieval.index_io import IndexFile, read_index_file
from flarecore.retrieval.index_sections import (
    GivenEncoder,
    IndexContents,
    check_encoder,
    check_kind,
    read_flag,
    read_store,
    store_contents,
)
from flarecore.retrieval.locks import ReadWriteLock
from flarecore.retrieval.passage import (
    Filter,
    Passage,
    Progress,
    TextEncoder,
    check_search_arguments,
    check_text_encoder,
)
from flarecore.retrieval.ranking import exact_top_k
from flarecore.retrieval.store import PassageStore, StoreOptions, embed, embed_passages
from flarecore.retrieval.stored import StoredRetriever

__all__ = ["ExactRetriever"]

_KIND = "exact"


class ExactRetriever(StoredRetriever):
    """Cosine similarity against every passage.

    Parameters
    ----------
    encoder : TextEncoder
    passages : iterable of Passage
    title_in_text : bool
        Embed "title, newline, text" instead of the text alone.
    batch_size : int
        Texts per call of the encoder.
    progress : callable, optional
        ``progress("embed", done, total)``.

    Raises
    ------
    ConfigError
        A passage cannot be stored; see ``PassageTable.check_new``.
    RetrievalError
        The encoder failed.
    """

    def __init__(
        self, encoder: TextEncoder, passages: Iterable[Passage] = (), *,
        title_in_text: bool = True, batch_size: int = 64, progress: Progress | None = None
    ) -> None:
        super().__init__()
        check_text_encoder(encoder)
        self._encoder = encoder
        self._options = StoreOptions(title_in_text=title_in_text, batch_size=batch_size)
        self._store = PassageStore(encoder.dim)
        self._lock = ReadWriteLock()
        self.add(passages, progress=progress)

    @classmethod
    def build(
        cls, passages: Iterable[Passage], encoder: TextEncoder, *, title_in_text: bool = True,
        batch_size: int = 64, progress: Progress | None = None
    ) -> ExactRetriever:
        """The constructor with the arguments in the order of the other retrievers' ``build``."""
        return cls(encoder, passages, title_in_text=title_in_text, batch_size=batch_size,
                   progress=progress)

    @property
    def encoder(self) -> TextEncoder:
        """The encoder of passages and queries."""
        return self._encoder

    @property
    def passages(self) -> Sequence[Passage]:
        """The passages in the order they were added; do not change."""
        return self._store.passages

    @contextmanager
    def staged_add(
        self, passages: Iterable[Passage], progress: Progress | None = None
    ) -> Iterator[Callable[[], None]]:
        """See ``StoredRetriever.staged_add``."""
        with self._writer:
            new = self._store.check_new(passages)
            vectors = embed_passages(self._encoder, new, self._options, progress)

            def commit() -> None:
                with self._lock.write():
                    self._store.append_embedded(new, vectors)

            yield commit

    def search(
        self, queries: Sequence[str], k: int, filter: Filter | None = None
    ) -> list[list[Passage]]:
        """The `k` most similar passages that meet the filter, for each query, best first.

        ``score`` is the cosine similarity; equal scores keep the order the passages were added in.

        Raises
        ------
        ConfigError
            Unusable arguments or filter.
        RetrievalError
            The encoder failed.
        """
        texts = check_search_arguments(queries, k)
        compiled = compile_filter(filter)
        vectors = embed(self._encoder, texts, self._options.batch_size)
        with self._lock.read():
            found = exact_top_k(
                self._store.vectors, vectors, int(k), self._store.allowed(compiled))
            return [self._store.results(rows, scores) for rows, scores in found]

    def contents(self) -> IndexContents:
        """See ``StoredRetriever.contents``."""
        return store_contents(
            _KIND, self._encoder, self._store, title_in_text=self._options.title_in_text)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], encoder: GivenEncoder = None
    ) -> ExactRetriever:
        """The index that :meth:`save` wrote.

        Parameters
        ----------
        path : path
        encoder : TextEncoder, str or path, optional
            The encoder the index was built with, or its name or folder, which is loaded quantised
            as it was; by its stored name if None.

        Raises
        ------
        IndexFileError
            Missing, damaged, hostile, of another version, or built with another encoder.
        """
        return cls.from_file(read_index_file(path), encoder)

    @classmethod
    def from_file(cls, file: IndexFile, encoder: GivenEncoder) -> ExactRetriever:
        """As :meth:`load`, of a file that was read."""
        check_kind(file, _KIND)
        encoder = check_encoder(file, encoder)
        retriever = cls(encoder, title_in_text=read_flag(file, "title_in_text"))
        retriever._store = read_store(file, encoder)
        return retriever
