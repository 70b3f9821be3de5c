"""A query's embedding and its search over a whole corpus, together and each alone.

Every question is timed by itself, in two states. One question after the other: weights, graph and
vectors are in the caches. Right after decoding, which is when a loop asks: the language model's
weights have gone through the caches since. Quantiles are over questions as well as rounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flarecore.bench.harness import (
    Case,
    Quantiles,
    nothing,
    ratios,
    run_rounds,
)
from flarecore.bench.proofs import ProofError
from flarecore.bench.questions import QuestionSource, SourceTexts
from flarecore.bench.retrieval_indexes import (
    MIN_COSINE_Q8,
    Indexes,
    lowest_cosine,
    prove,
    shared,
)
from flarecore.bench.rows import Report, Row
from flarecore.bench.session import Session
from flarecore.bench.transformers_encoder import TransformersEncoder
from flarecore.errors import ConfigError, UnsupportedError
from flarecore.model_files import find_model
from flarecore.retrieval import HnswRetriever, SentenceEncoder
from flarecore.retrieval.passage import TextEncoder

__all__ = [
    "RetrievalOptions", "asks_before", "decodes_before", "measure", "own_asks", "question_case",
]

# Cosine of the same text's vector by two float32 implementations.
_MIN_COSINE = 0.9999
_WARMUP_QUESTIONS = 5
# Asked ahead of a question that comes after others.
_NUM_BEFORE = 3
_CONTEXT_TOKENS, _DECODED_TOKENS = 64, 4
_STATES = ("one question after the other", "right after decoding")
# In a graph, if the corpus is large enough for one, and else by comparing with every passage.
_GRAPH, _NO_GRAPH = "HNSW", "exact search"
_EMBED, _PEER = "flarecore embedding", "transformers float32 embedding"
_EMBED_Q8 = "flarecore q8 embedding"
_HNSW, _EXACT = f"flarecore {_GRAPH}", f"flarecore {_NO_GRAPH}"
# What is compared with which of ours.
_SLOWER = {_PEER: _EMBED, _EXACT: _HNSW}
Ask = Callable[[str], object]


@dataclass(frozen=True)
class RetrievalOptions:
    """Sizes.

    Attributes
    ----------
    source : QuestionSource
        Whose questions are the queries, and whose passages the corpus.
    num_questions : int
        Each is asked once a round; fewer if the source has fewer.
    k : int
        Passages per search.
    encoder : str
        Name or folder of the sentence encoder.
    """

    source: QuestionSource = field(default_factory=QuestionSource)
    num_questions: int = 50
    k: int = 10
    encoder: str = "minilm-l6-v2"

    def __post_init__(self) -> None:
        if min(self.num_questions, self.k) < 1:
            raise ConfigError(
                f"num_questions and k must be >= 1, got {self.num_questions} and {self.k}")


def question_case(
    name: str, questions: Sequence[str], ask: Ask, before: Callable[[], None] = nothing
) -> Case:
    """Asks one question a run, the next one at each; calls `before` ahead of it."""
    waiting = itertools.cycle(questions)
    now = ""

    def prepare() -> None:
        nonlocal now
        now = next(waiting)
        before()

    def run() -> None:
        ask(now)

    return Case(name, run, prepare)


def asks_before(questions: Sequence[str], ask: Ask) -> Callable[[], None]:
    """Asks a few other questions."""
    waiting = itertools.cycle(reversed(questions))

    def before() -> None:
        for question in itertools.islice(waiting, _NUM_BEFORE):
            ask(question)

    return before


def decodes_before(session: Session) -> Callable[[], None]:
    """Decodes a few tokens."""
    own = session.own
    limit = session.model.config.context_length - _DECODED_TOKENS
    own.set_contexts([session.context(min(_CONTEXT_TOKENS, limit))])

    def before() -> None:
        own.reset()
        own.decode(_DECODED_TOKENS)

    return before


def measure(session: Session, options: RetrievalOptions) -> Report:
    """Rows for embedding and search together, for each alone, and for exact search.

    Raises
    ------
    ProofError
        HNSW finds too little, or other passages with a known query than with a computed one.
    """
    texts = SourceTexts.read(options.source, session.progress)
    questions = texts.questions[:options.num_questions]
    encoder = SentenceEncoder.load(options.encoder, threads=session.threads)
    indexes = Indexes.build(texts.passages, encoder, session.progress)
    recall, proof = prove(indexes, questions, options.k)
    proofs = [proof]
    if not indexes.uses_graph:
        session.notes.append(
            f"{len(texts.passages)} passages are too few for a graph: every search was exact; "
            "--data DIR names a larger corpus")
    asks = own_asks(indexes, options.k)
    search = _GRAPH if indexes.uses_graph else _NO_GRAPH
    whole, whole_q8 = f"{_EMBED} + {search}", f"{_EMBED_Q8} + {search}"
    recalls = {whole: recall, _HNSW: recall, _EXACT: 1.0}
    coarse, recalls[whole_q8], proof = _quantized(session, options, indexes, questions)
    proofs.append(proof)
    asks[whole_q8] = lambda question: coarse.search([question], options.k)
    asks[_EMBED_Q8] = lambda question: coarse.encoder.encode([question])
    if "transformers" in session.options.peers:
        try:
            peer = TransformersEncoder(find_model(options.encoder), session.threads)
        except UnsupportedError as error:
            session.notes.append(f"no transformers: {error}")
        else:
            proofs.append(_prove_peer(encoder, peer, questions))
            asks[_PEER] = peer.encode
    decode = decodes_before(session)
    cases = []
    for name, ask in asks.items():
        for state, before in zip(_STATES, (asks_before(questions, ask), decode), strict=True):
            cases.append(question_case(f"{state}: {name}", questions, ask, before))
    # Every question is as often in the figures as every other one.
    seconds = run_rounds(cases, session.options.rounds * len(questions), settle_s=0,
                         warmup=min(_WARMUP_QUESTIONS, len(questions)), stage="retrieval",
                         progress=session.progress)
    params: dict[str, int | str] = {
        "passages": len(texts.passages), "questions": len(questions), "k": options.k,
        "encoder": encoder.name, "graph": int(indexes.uses_graph)}
    return session.report("retrieval", _rows(seconds, params, recalls, whole, whole_q8), proofs)


def own_asks(indexes: Indexes, k: int) -> dict[str, Ask]:
    """flarecore's rows: what is done with a question for each."""
    search = _GRAPH if indexes.uses_graph else _NO_GRAPH
    asks: dict[str, Ask] = {
        f"{_EMBED} + {search}": lambda question: indexes.whole.search([question], k),
        _EMBED: lambda question: indexes.encoder.encode([question]),
        _EXACT: lambda question: indexes.exact.search([question], k)}
    if indexes.uses_graph:
        asks[_HNSW] = lambda question: indexes.hnsw.search([question], k)
    return asks


