"""FLARE-direct the slow way: every draft and every regeneration starts from nothing.

Written from design 3.1-3.5 and the paper (Jiang et al. 2023, arXiv 2305.06983, section 3.2), apart
from the controller, so that the two can be compared: no cache, no speculation, no forks, one token
at a time. It does what is needed for that comparison: the trigger with θ, masked queries, both
placements, the ``replace`` policy, ``accept_draft`` where no passage is found.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

__all__ = [
    "NaiveAnswer",
    "NaiveOptions",
    "NaiveSentence",
    "NaiveTemplate",
    "TokenSource",
    "naive_flare",
]

TokenProb = tuple[int | None, float]


class TokenSource(Protocol):
    """A model, asked from scratch for each sentence."""

    def stream(self, token_ids: Sequence[int], pass_index: int) -> Callable[[], TokenProb]:
        """Prefill a context into a new sequence.

        Each call of what is returned appends one more token and gives its id and confidence; None
        for the id is the end of the text.
        """
        ...


class NaiveTokenizer(Protocol):
    """What the loop needs of a tokenizer."""

    @property
    def adds_bos(self) -> bool:
        """Whether a prompt begins with a begin-of-sequence token."""
        ...

    def encode(self, text: str, *, add_bos: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids of a text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of a token."""
        ...


class NaiveTemplate(Protocol):
    """Pieces of a base-model prompt; the fields of ``PromptTemplate.base()``."""

    head: str
    question: str
    answer: str
    passage: str
    prefix_evidence: str
    first_evidence: str
    boundary_evidence: str


@dataclass(frozen=True)
class NaiveOptions:
    """Options, named and meant as in ``FlareConfig``.

    ``search`` takes a query and gives passages with ``id`` and ``text``, best first.
    ``make_boundary`` and ``mask_to_query`` are the reference text rules.
    """

    search: Callable[[str], Sequence[Any]]
    make_boundary: Callable[[], Any]
    mask_to_query: Callable[..., tuple[str, list[bool]]]
    theta: float = 0.8
    beta: float = 0.4
    placement: str = "prefix"
    draft_context: str = "none"
    initial_retrieval: bool = True
    trigger_punctuation: bool = False
    mask_unit: str = "auto"
    max_query_tokens: int = 64
    max_passage_tokens: int = 160
    max_draft_tokens: int = 64
    max_new_tokens: int = 256
    max_sentences: int | None = None


@dataclass(frozen=True)
class NaivePass:
    """A sentence as written once.

    ``token_ids`` (n,), ``probs`` (n,) float32; ``stop_reason`` is ``sentence``, ``eos`` or
    ``max_tokens``.
    """

    token_ids: tuple[int, ...]
    probs: np.ndarray[Any, np.dtype[np.float32]]
    stop_reason: str


@dataclass(frozen=True)
class NaiveSentence:
    """A draft and what became of it; ``query`` is None if it did not trigger."""

    draft: NaivePass
    query: str | None
    passage_ids: tuple[str, ...]
    regenerated: NaivePass | None

    @property
    def accepted(self) -> NaivePass:
        """The pass that entered the answer."""
        return self.regenerated or self.draft


@dataclass
class NaiveAnswer:
    """The answer, and every context and query on the way to it."""

    sentences: list[NaiveSentence] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    text: bytes = b""
    stop_reason: str = ""
    initial_passage_ids: tuple[str, ...] = ()
    num_prefilled: int = 0


@dataclass(frozen=True)
class _Evidence:
    """Rendered passages, and the answer length at which they were retrieved."""

    ids: tuple[str, ...]
    tokens: list[int]
    boundary: int


