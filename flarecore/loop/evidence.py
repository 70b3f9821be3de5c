"""From what a retriever returned to the passages a sentence is written with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from flarecore.config import FlareConfig
from flarecore.loop.interfaces import TokenizerLike
from flarecore.loop.pieces import encodable, fill
from flarecore.retrieval.passage import Passage
from flarecore.templates import PromptTemplate, split_piece

__all__ = ["Evidence", "EvidenceItem", "EvidenceMaker"]

_TITLE_TOKENS = 32  # for what a passage of placement parallel has besides its text


@dataclass(frozen=True)
class EvidenceItem:
    """A passage in use.

    Parameters
    ----------
    passage : Passage
        As retrieved.
    text : str
        Its text, cut to the budgets.
    rank : int
        Place in the last search that found it, 0 is best.
    found_step : int
        That search: its number within the answer.
    since_step : int
        The retrieval of the answer from which on it has been in use without a break.
    is_pinned : bool
        One of the question's passages that stay (policy ``keep_first``).
    token_ids : tuple of int
        The rendered passage.
    """

    passage: Passage
    text: str
    rank: int
    found_step: int
    since_step: int
    is_pinned: bool = False
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """The passages of a sentence in the order they are shown; never empty."""

    items: tuple[EvidenceItem, ...]

    @property
    def token_ids(self) -> list[int]:
        """Ids of all rendered passages."""
        return [token_id for item in self.items for token_id in item.token_ids]

    @property
    def num_tokens(self) -> int:
        """Tokens of all rendered passages."""
        return sum(len(item.token_ids) for item in self.items)

    @property
    def passage_ids(self) -> tuple[str, ...]:
        """Ids of the passages."""
        return tuple(item.passage.id for item in self.items)

    def num_tokens_of(self, passage: Passage) -> int:
        """Tokens of a passage as rendered; 0 if it is not in use."""
        return next((len(i.token_ids) for i in self.items if i.passage is passage), 0)


class EvidenceMaker:
    """Selects, cuts, orders and renders passages.

    Parameters
    ----------
    tokenizer : TokenizerLike
        Encodes the passages; their text never yields a special token.
    template : PromptTemplate
        How a passage is rendered.
    config : FlareConfig
        ``evidence_policy``, ``min_score``, ``max_passage_tokens``, ``max_evidence_tokens``,
        ``placement``.
    """

    def __init__(
        self, tokenizer: TokenizerLike, template: PromptTemplate, config: FlareConfig
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._config = config
        is_parallel = config.placement == "parallel"
        self._piece = template.parallel_passage if is_parallel else template.passage

    @functools.cached_property
    def max_rendered_tokens(self) -> int | None:
        """Most tokens of a rendered passage where it is encoded on its own, else None.

        The text is cut to it; titles and ids have room for some tokens.
        """
        if self._config.placement != "parallel":
            return None
        names = {name for _, name in split_piece(self._piece)}
        around = len(self._tokenizer.encode(fill(self._piece, text="", title="", id="")))
        room = _TITLE_TOKENS if names & {"title", "id"} else 0
        return min(self._config.max_passage_tokens + around + room,
                   self._config.max_evidence_tokens)

    def make(
        self, passages: Sequence[Passage], previous: Evidence | None, step: int,
        first: Evidence | None = None,
    ) -> Evidence | None:
        """The usable passages and those that stay, or None if the search gave no usable one.

        Passages below ``min_score``, without text, or with the id or the text of a better one are
        dropped. Those that were in use before come first, in the order they had, so that the
        cached prefix holds. What does not fit is cut, see ``FlareConfig.evidence_policy``.

        Parameters
        ----------
        passages : sequence of Passage
            Best first.
        previous : Evidence or None
            What the retrieval before gave.
        step : int
            Number of this retrieval within the answer.
        first : Evidence or None
            What the initial retrieval gave.
        """
        usable = self._usable(passages)
        if not usable:
            return None
        staying = self._staying(previous, first)
        by_id = {item.passage.id: n for n, item in enumerate(staying)}
        texts = {_words(item.passage.text) for item in staying}
        before = {} if previous is None else {
            item.passage.id: (place, item.since_step) for place, item in enumerate(previous.items)}
        new: list[EvidenceItem] = []
        for rank, (passage, text) in enumerate(usable):
            since = before.get(passage.id, (0, step))[1]
            place = by_id.get(passage.id)
            if place is not None:
                old = staying[place]
                same = old.passage.text == passage.text
                staying[place] = dataclasses.replace(
                    old, passage=passage, text=old.text if same else text, rank=rank,
                    found_step=step)
            elif text and _words(passage.text) not in texts:
                new.append(EvidenceItem(passage, text, rank, step, since))
        new.sort(key=lambda i: before.get(i.passage.id, (len(before) + i.rank, 0))[0])
        return self._render([*staying, *new])

    def without_oldest(self, evidence: Evidence) -> Evidence | None:
        """The same evidence without the passage that was found, and then used, longest ago.

        Among equally old ones the one with the worst rank goes; pinned ones go last. None if it
        was the only one.
        """
        oldest = min(evidence.items, key=lambda i: (
            i.is_pinned, i.found_step, i.since_step, -i.rank))
        return self._render([i for i in evidence.items if i is not oldest])

    def _staying(
        self, previous: Evidence | None, first: Evidence | None
    ) -> list[EvidenceItem]:
        """The passages that stay in use whatever a search gives."""
        policy = self._config.evidence_policy
        if policy == "keep_first" and first is not None:
            return [dataclasses.replace(item, is_pinned=True) for item in first.items]
        return list(previous.items) if policy == "sticky" and previous is not None else []

    def _worst(self, items: Sequence[EvidenceItem]) -> int:
        """The place of the passage that is cut first."""
        by_age = self._config.evidence_policy == "sticky"
        return max(range(len(items)), key=lambda n: (
            -items[n].found_step if by_age else 0, items[n].rank, not items[n].is_pinned, n))

    def _usable(self, passages: Sequence[Passage]) -> list[tuple[Passage, str]]:
        usable: list[tuple[Passage, str]] = []
        seen_ids: set[str] = set()
        seen_texts: set[str] = set()
        for passage in passages:
            words = _words(passage.text)
            if self._config.min_score is not None and passage.score < self._config.min_score:
                continue
            if not words or passage.id in seen_ids or words in seen_texts:
                continue
            seen_ids.add(passage.id)
            seen_texts.add(words)
            # Half a surrogate pair (JSON can hold one) cannot be encoded.
            text = encodable(passage.text.strip())
            usable.append((passage, self._cut(text, self._config.max_passage_tokens)))
        return usable

    def _render(self, items: list[EvidenceItem]) -> Evidence | None:
        limit = self._config.max_evidence_tokens
        while items:
            items = [fitted for number, item in enumerate(items, start=1)
                     if (fitted := self._fitted(number, item)) is not None]
            if not items:
                return None
            evidence = Evidence(tuple(items))
            if evidence.num_tokens <= limit:
                return evidence
            worst = self._worst(items)
            num_text = len(self._tokenizer.encode(items[worst].text))
            text = self._cut(items[worst].text, num_text - (evidence.num_tokens - limit))
            shorter = [dataclasses.replace(items[worst], text=text)] if text else []
            items[worst:worst + 1] = shorter
        return None

    def _fitted(self, number: int, item: EvidenceItem) -> EvidenceItem | None:
        """The passage as rendered, its text cut if that is too long; None if nothing is left."""
        limit = self.max_rendered_tokens
        while item.text:
            ids = self._rendered(number, item)
            if limit is None or len(ids) <= limit:
                return dataclasses.replace(item, token_ids=ids)
            num_text = len(self._tokenizer.encode(item.text))
            item = dataclasses.replace(
                item, text=self._cut(item.text, num_text - (len(ids) - limit)))
        return None

    def _rendered(self, number: int, item: EvidenceItem) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(fill(
            self._piece, number=str(number), text=item.text,
            title=encodable(item.passage.title), id=encodable(item.passage.id))))

    def _cut(self, text: str, max_tokens: int) -> str:
        """The longest start of the text that is at most so many tokens and ends on a character."""
        ids = self._tokenizer.encode(text) if max_tokens > 0 else []
        if len(ids) <= max_tokens:
            return text if max_tokens > 0 else ""
        for num_tokens in range(max_tokens, 0, -1):
            data = b"".join(self._tokenizer.token_bytes(i) for i in ids[:num_tokens])
            start = data.decode("utf-8", "ignore").strip()
            # A start can have other tokens than the whole had there, so count again.
            if start and len(self._tokenizer.encode(start)) <= max_tokens:
                return start
        return ""


def _words(text: str) -> str:
    """What makes two passages the same text."""
    return " ".join(text.split())
