"""A scripted engine for tests of the loop: says what it is told, and is strict about its use.

It meets flarecore.loop.interfaces with a small word tokenizer. What a pass says comes from a
script, either lists of drafts and regenerations or a function of the context. Every misuse (a busy
or closed sequence, a length out of range, an unknown option) raises, every call is recorded, and
``check_integrity`` fails while a sequence is open.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from flarecore.errors import (
    CancelledError,
    ClosedError,
    ConfigError,
    ContextOverflowError,
    FlarecoreError,
    SequenceBusyError,
)
from flarecore.retrieval.passage import Passage
from flarecore.text import is_punctuation_or_space

BOS, EOS = "<bos>", "<eos>"
SPECIALS = (BOS, EOS, "<|im_start|>", "<|im_end|>")
WORD = re.compile(r" ?[A-Za-z0-9]+|.", re.DOTALL)


class FakeClock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class WordTokenizer:
    """ASCII words (with the space before them) are tokens, everything else is one byte a token."""

    def __init__(self, *, chat: bool = False, words: str = "", adds_bos: bool = True) -> None:
        self.token_table = [bytes([b]) for b in range(256)] + [s.encode() for s in SPECIALS]
        self._ids = {data: i for i, data in enumerate(self.token_table)}
        self.special_token_ids = frozenset(range(256, 256 + len(SPECIALS)))
        self.bos_token_id = 256
        self.eos_token_ids = frozenset({257})
        self.adds_bos = adds_bos
        self.chat_template = "scripted" if chat else None
        self.encode(words)

    def encode(self, text, *, add_bos=False, parse_special=False):
        ids = [self.bos_token_id] if add_bos else []
        parts = re.split("(" + "|".join(map(re.escape, SPECIALS)) + ")", text) \
            if parse_special else [text]
        for part in parts:
            if parse_special and part in SPECIALS:
                ids.append(self._ids[part.encode()])
                continue
            for piece in WORD.findall(part):
                data = piece.encode()
                ids += [self._id(data)] if data.isascii() else list(data)
        return ids

    def _id(self, data: bytes) -> int:
        if data not in self._ids:
            self._ids[data] = len(self.token_table)
            self.token_table.append(data)
        return self._ids[data]

    def token_bytes(self, token_id):
        return self.token_table[token_id]

    def decode(self, ids):
        return b"".join(self.token_table[i] for i in ids).decode("utf-8", "replace")

    def render_chat(self, messages, *, add_generation_prompt=True):
        text = BOS + "".join(
            f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")

    def encode_chat(self, messages, *, add_generation_prompt=True):
        ids = [self.bos_token_id]
        start, end = (self.encode(s, parse_special=True)[0] for s in SPECIALS[2:])
        for m in messages:
            ids += [start, *self.encode(m["role"] + "\n"), *self.encode(m["content"]), end, 10]
        return ids + ([start, *self.encode("assistant\n")] if add_generation_prompt else [])


@dataclass(frozen=True)
class Say:
    """What a pass generates.

    `low` maps a token's text to its confidence, all others have `prob`. `error` makes the
    operation fail, `hang` keeps it running until it is cancelled.
    """

    text: str | bytes = ""
    low: dict[str, float] = field(default_factory=dict)
    prob: float = 0.95
    stop: str = "sentence"
    error: Exception | None = None
    hang: bool = False
    before: Callable[[], None] | None = None


@dataclass(frozen=True)
class Call:
    """A pass that was asked for."""

    pass_index: int
    context_ids: tuple[int, ...]
    context: str
    max_tokens: int
    num_given: int
    proposal: tuple[int, ...]
    options: dict


class Lists:
    """A script of drafts (pass 0) and regenerations, each said once, in order."""

    def __init__(self, drafts: Sequence[Say], regenerations: Sequence[Say] = ()) -> None:
        self.drafts, self.regenerations = list(drafts), list(regenerations)

    def __call__(self, context: str, pass_index: int) -> Say:
        queue = self.regenerations if pass_index else self.drafts
        assert queue, f"the script is at its end: pass {pass_index} after {context[-60:]!r}"
        return queue.pop(0)

    @property
    def is_used_up(self) -> bool:
        return not self.drafts and not self.regenerations


class ScriptedEngine:
    """See the module's docstring.

    Parameters
    ----------
    script : callable (context text, pass index) -> Say
    """

    def __init__(self, script, *, chat=False, context_length=4096, words="", adds_bos=True):
        self.tokenizer = WordTokenizer(chat=chat, words=words, adds_bos=adds_bos)
        self.model = SimpleNamespace(
            name="scripted", tokenizer=self.tokenizer,
            config=SimpleNamespace(context_length=context_length, vocab_size=100_000))
        self.script = script
        self.calls: list[Call] = []
        self.num_opened = self.num_forked = self.num_open = 0
        self.num_lookaheads_lost = 0
        self.most_running = 0  # operations at the same time
        self.operations: list[ScriptedOperation] = []

    def sequence(self):
        self.num_opened += 1
        return ScriptedSequence(self, [])

    def check_integrity(self) -> None:
        if self.num_open:
            raise FlarecoreError(f"{self.num_open} sequences are still open")

    def contexts(self, pass_index: int) -> list[str]:
        return [c.context for c in self.calls if c.pass_index == pass_index]


class ScriptedSequence:
    def __init__(self, engine: ScriptedEngine, ids: list[int]) -> None:
        self._engine, self._ids = engine, list(ids)
        self._running: ScriptedOperation | None = None
        self._open, self._has_lookahead = True, False
        engine.num_open += 1

    def _check(self) -> None:
        if not self._open:
            raise ClosedError("the sequence is closed")
        if self._running is not None and not self._running.done():
            raise SequenceBusyError("an operation runs on the sequence")

    @property
    def num_tokens(self):
        return len(self._ids)

    @property
    def token_ids(self):
        assert self._open
        return list(self._ids)

    def truncate(self, num_tokens):
        self._check()
        if not 0 <= num_tokens <= len(self._ids):
            raise ConfigError(f"cannot truncate {len(self._ids)} tokens to {num_tokens}")
        self._drop_lookahead()
        del self._ids[num_tokens:]

    def fork(self):
        self._check()
        self._engine.num_forked += 1
        return ScriptedSequence(self._engine, self._ids)

    def close(self):
        self._check()  # the real one would cancel; the loop must have settled it
        self._open = False
        self._engine.num_open -= 1

    def decode_async(self, max_tokens, **options):
        if not self._ids:
            raise ConfigError("cannot decode an empty sequence")
        return self._start((), max_tokens, **options)

    def regenerate_async(self, evidence_ids, *, max_tokens, **options):
        assert evidence_ids, "nothing to prefill: use decode"
        return self._start(tuple(evidence_ids), max_tokens, **options)

    def _drop_lookahead(self) -> None:
        self._engine.num_lookaheads_lost += self._has_lookahead
        self._has_lookahead = False

    def _start(self, given, max_tokens, *, pass_index, proposal=(), stop=(),
               lookup=(), **options):
        self._check()
        assert set(options) <= {"sampling", "until", "beta", "deadline_ms", "stop_below",
                                "stop_at_punctuation"}, options
        if max_tokens < 1:
            raise ConfigError("max_tokens must be >= 1")
        context = (*self._ids, *given)
        limit = self._engine.model.config.context_length
        if len(context) + max_tokens > limit:
            raise ContextOverflowError(f"{len(context)} + {max_tokens} > {limit}")
        if given:
            self._drop_lookahead()
        text = self._engine.tokenizer.decode(context)
        self._engine.calls.append(Call(
            pass_index, context, text, max_tokens, len(given), tuple(proposal),
            options | {"stop": stop, "lookup": tuple(lookup)}))
        say = self._engine.script(text, pass_index)
        below = options.get("stop_below") or 0.0
        operation = ScriptedOperation(
            self, say, given, max_tokens, stop, tuple(proposal), below,
            options.get("stop_at_punctuation", False))
        self._engine.most_running = max(
            self._engine.most_running, 1 + sum(not o.done() for o in self._engine.operations))
        self._running = operation
        self._engine.operations.append(operation)
        return operation

    def finish(self, say, given, max_tokens, stop, proposal, below, at_punctuation):
        """The result of a pass; the sequence then ends with what was said."""
        tokenizer, reason = self._engine.tokenizer, say.stop
        data = say.text if isinstance(say.text, bytes) else say.text.encode()
        cuts = [at for at in (data.find(s.encode()) for s in stop) if at >= 0]
        if cuts:
            data, reason = data[:min(cuts)], "stop_string"
        ids = list(data) if isinstance(say.text, bytes) else tokenizer.encode(data.decode())
        if len(ids) > max_tokens:
            ids, reason = ids[:max_tokens], "max_tokens"
            data = b"".join(tokenizer.token_bytes(i) for i in ids)
        pieces = [tokenizer.token_bytes(i).decode("utf-8", "replace") for i in ids]
        probs = np.array([say.low.get(p, say.prob) for p in pieces], dtype=np.float32)
        low = next((n for n, p in enumerate(pieces) if probs[n] < np.float32(below) and (
            at_punctuation or not is_punctuation_or_space(p.encode()))), None)
        # at the last token the end of the sentence is in sight already
        if low is not None and (reason != "sentence" or low + 1 < len(ids)):
            ids, probs, reason = ids[:low + 1], probs[:low + 1], "low_confidence"
            data = b"".join(tokenizer.token_bytes(i) for i in ids)
        self._ids += [*given, *ids]
        self._has_lookahead = reason == "sentence"
        num_right = next(
            (n for n, pair in enumerate(zip(proposal, ids, strict=False)) if pair[0] != pair[1]),
            min(len(proposal), len(ids)))
        return SimpleNamespace(
            token_ids=tuple(ids), probs=probs, text_bytes=data, stop_reason=reason,
            min_prob=float(probs.min()) if ids else 1.0, mask=probs < 0.4,
            stats=SimpleNamespace(
                num_prefilled=len(given), num_decoded=len(ids) - num_right, num_reused=0,
                num_proposed=len(proposal), num_accepted=num_right))


class ScriptedOperation:
    """Runs when it is waited for; hangs until cancelled if its script says so."""

    def __init__(self, sequence, say, *arguments) -> None:
        self._sequence, self._say, self._arguments = sequence, say, arguments
        self._outcome = None
        self.was_cancelled = False

    def done(self):
        return self._outcome is not None

    def cancel(self):
        self.was_cancelled = True
        if self._outcome is None:
            self._outcome = CancelledError("cancelled")

    def _complete(self) -> None:
        if self._outcome is None:
            if self._say.before is not None:
                self._say.before()
            self._outcome = self._say.error or self._sequence.finish(self._say, *self._arguments)

    def result(self, timeout=None):
        if self._say.hang and self._outcome is None:
            raise KeyboardInterrupt
        self._complete()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        while self._say.hang and self._outcome is None:
            yield from asyncio.sleep(0.001).__await__()
        return self.result()


class ScriptedRetriever:
    """Answers each search with the next list of passages (the last one again when used up)."""

    def __init__(self, *answers, error: Exception | None = None) -> None:
        self.answers, self.error = list(answers), error
        self.searches: list[tuple[tuple[str, ...], int, object]] = []

    @property
    def queries(self) -> list[str]:
        return [queries[0] for queries, _, _ in self.searches]

    def search(self, queries, k, filter=None):
        self.searches.append((tuple(queries), k, filter))
        if self.error is not None:
            raise self.error
        if not self.answers:
            return [[] for _ in queries]
        found = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return [list(found)[:k] for _ in queries]


def passages(*texts: str, first_id: int = 0) -> list[Passage]:
    """Passages p0, p1, … with falling scores."""
    return [Passage(id=f"p{first_id + n}", text=text, score=1.0 - 0.1 * n)
            for n, text in enumerate(texts)]
