"""The whole engine: against the CPU engine, and its promises of equal bits (issue 5, point 6)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from flarecore.bench.gpu.report import Report, Settings
from flarecore.config import FlareConfig
from flarecore.engine import Engine
from flarecore.flare import Flare
from flarecore.gpu.options import GpuOptions
from flarecore.model import Model
from flarecore.retrieval.passage import Passage
from flarecore.sampling import SamplingParams
from flarecore.templates import PromptTemplate

__all__ = ["EngineChecks", "FixedPassages", "run_flare"]

_DECODE: dict[str, Any] = {
    "sampling": SamplingParams(temperature=1.0, seed=3), "until": "eos", "ignore_eos": True}


class FixedPassages:
    """A retriever that finds the same passages for every query."""

    def __init__(self, place: str) -> None:
        self.passages = [Passage("a", f"The lighthouse of {place} was built in 1871."),
                         Passage("b", "Its oil lamp was replaced by an electric one in 1924.")]

    def search(self, queries: Sequence[str], k: int, filter: Any = None) -> list[list[Passage]]:
        return [self.passages[:k] for _ in queries]


def run_flare(engine: Any, num_tokens: int, place: str = "Marrow Point") -> Any:
    """One answer with a retrieval in it; of another place nothing is in the engine's cache."""
    config = FlareConfig(
        theta=0.6, beta=0.3, k=2, max_draft_tokens=num_tokens // 2, max_new_tokens=num_tokens,
        max_passage_tokens=24, max_evidence_tokens=48,
        template=PromptTemplate.base(head="", stop=()),
        sampling=SamplingParams(temperature=0.8, seed=5))
    return Flare(engine, FixedPassages(place), config).generate(
        f"{place}: when was the lighthouse built?")


def _bits(decoded: Any) -> tuple[tuple[int, ...], bytes]:
    return decoded.token_ids, decoded.probs.tobytes()


def _require_equal(found: Sequence[object], what: str) -> None:
    different = [i for i, value in enumerate(found) if value != found[0]]
    if different:
        raise AssertionError(f"{what}: number {different[0]} differs from number 0")