def _quantized(
    session: Session, options: RetrievalOptions, indexes: Indexes, questions: Sequence[str]
) -> tuple[HnswRetriever, float, str]:
    """The same corpus with 8-bit weights of the encoder, what it finds of the exact search with
    float32 weights, and what was shown."""
    encoder = SentenceEncoder.load(options.encoder, threads=session.threads, quantize="q8")
    lowest = lowest_cosine(encoder, indexes.encoder, questions)
    if not lowest >= MIN_COSINE_Q8:
        raise ProofError(f"the cosine of a question's vectors by 8-bit and by float32 weights is "
                         f"{lowest:.6f}, at least {MIN_COSINE_Q8:g} is needed; nothing is timed "
                         f"until this is repaired")
    index = HnswRetriever.build(indexes.whole.passages, encoder, progress=session.progress)
    return index, shared(index, indexes.exact, questions, options.k), (
        f"vectors by 8-bit weights: cosine with those by float32 weights at least {lowest:.6f}")


def _prove_peer(
    encoder: TextEncoder, peer: TransformersEncoder, questions: Sequence[str]
) -> str:
    """Both encoders give the same vectors."""
    lowest = min(float(vector @ peer.encode(question)) for question, vector in
                 zip(questions, encoder.encode(list(questions)), strict=True))
    if not lowest >= _MIN_COSINE:
        raise ProofError(f"the cosine of a question's vector and that of {peer.name} is "
                         f"{lowest:.6f}, at least {_MIN_COSINE:g} is needed; nothing is timed "
                         f"until this is repaired")
    return f"vectors of {encoder.name}: cosine with those of {peer.name} at least {lowest:.6f}"


def _rows(
    seconds: dict[str, tuple[float, ...]], params: dict[str, int | str],
    recalls: dict[str, float], whole: str, whole_q8: str
) -> list[Row]:
    rows = []
    engines = [name for name in (whole, _EMBED, whole_q8, _EMBED_Q8, _PEER, _HNSW, _EXACT)
               if f"{_STATES[0]}: {name}" in seconds]
    for state in _STATES:
        def name(engine: str, state: str = state) -> str:
            return f"{state}: {engine}"

        for engine in engines:
            values = {"recall": recalls[engine]} if engine in recalls else {}
            if name(_SLOWER.get(engine, "")) in seconds:
                values["flarecore_is_faster"] = ratios(
                    seconds, name(_SLOWER[engine]), name(engine)).median
            slower = {other: ratios(seconds, name(engine), name(other))
                      for other, ours in _SLOWER.items() if ours == engine
                      and name(other) in seconds}
            rows.append(Row("retrieval", f"{state}, {params['passages']} passages", engine, params,
                            Quantiles.of(seconds[name(engine)]), len(seconds[name(engine)]),
                            ratios=slower, values=values))
    return rows
