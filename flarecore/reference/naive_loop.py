"""FLARE-direct the slow way: every draft and every regeneration starts from nothing.

Written from design 3.1-3.5 and the paper (Jiang et al. 2023, arXiv 2305.06983, section 3.2), apart
from the controller, so that the two can be compared: no cache, no speculation, no forks, one token
at a time. It does what is needed for that comparison: the trigger with θ, masked queries, both
placements, the ``replace`` policy, ``accept_draft`` where no passage is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from flarecore.reference.naive_prompt import NaiveEvidence, NaivePrompt, NaiveTokenizer
from flarecore.reference.query_mask import is_punctuation_or_space, mask_to_query
from flarecore.reference.sentence_boundary import first_sentence_end

__all__ = [
    "NaiveAnswer",
    "NaiveOptions",
    "NaivePass",
    "NaiveSentence",
    "TokenSource",
    "naive_flare",
]

# More than any look-ahead of the sentence boundary: a citation, closers and the next word.
_LOOKAHEAD_BYTES = 96


class TokenSource(Protocol):
    """A model, asked from scratch for each sentence."""

    def stream(
        self, token_ids: Sequence[int], pass_index: int
    ) -> Callable[[], tuple[int | None, float]]:
        """Prefill a context into a new sequence.

        Each call of what is returned appends one more token and gives its id and confidence; None
        for the id is the end of the text.
        """
        ...


@dataclass(frozen=True)
class NaiveOptions:
    """Options, named and meant as in ``FlareConfig``.

    ``search`` takes a query and gives passages with ``id``, ``title`` and ``text``, best first.
    """

    search: Callable[[str], Sequence[Any]]
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
    """A draft and what became of it.

    ``query`` is None if the draft did not trigger, ``regenerated`` if no passage was found.
    ``token_ids`` entered the answer.
    """

    draft: NaivePass
    query: str | None
    passage_ids: tuple[str, ...]
    regenerated: NaivePass | None
    token_ids: tuple[int, ...]
    stop_reason: str


@dataclass
class NaiveAnswer:
    """The answer and the way to it; ``num_prefilled`` counts the tokens of all contexts."""

    sentences: list[NaiveSentence] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    text: bytes = b""
    stop_reason: str = ""
    initial_passage_ids: tuple[str, ...] = ()
    num_prefilled: int = 0


class _Loop:
    def __init__(
        self,
        source: TokenSource,
        tokenizer: NaiveTokenizer,
        prompt: NaivePrompt,
        options: NaiveOptions,
    ) -> None:
        self.source, self.tokenizer, self.prompt = source, tokenizer, prompt
        self.options = options
        self.table = tokenizer.token_table
        self.answer = NaiveAnswer()

    def bytes_of(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(self.table[i] for i in token_ids)

    # ---- passages (design 3.5) ----

    def retrieve(self, query: str, previous: NaiveEvidence | None) -> NaiveEvidence | None:
        """Passages without repeats; known ones come first, in the order they had."""
        found: dict[str, Any] = {}
        for passage in self.options.search(query):
            found.setdefault(passage.id, passage)
        known = [i for i in (previous.passage_ids if previous else ()) if i in found]
        order = known + [i for i in found if i not in known]
        if not order:
            return None
        tokens: list[int] = []
        for number, passage_id in enumerate(order, start=1):
            passage = found[passage_id]
            rendered = self.prompt.passage.format(
                number=number, text=self.cut(passage.text), title=passage.title, id=passage_id
            )
            tokens += self.tokenizer.encode(rendered)
        return NaiveEvidence(tuple(order), tokens, len(self.answer.token_ids))

    def cut(self, text: str) -> str:
        """The start of a passage that fits max_passage_tokens, whole characters only."""
        ids = self.tokenizer.encode(text.strip())
        if len(ids) <= self.options.max_passage_tokens:
            return text.strip()
        start = self.bytes_of(ids[: self.options.max_passage_tokens])
        return start.decode("utf-8", "ignore").strip()

    # ---- one sentence (design 3.1, 3.3) ----

    def write(self, evidence: NaiveEvidence | None, pass_index: int) -> NaivePass:
        options, written = self.options, self.answer.token_ids
        context = self.prompt.context(options.placement, evidence, written)
        self.answer.num_prefilled += len(context)
        limit = min(options.max_draft_tokens, options.max_new_tokens - len(written))
        next_token = self.source.stream(context, pass_index)
        ids: list[int] = []
        probs: list[float] = []
        end_reason = "max_tokens"
        while len(ids) < limit and not self.is_settled(ids):
            token_id, prob = next_token()
            if token_id is None:
                end_reason = "eos"
                break
            ids.append(token_id)
            probs.append(prob)
        num_tokens = self.num_in_sentence(ids)
        if num_tokens < len(ids) or self.is_settled(ids):
            end_reason = "sentence"
        elif end_reason == "max_tokens":
            num_tokens = self.num_whole_tokens(ids)
        return NaivePass(
            tuple(ids[:num_tokens]), np.array(probs[:num_tokens], dtype=np.float32), end_reason
        )

    def is_settled(self, ids: list[int]) -> bool:
        """Whether so much text follows the first sentence that no more can move its end."""
        text = self.bytes_of(ids)
        return len(text) - first_sentence_end(text) > _LOOKAHEAD_BYTES

    def num_in_sentence(self, ids: list[int]) -> int:
        """Tokens that hold the bytes of the first sentence."""
        end = first_sentence_end(self.bytes_of(ids))
        return next((n for n in range(len(ids) + 1) if len(self.bytes_of(ids[:n])) >= end), 0)

    def num_whole_tokens(self, ids: list[int]) -> int:
        """Tokens up to the last one that ends with a character; all if none does."""
        ends = (n for n in range(len(ids), 0, -1) if not _is_cut(self.bytes_of(ids[:n])))
        return next(ends, len(ids))

    # ---- trigger and query (design 3.2, 3.4) ----

    def triggers(self, draft: NaivePass) -> bool:
        options = self.options
        if options.theta == 0.0 or not draft.token_ids:
            return False
        if options.theta == 1.0:
            text = self.bytes_of(draft.token_ids)
            return options.trigger_punctuation or not is_punctuation_or_space(text)
        low = draft.probs < np.float32(options.theta)
        return any(
            is_low
            and (options.trigger_punctuation or not is_punctuation_or_space(self.table[token_id]))
            for is_low, token_id in zip(low, draft.token_ids, strict=True)
        )

    def query(self, draft: NaivePass) -> str:
        """The draft without its tokens below β; the question if nothing is left."""
        pieces = [self.table[i] for i in draft.token_ids]
        text, _ = mask_to_query(
            pieces, draft.probs.tolist(), self.options.beta, unit=self.options.mask_unit
        )
        if is_punctuation_or_space(text.encode()):
            text = " ".join(self.prompt.question.split())
        ids = self.tokenizer.encode(text)
        if len(ids) <= self.options.max_query_tokens:
            return text
        tail = self.bytes_of(ids[-self.options.max_query_tokens :])
        return tail.decode("utf-8", "ignore").strip()

    # ---- the loop (design 3.1) ----

    def run(self) -> NaiveAnswer:
        answer, options = self.answer, self.options
        question = " ".join(self.prompt.question.split())
        last = self.retrieve(question, None) if options.initial_retrieval else None
        answer.initial_passage_ids = last.passage_ids if last else ()
        while not answer.stop_reason:
            is_first = not answer.sentences
            sees_evidence = is_first or options.draft_context == "last_evidence"
            draft = self.write(last if sees_evidence else None, pass_index=0)
            query: str | None = None
            evidence: NaiveEvidence | None = None
            regenerated: NaivePass | None = None
            if self.triggers(draft):
                query = self.query(draft)
                # The same query for the same gap is not searched again.
                if not (is_first and options.initial_retrieval and query == question):
                    evidence = self.retrieve(query, last)
            if evidence is not None:
                last = evidence
                regenerated = self.write(evidence, pass_index=1)
            self.accept(draft, query, evidence, regenerated)
        return answer

    def accept(
        self,
        draft: NaivePass,
        query: str | None,
        evidence: NaiveEvidence | None,
        regenerated: NaivePass | None,
    ) -> None:
        answer, options = self.answer, self.options
        final = regenerated or draft
        token_ids = final.token_ids
        begins_turn = self.prompt.reopens_turn and evidence is not None and evidence.boundary > 0
        if begins_turn and options.placement == "boundary":
            token_ids = self.joined(draft, token_ids)
        passage_ids = evidence.passage_ids if evidence else ()
        answer.sentences.append(
            NaiveSentence(draft, query, passage_ids, regenerated, token_ids, final.stop_reason)
        )
        answer.token_ids += token_ids
        answer.text += self.bytes_of(token_ids)
        if final.stop_reason == "eos":
            answer.stop_reason = "eos"
        elif len(answer.token_ids) >= options.max_new_tokens:
            answer.stop_reason = "max_new_tokens"
        elif options.max_sentences is not None and len(answer.sentences) >= options.max_sentences:
            answer.stop_reason = "max_sentences"

    def joined(self, draft: NaivePass, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """A sentence that began a turn, with the white space that the draft began with."""
        drafted, text = self.bytes_of(draft.token_ids), self.bytes_of(token_ids)
        space = drafted[: len(drafted) - len(drafted.lstrip())]
        if not space or not text or text[:1].isspace():
            return token_ids
        spelled = space + self.table[token_ids[0]]
        if spelled in self.table:
            return (self.table.index(spelled), *token_ids[1:])
        return (*self.tokenizer.encode(space.decode()), *token_ids)


def _is_cut(data: bytes) -> bool:
    """Whether the bytes end inside a UTF-8 character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            return byte >= 0xC0 and back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return False


def naive_flare(
    source: TokenSource, tokenizer: NaiveTokenizer, prompt: NaivePrompt, options: NaiveOptions
) -> NaiveAnswer:
    """Write an answer with FLARE-direct.

    Parameters
    ----------
    source
        Gives the tokens.
    tokenizer
        The model's tokenizer.
    prompt
        What is asked, as ids; `flarecore.reference.naive_prompt.base_prompt` makes one.
    options
        Options of the loop.

    Returns
    -------
    NaiveAnswer
        Sentences with drafts, queries, passages and confidences.
    """
    return _Loop(source, tokenizer, prompt, options).run()
