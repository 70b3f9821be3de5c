"""Exact search over dense vectors: the oracle, and all that a small collection needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flarecore.retrieval.filters import compile_filter
from flarecore.retrieval.passage import (
    Filter,
    Passage,
    Progress,
    TextEncoder,
    check_search_arguments,
)
from flarecore.retrieval.ranking import exact_top_k
from flarecore.retrieval.store import PassageStore, StoreOptions, embed, embed_passages

__all__ = ["ExactRetriever"]


class ExactRetriever:
    """Cosine similarity against every passage.

    Not for concurrent ``add``: serialise it against ``search`` yourself.

    Parameters
    ----------
    encoder : TextEncoder
    passages : iterable of Passage
    title_in_text : bool
        Embed the title with the text.
    progress : callable, optional
        ``progress("embed", done, total)``.

    Raises
    ------
    ConfigError
        A passage cannot be stored; see ``PassageStore.check_new``.
    RetrievalError
        The encoder failed.
    """

    def __init__(
        self, encoder: TextEncoder, passages: Iterable[Passage] = (), *,
        title_in_text: bool = True, progress: Progress | None = None
    ) -> None:
        self._encoder = encoder
        self._options = StoreOptions(title_in_text=title_in_text)
        self._store = PassageStore(encoder.dim)
        self.add(passages, progress=progress)

    def __len__(self) -> int:
        return len(self._store)

    def add(self, passages: Iterable[Passage], *, progress: Progress | None = None) -> None:
        """Adds passages; a failed call adds none. Raises what the constructor raises."""
        new = self._store.check_new(passages)
        self._store.append(new, embed_passages(self._encoder, new, self._options, progress))

    def check_filter(self, filter: Filter | None) -> None:
        """Raises ConfigError for a filter that :meth:`search` would refuse."""
        compile_filter(filter)

    def search(
        self, queries: Sequence[str], k: int, filter: Filter | None = None
    ) -> list[list[Passage]]:
        """The `k` most similar passages that meet the filter, for each query, best first.

        Raises
        ------
        ConfigError
            Unusable arguments or filter.
        RetrievalError
            The encoder failed.
        """
        texts = check_search_arguments(queries, k)
        allowed = self._store.allowed(compile_filter(filter))
        vectors = embed(self._encoder, texts, self._options.batch_size)
        return [self._store.results(rows, scores)
                for rows, scores in exact_top_k(self._store.vectors, vectors, k, allowed)]