class EngineChecks:
    """Checks over one model file.

    Parameters
    ----------
    compute
        Of the GPU engine.
    tolerance
        Of a probability against the CPU engine in float32.
    quantize
        As for :meth:`flarecore.Model.load`, on both engines.
    """

    def __init__(self, settings: Settings, path: Path, compute: str, tolerance: float,
                 num_tokens: int, quantize: str | None = None) -> None:
        self.compute = compute
        self.tolerance = tolerance
        self.num_tokens = num_tokens
        self.model = Model.load(str(path), device=settings.device, quantize=quantize)
        self.cpu_model = Model.load(str(path), quantize=quantize)
        ids = self.model.tokenizer.encode(
            "The lighthouse of Marrow Point stands on the north coast of the island. It was built "
            "by a mason whose name is known from one letter only.")
        self.prompt = ids[: 80 if settings.is_cuda else 6 if settings.is_quick else 40]
        self.is_quick = settings.is_quick

    @contextlib.contextmanager
    def engine(self, *, gpu: GpuOptions | None = None, **options: Any) -> Iterator[Engine]:
        engine = Engine(self.model, compute=self.compute, kv_cache_bytes=1 << 26,
                        gpu=gpu or GpuOptions(max_batch_rows=32), **options)
        with engine:
            yield engine
            engine.check_integrity()

    def decode(self, engine: Engine, **options: Any) -> Any:
        with engine.sequence(self.prompt) as sequence:
            return sequence.decode(self.num_tokens, **{**_DECODE, **options})

    def against_the_cpu(self) -> str:
        """Confidences of tokens that the GPU engine sampled, on both engines."""
        with self.engine() as engine, Engine(self.cpu_model, compute="float32") as cpu:
            decoded = self.decode(engine)
            with cpu.sequence(self.prompt) as sequence:
                wanted = sequence.score(decoded.token_ids).probs
                greedy = sequence.decode(self.num_tokens, until="eos", ignore_eos=True)
            worst = float(np.abs(decoded.probs - wanted).max())
            if worst > self.tolerance:
                raise AssertionError(f"a confidence is off by {worst:.3g}")
            ours = self.decode(engine, sampling=SamplingParams())
            same = sum(a == b for a, b in zip(ours.token_ids, greedy.token_ids, strict=True))
            return f"off by at most {worst:.1e}; greedy {same}/{self.num_tokens} tokens equal"

    @contextlib.contextmanager
    def warm_engine(self, gpu: GpuOptions | None = None) -> Iterator[Engine]:
        """One that holds the prompt already: every later prefill of it is cut the same way."""
        with self.engine(gpu=gpu) as engine:
            engine.sequence(self.prompt).close()
            yield engine

    def speculation(self) -> str:
        """Of one sequence and of three at once, verified in graphs and by direct launches."""
        found = []
        for graphs in (True,) if self.is_quick else (True, False):
            with (self.warm_engine(GpuOptions(graphs=graphs, max_batch_rows=64)) as engine,
                  contextlib.ExitStack() as stack):
                plain = self.decode(engine)
                half = list(plain.token_ids)
                half[self.num_tokens // 2] = (half[self.num_tokens // 2] + 1) % 200
                right = self.decode(engine, proposal=plain.token_ids)
                other = self.decode(engine, proposal=half, lookup=plain.token_ids)
                sequences = [stack.enter_context(engine.sequence(self.prompt)) for _ in range(3)]
                running = [s.decode_async(self.num_tokens, proposal=half, **_DECODE)
                           for s in sequences]
                found += [plain, right, other, *(operation.result() for operation in running)]
                if right.stats.num_accepted < self.num_tokens - 2:
                    raise AssertionError(
                        f"only {right.stats.num_accepted} proposed tokens accepted")
        _require_equal([_bits(decoded) for decoded in found], "speculation")
        return f"{right.stats.num_accepted} accepted in {right.stats.num_steps} steps"

    def company(self) -> str:
        with self.warm_engine() as engine:
            alone = _bits(self.decode(engine))
            num_sequences = 3 if self.is_quick else 5
            sequences = [engine.sequence(self.prompt[: len(self.prompt) - i])
                         for i in range(num_sequences)]
            operations = [s.decode_async(self.num_tokens, **_DECODE) for s in sequences]
            together = [_bits(operation.result()) for operation in operations]
            _require_equal([alone, together[0]], "in a batch")
            for sequence in sequences:
                sequence.close()
            return f"alone and among {num_sequences}"

    def twins(self) -> str:
        """Graphs or direct calls, long or short runs, either sampler."""
        found, names = [], []
        variants: list[tuple[str, dict[str, Any]]] = [
            ("graphs", {}), ("direct", {"gpu": GpuOptions(graphs=False, max_batch_rows=32)}),
            ("3 steps", {"gpu": GpuOptions(steps_per_replay=3, max_batch_rows=32)}),
            ("one step at a time", {"gpu": GpuOptions(steps_per_run=1, max_batch_rows=32)}),
            ("triton", {"sampler": "triton"})]
        for name, options in variants[1:4] if self.is_quick else variants:
            with self.engine(**options) as engine:
                found.append(_bits(self.decode(engine)))
                names.append(name)
        _require_equal(found, ", ".join(names))
        return ", ".join(names)

    def runs(self) -> str:
        """The host waits once for a whole decode; what ends it is found on the device."""
        with self.warm_engine() as engine:
            stepper = cast(Any, engine._native)._core._setup.stepper
            before, replays = stepper.num_waits, stepper.runner.num_replays
            decoded = self.decode(engine)
            waits = stepper.num_waits - before
            if waits > 2:  # the rest of a prompt that is cached may take a step of its own
                raise AssertionError(f"waited {waits} times for {self.num_tokens} tokens")
            return (f"{len(decoded.token_ids)} tokens, {waits} wait(s), "
                    f"{stepper.runner.num_replays - replays} replays")

    def deterministic_prefill(self) -> str:
        found = []
        for chunk in (1024, 13):
            with self.engine(deterministic=True, max_batch_tokens=chunk) as engine:
                found += [_bits(self.decode(engine)), _bits(self.decode(engine))]
        _require_equal(found, "prefill in other chunks, cold and warm")
        return "chunks of 1024 and 13, cold and warm"

    def default_prefill(self) -> str:
        """Not a promise of bits: how far other chunks move a confidence."""
        probs = []
        for chunk in (1024, 13):
            with (self.engine(max_batch_tokens=chunk) as engine,
                  engine.sequence(self.prompt) as sequence):
                probs.append(sequence.score(self.prompt[:12]).probs)
        worst = float(np.abs(probs[0] - probs[1]).max())
        if worst > self.tolerance:
            raise AssertionError(f"other chunks move a confidence by {worst:.3g}")
        return f"other chunks move a confidence by {worst:.1e} at most"

    def kv_operations(self) -> str:
        """Also with a penalty, whose sets of tokens are filled on the device; and torch's twins."""
        penalised = {**_DECODE, "sampling": SamplingParams(
            temperature=1.0, seed=3, repetition_penalty=1.3, logit_bias={7: 1.0})}
        found = []
        for ops in ("auto", "torch"):
            gpu = GpuOptions(device_ops=ops, max_batch_rows=32)
            with self.engine(gpu=gpu) as engine, engine.sequence(self.prompt) as sequence:
                saved, fork = sequence.checkpoint(), sequence.fork()
                first = _bits(sequence.decode(self.num_tokens, **_DECODE))
                sequence.truncate(3)
                sequence.rollback(saved)
                again = _bits(sequence.decode(self.num_tokens, **_DECODE))
                with fork:
                    _require_equal([first, again, _bits(fork.decode(self.num_tokens, **_DECODE))],
                                   "decode, after a rollback, in a fork")
                sequence.rollback(saved)
                plain = sequence.decode(self.num_tokens, **penalised)
                sequence.rollback(saved)
                proposed = sequence.decode(
                    self.num_tokens, proposal=plain.token_ids, **penalised)
                _require_equal([_bits(plain), _bits(proposed)], "with a penalty, and proposed")
                found.append((first, _bits(plain)))
        _require_equal(found, "block copies and seen tokens by the module and by torch")
        return "decode, rollback, fork, penalty; the module's copies and torch's"

    def passages(self) -> str:
        """Attached passages: near the CPU engine's, and the same bits in a fork and a batch."""
        half = len(self.prompt) // 2
        texts = [[*self.prompt[half:], 5], self.prompt[1:half]]
        found = []
        with self.engine() as engine, Engine(self.cpu_model, compute="float32") as cpu:
            tokens: tuple[int, ...] = ()
            for one in (engine, cpu):
                with one.sequence(self.prompt, num_head_tokens=3, num_reserved=64) as sequence:
                    sequence.attach([sequence.encode_passage(ids) for ids in texts])
                    forks = [sequence.fork() for _ in range(2)] if one is engine else []
                    running = [fork.decode_async(self.num_tokens, **_DECODE) for fork in forks]
                    together = [_bits(operation.result()) for operation in running]
                    if one is engine:
                        alone = sequence.decode(self.num_tokens, **_DECODE)
                        _require_equal([_bits(alone), *together], "alone, and two forks at once")
                        tokens = alone.token_ids
                        sequence.truncate(len(self.prompt))
                    found.append(sequence.score(tokens).probs)
                    for fork in forks:
                        fork.close()
            with engine.sequence(self.prompt) as plain:
                without = plain.score(tokens).probs
        worst = float(np.abs(found[0] - found[1]).max())
        if worst > self.tolerance:
            raise AssertionError(f"a confidence is off by {worst:.3g}")
        if np.array_equal(found[0], without):
            raise AssertionError("the passages change nothing")
        return f"off by at most {worst:.1e}; a fork and a batch have the same bits"

    def loop(self) -> str:
        """FLARE with and without graphs; whether the CPU's answer is the same is a remark."""
        answers = []
        for graphs in (True, False):
            with self.engine(gpu=GpuOptions(graphs=graphs, max_batch_rows=32)) as engine:
                answers.append(run_flare(engine, 2 * self.num_tokens))
        _require_equal([answer.text for answer in answers], "graphs or not")
        with Engine(self.cpu_model, compute="float32") as cpu:
            is_same = run_flare(cpu, 2 * self.num_tokens).text == answers[0].text
        if not is_same and self.compute == "float32":
            raise AssertionError("the CPU engine gives another answer")
        return (f"{len(answers[0].trace.sentences)} sentences, "
                f"{'the same as' if is_same else 'another answer than'} the CPU's")

    def dense_twin(self) -> str:
        """Confidences of one text with the weights as they are stored, and dequantised."""
        probs, sizes = [], []
        for weights in ("stored", "dense"):
            options = GpuOptions(weights=weights, max_batch_rows=32)
            with self.engine(gpu=options) as engine, engine.sequence(self.prompt) as sequence:
                probs.append(sequence.score(self.prompt[:12]).probs)
                sizes.append(engine.stats().weights_size_bytes)
        worst = float(np.abs(probs[0] - probs[1]).max())
        if worst > self.tolerance or sizes[0] >= sizes[1]:
            raise AssertionError(f"a confidence is off by {worst:.3g}; {sizes[0]} bytes of weights "
                                 f"where the dense twin has {sizes[1]}")
        return f"off by at most {worst:.1e}, {sizes[0]} bytes instead of {sizes[1]}"

    def run_quantized(self, report: Report, name: str) -> None:
        """What other products may change."""
        checks = [("against the CPU engine", self.against_the_cpu),
                  ("alone and in a batch: bits", self.company),
                  ("against the dense twin", self.dense_twin),
                  ("speculation on and off: bits", self.speculation)]
        for title, test in checks[:3] if self.is_quick else checks:
            report.check(name, title, test)

    def run(self, report: Report, name: str) -> None:
        """All checks, in rows of this name."""
        for title, test in (
            ("against the CPU engine", self.against_the_cpu),
            ("speculation on and off: bits", self.speculation),
            ("alone and in a batch: bits", self.company),
            ("graphs, runs, samplers: bits", self.twins),
            ("runs: waits of the host", self.runs),
            ("deterministic prefill: bits", self.deterministic_prefill),
            ("default prefill: tolerance", self.default_prefill),
            ("rollback and fork: bits", self.kv_operations),
            ("attached passages: bits", self.passages),
            ("FLARE loop", self.loop),
        ):
            report.check(name, title, test)
