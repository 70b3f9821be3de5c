"""What all retrievers of this package share: adding in two steps, saving, checking filters."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from flarecore.retrieval.filters import compile_filter
from flarecore.retrieval.index_io import write_index_file
from flarecore.retrieval.index_sections import IndexContents
from flarecore.retrieval.passage import Filter, Passage, Progress

__all__ = ["StoredRetriever"]


class StoredRetriever(ABC):
    """A retriever that owns its passages and can be saved. Keeps the ``Retriever`` protocol.

    Safe to share between threads: searches run together, also while another thread adds.
    """

    def __init__(self) -> None:
        self._writer = threading.Lock()  # one add or save at a time

    def __len__(self) -> int:
        return len(self.passages)

    @property
    @abstractmethod
    def passages(self) -> Sequence[Passage]:
        """The passages in the order they were added; do not change."""

    @abstractmethod
    def search(
        self, queries: Sequence[str], k: int, filter: Filter | None = None
    ) -> list[list[Passage]]:
        """One list per query, best first, at most `k` long."""

    @abstractmethod
    def staged_add(
        self, passages: Iterable[Passage], progress: Progress | None = None
    ) -> AbstractContextManager[Callable[[], None]]:
        """Everything of an addition that can fail; the value then adds the passages.

        Nobody else adds or saves between the beginning and the end of the context; leaving it
        without calling the value adds nothing.

        Raises
        ------
        ConfigError, RetrievalError
            As :meth:`add`.
        """

    @abstractmethod
    def contents(self) -> IndexContents:
        """What a file of this index holds; ask and write it within :meth:`frozen`."""

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Keeps others from adding and saving; searches go on."""
        with self._writer:
            yield

    def add(self, passages: Iterable[Passage], *, progress: Progress | None = None) -> None:
        """Adds passages; a failed call adds none. Searches go on meanwhile.

        Parameters
        ----------
        passages : iterable of Passage
        progress : callable, optional
            ``progress(stage, done, total)``; what it raises is passed on and ends the work.

        Raises
        ------
        ConfigError
            A passage cannot be stored, or its id is taken.
        RetrievalError
            The encoder or the analyser failed.
        """
        with self.staged_add(passages, progress) as commit:
            commit()

    def check_filter(self, filter: Filter | None) -> None:
        """Raises ConfigError for a filter that :meth:`search` would refuse."""
        compile_filter(filter)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the index to one file, in one step: a crash leaves the old file or the new one.

        Waits for a running ``add``; searches go on.

        Raises
        ------
        IndexFileError
            The file cannot be written.
        """
        with self.frozen():
            contents = self.contents()
            write_index_file(path, contents.header, contents.sections)
