"""The demonstration's knowledge base and questions, and its index in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flarecore.errors import IndexFileError, RetrievalWarning

if TYPE_CHECKING:
    from flarecore.retrieval.encoder import SentenceEncoder
    from flarecore.retrieval.hnsw import HnswRetriever
    from flarecore.retrieval.passage import Progress
    from flarecore.templates import PromptTemplate

__all__ = ["DATA", "QUESTIONS", "DemoQuestion", "cache_folder", "demo_template", "load_index",
           "own_question"]

DATA = Path(__file__).resolve().parent / "data" / "demo"
# Part of the file name of the cached index: raise it when the way it is built changes.
_RECIPE = 1


@dataclass(frozen=True)
class DemoQuestion:
    """A question with what its queries inherit: `scope` and `filter` of ``Flare.generate``."""

    text: str
    scope: str | None = None
    filter: Mapping[str, Any] = field(default_factory=dict)


# Chosen so that the answers hold at every CPU level and in both arithmetics: this small model is
# unsure of nearly every word, and the last bits of a sum decide between words of equal confidence.
QUESTIONS = (
    DemoQuestion("Who was Ilse Marwede, and what is she known for?", "Ilse Marwede",
                 {"lang": "en", "topic": "biography"}),
    DemoQuestion("Who is Noor Haddarian, and what is she known for?", "Noor Haddarian",
                 {"lang": "en", "topic": "biography"}),
    # The knowledge base holds the rules of 2024 as well: the filter keeps them out.
    DemoQuestion("What are the rules for flights in 2026?", "travel policy 2026 flights",
                 {"lang": "en", "topic": "travel-policy", "date": {"gte": "2026-01-01"}}),
)


def demo_template() -> PromptTemplate:
    """Plain wording that a model of 135 million parameters follows."""
    from flarecore.templates import PromptTemplate

    return PromptTemplate.chat(
        head="You are a helpful assistant. Answer the question in a paragraph of short sentences.",
        passage="{text}\n\n",
        prefix_evidence="Use these notes.\n\n{passages}Question: ",
        first_evidence="\n\nUse these notes.\n\n{passages}",
        parallel_passage="Note: {text}\n\n",
        boundary_evidence="Use these notes.\n\n{passages}Go on with the next sentence.",
        stop=("\nQuestion:",))


def own_question(text: str, scope: str | None) -> DemoQuestion:
    """A user's question, over the passages in its language."""
    is_chinese = any("\u4e00" <= char <= "\u9fff" for char in text)
    return DemoQuestion(text, scope, {"lang": "zh" if is_chinese else "en"})


def cache_folder() -> Path:
    """Where this user's caches go: ``$XDG_CACHE_HOME/flarecore`` or ``~/.cache/flarecore``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says that a relative path is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / ".cache"
    return root / "flarecore"


def load_index(
    encoder: SentenceEncoder, *, use_cache: bool, progress: Progress
) -> tuple[HnswRetriever, str]:
    """The index of the knowledge base, from the cache if it is there and fits.

    Parameters
    ----------
    encoder : SentenceEncoder
        For passages and queries.
    use_cache : bool
        False neither reads nor writes the cache.
    progress : callable
        ``progress(stage, done, total)`` while the index is built.

    Returns
    -------
    HnswRetriever, str
        The index, and where it came from in words.
    """
    from flarecore.retrieval.hnsw import HnswRetriever

    path = cache_folder() / f"demo-{_checksum(encoder)[:16]}.index"
    if use_cache and path.is_file():
        # A damaged file is built again, like one that is not there.
        with contextlib.suppress(IndexFileError):
            return HnswRetriever.load(path, encoder), f"index read from {path}"
    from flarecore.retrieval.corpus import read_passages

    passages = read_passages(DATA)
    with warnings.catch_warnings():
        # Half of the passages are Chinese, for filters by language; the questions are English.
        warnings.simplefilter("ignore", RetrievalWarning)
        # exact_below=0: a graph even for so few passages, as a large collection would have it.
        index = HnswRetriever.build(passages, encoder, exact_below=0, progress=progress)
    if not use_cache:
        return index, f"index of {len(index)} passages built, not kept"
    try:
        _replace(path, index)
    except (OSError, IndexFileError) as error:
        return index, f"index of {len(index)} passages built, but not kept: {error}"
    return index, f"index of {len(index)} passages built, kept in {path}"


def _checksum(encoder: SentenceEncoder) -> str:
    """Of everything the index is made from."""
    digest = hashlib.sha256(f"{_RECIPE}:{encoder.fingerprint}".encode())
    for file in sorted(DATA.glob("*.jsonl")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _replace(path: Path, index: HnswRetriever) -> None:
    """Saves the index and drops those of other checksums."""
    path.parent.mkdir(parents=True, exist_ok=True)
    index.save(path)
    for old in path.parent.glob("demo-*.index"):
        if old != path:
            old.unlink(missing_ok=True)
