"""Drafts that stop at a low token, on the real engine: written on, they are the whole drafts."""

from __future__ import annotations

import pytest
from helpers import TinyLlama, open_engine

from flarecore.config import FlareConfig
from flarecore.flare import Flare
from flarecore.sampling import SamplingParams
from flarecore.templates import PromptTemplate

SPEC = TinyLlama(context_length=1024, vocab_size=935)
OPTIONS = dict(
    template=PromptTemplate.base(head="Answer.\n", stop=()), max_draft_tokens=11,
    max_new_tokens=60, initial_retrieval=False)


class Nothing:
    def search(self, queries, k, filter=None):
        return [[] for _ in queries]


@pytest.mark.parametrize("speculative", [True, False])
@pytest.mark.parametrize("sampling", [
    SamplingParams(), SamplingParams(temperature=0.9, seed=5)], ids=["greedy", "sampled"])
def test_without_evidence_the_answer_is_that_of_no_retrieval(sampling, speculative):
    with open_engine(SPEC) as engine:
        options = OPTIONS | {"sampling": sampling, "speculative": speculative}
        plain = Flare(engine, None, FlareConfig(gate="never", **options)).generate("Who?")
        stopped = Flare(engine, Nothing(), FlareConfig(
            trigger="token", theta=0.2, **options)).generate("Who?")
        engine.check_integrity()
        assert engine.stats().num_sequences == 0
    assert stopped.token_ids == plain.token_ids and stopped.text == plain.text
    cut = [s for s in stopped.trace.sentences if s.completion is not None]
    assert len(cut) >= 3
    for ours, theirs in zip(stopped.trace.sentences, plain.trace.sentences, strict=True):
        written = ours.completion or ours.draft
        assert written.token_ids == theirs.draft.token_ids
        assert written.probs == theirs.draft.probs
        assert ours.draft.token_ids == written.token_ids[:len(ours.draft.token_ids)]
    # what was drafted already is verified, not written again one by one
    right = sum(s.completion.num_accepted for s in cut)
    assert right == (sum(len(s.draft.token_ids) for s in cut) if speculative else 0)
