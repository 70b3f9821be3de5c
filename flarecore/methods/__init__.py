"""Ways to write an answer with retrieval, FLARE and the baselines it is compared with.

All of them run on the same engine, retriever, evidence, templates, budgets and traces, and are used
like :class:`flarecore.Flare`::

    method = make_method("previous-window", engine, retriever, window_tokens=16)
    result = method.generate("Who built the lighthouse of Marrow Point?")

Options of :class:`flarecore.FlareConfig` that a method has no use for are refused;
``METHODS[name].options`` are those that apply:

- all methods: limits of the answer (`max_sentences`, not for ``previous-window``; `max_new_tokens`,
  `max_draft_tokens`, `deadline_ms`, `overflow`, `stop`), `sampling`, `speculative`, `template`;
- all that retrieve: `gate`, `k`, `min_score`, `max_passage_tokens`, `max_evidence_tokens`,
  `placement` (``prefix`` only where no draft is written), `no_evidence`, `max_query_tokens`;
- all that retrieve more than once: `initial_retrieval`, `evidence_policy`, `max_retrievals`,
  `empty_query`, and `cooldown_sentences` where searches stand between sentences;
- ``token-level``: θ, β, their variants, `trigger_punctuation`, and `query` as ``mask``,
  ``sentence`` or a callable; at most 16 searches unless `max_retrievals` is given;
- ``next-sentence`` and ``marker``: all of the loop's but trigger, query and thresholds;
- ``flare``: all.

In pieces shorter than a sentence (``previous-window``, ``token-level``, ``flare-instruct``,
``question-decomposition``), each piece is a sentence of the trace.
"""

from flarecore.methods.method import Method, make_method
from flarecore.methods.registry import METHODS
from flarecore.methods.spec import MethodSpec, OwnOption

__all__ = ["METHODS", "Method", "MethodSpec", "OwnOption", "make_method"]
