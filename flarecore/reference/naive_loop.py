"""FLARE-direct the slow way: every draft and every regeneration starts from nothing.

Written from the paper (Jiang et al. 2023, arXiv 2305.06983, section 3.2), apart
from the controller, so that the two can be compared: no cache, no speculation, no forks, one token
at a time. It does what is needed for that comparison: all triggers but callables, masked queries,
all placements, all evidence policies, ``accept_draft`` where no passage is found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flarecore.reference.naive_prompt import NaiveEvidence, NaivePrompt, NaiveTokenizer
from flarecore.reference.naive_rules import choose_passages, first_low_end, is_triggered
from flarecore.reference.naive_types import (
    NaiveAnswer,
    NaiveAttached,
    NaiveOptions,
    NaivePass,
    NaiveSentence,
    TokenSource,
)
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
        self.special = tokenizer.special_token_ids
        self.first: NaiveEvidence | None = None

    def bytes_of(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(self.table[i] for i in token_ids)

    # ---- passages ----

    def retrieve(self, query: str, previous: NaiveEvidence | None) -> NaiveEvidence | None:
        """Passages without repeats; known ones come first, in the order they had."""
        passages = choose_passages(
            self.options.search(query),
            policy=self.options.evidence_policy,
            previous=previous.passages if previous else (),
            first=self.first.passages if self.first else (),
        )
        if not passages:
            return None
        is_parallel = self.options.placement == "parallel"
        piece = self.prompt.parallel_passage if is_parallel else self.prompt.passage
        rendered = [
            self.tokenizer.encode(piece.format(
                number=number, text=self.cut(passage.text), title=passage.title, id=passage.id))
            for number, passage in enumerate(passages, start=1)
        ]
        return NaiveEvidence(tuple(passages), tuple(rendered), len(self.answer.token_ids))

    def cut(self, text: str) -> str:
        """The start of a passage that fits max_passage_tokens, whole characters only."""
        ids = self.tokenizer.encode(text.strip())
        if len(ids) <= self.options.max_passage_tokens:
            return text.strip()
        start = self.bytes_of(ids[: self.options.max_passage_tokens])
        return start.decode("utf-8", "ignore").strip()

    # ---- one sentence ----

    def write(self, evidence: NaiveEvidence | None, pass_index: int) -> NaivePass:
        options, written = self.options, self.answer.token_ids
        context = self.prompt.context(options.placement, evidence, written)
        self.answer.num_prefilled += len(context)
        limit = min(options.max_draft_tokens, options.max_new_tokens - len(written))
        attached = self.attached(evidence) if options.placement == "parallel" else None
        next_token = self.source.stream(context, pass_index, attached)
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

    def attached(self, evidence: NaiveEvidence | None) -> NaiveAttached:
        """Passages beside the context (placement ``parallel``); without evidence, their room."""
        prompt, options = self.prompt, self.options
        around = prompt.parallel_passage.format(text="", title="", id="")
        num_reserved = options.max_passage_tokens + len(self.tokenizer.encode(around))
        num_prompt = len(prompt.head) + len(prompt.asked) + len(prompt.opening)
        num_head = min(len(prompt.head), num_prompt - 1)
        if evidence is None:
            return NaiveAttached(num_head, num_reserved, (), num_head)
        self.answer.num_prefilled += len(evidence.token_ids)
        sees_from = num_head
        if options.recompute_tokens is not None:
            end = num_prompt + evidence.boundary
            sees_from = max(num_head, end - options.recompute_tokens)
        return NaiveAttached(num_head, num_reserved, evidence.rendered, sees_from)

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

    # ---- trigger and query ----

    def pieces_of(self, draft: NaivePass) -> list[bytes]:
        return [b"" if i in self.special else self.table[i] for i in draft.token_ids]

    def triggers(self, draft: NaivePass) -> bool:
        options = self.options
        return is_triggered(
            self.pieces_of(draft),
            draft.probs.tolist(),
            trigger=options.trigger,
            theta=options.theta,
            trigger_punctuation=options.trigger_punctuation,
            min_span_chars=options.min_span_chars,
        )

    def stopped(self, draft: NaivePass) -> NaivePass:
        """With trigger ``token``, the draft up to its first low token, if it goes on after it."""
        options = self.options
        if options.trigger != "token" or options.theta == 0.0:
            return draft
        end = first_low_end(
            self.pieces_of(draft),
            draft.probs.tolist(),
            theta=options.theta,
            trigger_punctuation=options.trigger_punctuation,
        )
        if end == 0 or (end == len(draft.token_ids) and draft.stop_reason == "sentence"):
            return draft
        return NaivePass(draft.token_ids[:end], draft.probs[:end], "low_confidence")

    def query(self, draft: NaivePass) -> str:
        """The draft without its tokens below β; the question if nothing is left."""
        pieces = [self.table[i] for i in draft.token_ids]
        text, _ = mask_to_query(
            pieces,
            draft.probs.tolist(),
            self.options.beta,
            unit=self.options.mask_unit,
            special=[i in self.special for i in draft.token_ids],
        )
        if is_punctuation_or_space(text.encode()):
            text = " ".join(self.prompt.question.split())
        ids = self.tokenizer.encode(text)
        if len(ids) <= self.options.max_query_tokens:
            return text
        tail = self.bytes_of(ids[-self.options.max_query_tokens :])
        return tail.decode("utf-8", "ignore").strip()

    # ---- the loop ----

    def run(self) -> NaiveAnswer:
        answer, options = self.answer, self.options
        question = " ".join(self.prompt.question.split())
        last = self.retrieve(question, None) if options.initial_retrieval else None
        self.first = last
        answer.initial_passage_ids = last.passage_ids if last else ()
        while not answer.stop_reason:
            is_first = not answer.sentences
            seen = last if is_first or options.draft_context == "last_evidence" else None
            whole = self.write(seen, pass_index=0)
            draft = self.stopped(whole)
            query: str | None = None
            evidence: NaiveEvidence | None = None
            regenerated: NaivePass | None = None
            triggered = self.triggers(draft)
            if triggered:
                query = self.query(draft)
                # The same query for the same gap is not searched again.
                if is_first and options.initial_retrieval and query == question:
                    query = None
            if query is not None:
                evidence = self.retrieve(query, last)
            if evidence is not None:
                # The very passages that the draft has seen stay where they are.
                is_same = seen is not None and evidence.token_ids == seen.token_ids
                last = evidence = seen if is_same and seen else evidence
                if not (is_same and options.greedy):
                    regenerated = self.write(evidence, pass_index=1)
            self.accept(draft, whole, triggered, query, evidence, regenerated)
        return answer

    def accept(
        self,
        draft: NaivePass,
        whole: NaivePass,
        triggered: bool,
        query: str | None,
        evidence: NaiveEvidence | None,
        regenerated: NaivePass | None,
    ) -> None:
        answer, options = self.answer, self.options
        final = regenerated or whole
        token_ids = final.token_ids
        begins_turn = self.prompt.reopens_turn and evidence is not None and evidence.boundary > 0
        if begins_turn and regenerated and options.placement == "boundary":
            token_ids = self.joined(draft, token_ids)
        passage_ids = evidence.passage_ids if evidence else ()
        answer.sentences.append(
            NaiveSentence(
                draft, triggered, query, passage_ids, regenerated, token_ids, final.stop_reason
            )
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