class _Loop:
    def __init__(
        self,
        source: TokenSource,
        tokenizer: NaiveTokenizer,
        template: NaiveTemplate,
        question: str,
        options: NaiveOptions,
    ) -> None:
        self.source, self.tokenizer, self.template = source, tokenizer, template
        self.question, self.options = question, options
        self.answer = NaiveAnswer()
        self.head = tokenizer.encode(template.head, add_bos=tokenizer.adds_bos, parse_special=True)
        self.asked = tokenizer.encode(template.question.format(question=question))
        self.opening = tokenizer.encode(template.answer)

    # ---- contexts (design 3.5) ----

    def context(self, evidence: _Evidence | None) -> list[int]:
        """Everything before the next sentence, put together from the first token on."""
        written = self.answer.token_ids
        if evidence is None:
            return self.head + self.asked + self.opening + written
        if self.options.placement == "prefix":
            block = self.block(self.template.prefix_evidence, evidence)
            return self.head + block + self.asked + self.opening + written
        if evidence.boundary == 0:
            block = self.block(self.template.first_evidence, evidence)
            return self.head + self.asked + block + self.opening + written
        block = self.block(self.template.boundary_evidence, evidence)
        before, after = written[: evidence.boundary], written[evidence.boundary :]
        return self.head + self.asked + self.opening + before + block + after

    def block(self, piece: str, evidence: _Evidence) -> list[int]:
        before, after = piece.split("{passages}")
        return self.tokenizer.encode(before) + evidence.tokens + self.tokenizer.encode(after)

    def cut(self, text: str) -> str:
        """The start of a passage that fits max_passage_tokens, whole characters only."""
        ids = self.tokenizer.encode(text)
        if len(ids) <= self.options.max_passage_tokens:
            return text
        pieces = [self.tokenizer.token_bytes(i) for i in ids[: self.options.max_passage_tokens]]
        return b"".join(pieces).decode("utf-8", "ignore").strip()

    def retrieve(self, query: str, previous: _Evidence | None) -> _Evidence | None:
        """Passages without repeats; known ones come first, in the order they had."""
        found: dict[str, Any] = {}
        for passage in self.options.search(query):
            found.setdefault(passage.id, passage)
        ranked = list(found)
        known = [i for i in (previous.ids if previous else ()) if i in found]
        order = known + [i for i in ranked if i not in known]
        if not order:
            return None
        tokens: list[int] = []
        for number, passage_id in enumerate(order, start=1):
            text = self.cut(found[passage_id].text.strip())
            title = found[passage_id].title
            rendered = self.template.passage.format(
                number=number, text=text, title=title, id=passage_id
            )
            tokens += self.tokenizer.encode(rendered)
        return _Evidence(tuple(order), tokens, len(self.answer.token_ids))

    # ---- one sentence (design 3.1, 3.3) ----

    def write(self, evidence: _Evidence | None, pass_index: int) -> NaivePass:
        context = self.context(evidence)
        self.answer.num_prefilled += len(context)
        limit = min(
            self.options.max_draft_tokens,
            self.options.max_new_tokens - len(self.answer.token_ids),
        )
        next_token = self.source.stream(context, pass_index)
        boundary = self.options.make_boundary()
        ids: list[int] = []
        probs: list[float] = []
        while len(ids) < limit:
            token_id, prob = next_token()
            if token_id is None:
                return _pass(ids, probs, "eos")
            ids.append(token_id)
            probs.append(prob)
            data = self.tokenizer.token_bytes(token_id)
            num_in_sentence = boundary.feed(data)
            if num_in_sentence > 0:
                return _pass(ids[:num_in_sentence], probs[:num_in_sentence], "sentence")
        num_whole = self.num_whole_tokens(ids)
        return _pass(ids[:num_whole], probs[:num_whole], "max_tokens")

    def num_whole_tokens(self, ids: list[int]) -> int:
        """Tokens up to the last one that ends with a character; all if none does."""
        for count in range(len(ids), 0, -1):
            data = b"".join(self.tokenizer.token_bytes(i) for i in ids[:count])
            if not _ends_inside_a_character(data):
                return count
        return len(ids)

    # ---- trigger and query (design 3.2, 3.4) ----

    def triggers(self, draft: NaivePass) -> bool:
        options = self.options
        if options.theta == 0.0 or not draft.token_ids:
            return False
        pieces = [self.tokenizer.token_bytes(i) for i in draft.token_ids]
        if options.theta == 1.0:
            return options.trigger_punctuation or not _is_punctuation(b"".join(pieces))
        low = draft.probs < np.float32(options.theta)
        return any(
            is_low and (options.trigger_punctuation or not _is_punctuation(piece))
            for is_low, piece in zip(low, pieces, strict=True)
        )

    def query(self, draft: NaivePass) -> str:
        text, _ = self.options.mask_to_query(
            [self.tokenizer.token_bytes(i) for i in draft.token_ids],
            draft.probs,
            self.options.beta,
            unit=self.options.mask_unit,
        )
        if not text.strip() or _is_punctuation(text.encode()):
            text = self.question
        ids = self.tokenizer.encode(text)[-self.options.max_query_tokens :]
        data = b"".join(self.tokenizer.token_bytes(i) for i in ids)
        return data.decode("utf-8", "ignore").strip()

    # ---- the loop (design 3.1) ----

    def run(self) -> NaiveAnswer:
        answer, options = self.answer, self.options
        last = self.retrieve(self.question, None) if options.initial_retrieval else None
        answer.initial_passage_ids = last.ids if last else ()
        searched = self.question if options.initial_retrieval else None
        while not answer.stop_reason:
            sees_evidence = options.draft_context == "last_evidence" or not answer.sentences
            draft = self.write(last if sees_evidence else None, pass_index=0)
            query: str | None = None
            evidence: _Evidence | None = None
            regenerated: NaivePass | None = None
            if self.triggers(draft):
                query = self.query(draft)
                # The same query for the same gap is not searched again.
                repeated = query == searched and not answer.sentences
                evidence = None if repeated else self.retrieve(query, last)
            if evidence is not None:
                last = evidence
                regenerated = self.write(evidence, pass_index=1)
            passage_ids = evidence.ids if evidence else ()
            self.accept(NaiveSentence(draft, query, passage_ids, regenerated))
        return answer

    def accept(self, sentence: NaiveSentence) -> None:
        answer, options, accepted = self.answer, self.options, sentence.accepted
        answer.sentences.append(sentence)
        answer.token_ids += accepted.token_ids
        answer.text += b"".join(self.tokenizer.token_bytes(i) for i in accepted.token_ids)
        if accepted.stop_reason == "eos":
            answer.stop_reason = "eos"
        elif len(answer.token_ids) >= options.max_new_tokens:
            answer.stop_reason = "max_new_tokens"
        elif options.max_sentences is not None and len(answer.sentences) >= options.max_sentences:
            answer.stop_reason = "max_sentences"


def _pass(ids: list[int], probs: list[float], stop_reason: str) -> NaivePass:
    return NaivePass(tuple(ids), np.array(probs, dtype=np.float32), stop_reason)


def _ends_inside_a_character(data: bytes) -> bool:
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            return byte >= 0xC0 and back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return False


def _is_punctuation(data: bytes) -> bool:
    """Only punctuation and white space."""
    text = data.decode("utf-8", "replace")
    return all(char.isspace() or unicodedata.category(char)[0] == "P" for char in text)


def naive_flare(
    source: TokenSource,
    tokenizer: NaiveTokenizer,
    template: NaiveTemplate,
    question: str,
    options: NaiveOptions,
) -> NaiveAnswer:
    """Write an answer with FLARE-direct.

    Parameters
    ----------
    source
        Gives the tokens.
    tokenizer
        The model's tokenizer.
    template
        Pieces of the prompt.
    question
        The question: part of the prompt, and the first query.
    options
        Options of the loop.

    Returns
    -------
    NaiveAnswer
        Sentences with drafts, queries, passages and confidences.
    """
    return _Loop(source, tokenizer, template, question, options).run()
