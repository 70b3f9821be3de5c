"""The sampler under pytest-benchmark: a plain argmax beside everything, a pass over real text."""

import pytest

from flarecore import _C
from flarecore.bench.sampling import MODES, make_logits, probe_case, prove


@pytest.mark.parametrize("vocab_size", [49152, 262144])
@pytest.mark.parametrize("mode", list(MODES))
def test_sampling(session, time_case, vocab_size, mode):
    ids = [i for i in session.context(256) if i < 49152]
    logits = make_logits(vocab_size)
    probe = _C.testing.SamplingProbe(session.model._native, logits, session.threads)
    prove(probe, logits, ids)
    time_case(probe_case(probe, mode, ids), f"sample {len(ids)} tokens of {vocab_size} logits",
              len(ids))
