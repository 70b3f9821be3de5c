"""FLARE-direct over an engine and a retriever: the public face of the loop."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError, UnsupportedError
from flarecore.events import Event
from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.attaching import Reserved
from flarecore.loop.controller import AnswerLoop
from flarecore.loop.drivers import Outcome, drive, drive_async
from flarecore.loop.effects import Steps
from flarecore.loop.evidence import EvidenceMaker
from flarecore.loop.interfaces import EngineLike
from flarecore.loop.joint import Joint
from flarecore.loop.pieces import PieceEncoder
from flarecore.loop.prompt import Prompt, PromptInput
from flarecore.loop.prompt_builder import PromptBuilder, check_text
from flarecore.loop.room import check_room
from flarecore.result import FlareResult
from flarecore.retrieval.passage import Filter, Retriever
from flarecore.templates import PromptTemplate

__all__ = ["AnswerStream", "AsyncAnswerStream", "Flare"]


class AnswerStream(Iterator[Event]):
    """The events of an answer that is being written; iterate over it.

    Closing it (also by leaving a ``with`` block, or by dropping it) ends the answer: nothing of it
    is left behind. After the last event, :attr:`result` is the answer. One thread reads and closes
    it; to stop an answer from another thread, use :meth:`Flare.astream` and cancel its task.

    Raises
    ------
    ConfigError
        Two threads use it at the same time.
    """

    def __init__(
        self, events: Generator[Event, None, None], outcome: Outcome[FlareResult]
    ) -> None:
        self._events = events
        self._outcome = outcome
        self._in_use = threading.Lock()

    def __next__(self) -> Event:
        with self._alone():
            return next(self._events)

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the answer; may be repeated."""
        with self._alone():
            self._events.close()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._in_use.acquire(blocking=False):
            raise ConfigError(
                "another thread is reading this stream; give each thread a stream of its own")
        try:
            yield
        finally:
            self._in_use.release()

    @property
    def result(self) -> FlareResult:
        """The finished answer.

        Raises
        ------
        ConfigError
            The answer is not finished.
        """
        return _finished(self._outcome)


class AsyncAnswerStream(AsyncIterator[Event]):
    """The events of an answer that is being written; iterate with ``async for``.

    Cancelling the task that iterates, or :meth:`aclose` (also by leaving an ``async with`` block),
    ends the answer. After the last event, :attr:`result` is the answer.

    Raises
    ------
    ConfigError
        Two tasks use it at the same time.
    """

    def __init__(
        self, events: AsyncGenerator[Event, None], outcome: Outcome[FlareResult]
    ) -> None:
        self._events = events
        self._outcome = outcome

    async def __anext__(self) -> Event:
        self._check_alone()
        return await self._events.__anext__()

    async def __aenter__(self) -> AsyncAnswerStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the answer; may be repeated."""
        self._check_alone()
        await self._events.aclose()

    def _check_alone(self) -> None:
        if self._events.ag_running:  # type: ignore[attr-defined]
            raise ConfigError(
                "another task is reading this stream; to end the answer, cancel that task")

    @property
    def result(self) -> FlareResult:
        """The finished answer.

        Raises
        ------
        ConfigError
            The answer is not finished.
        """
        return _finished(self._outcome)


class Flare:
    """Writes answers sentence by sentence, and looks up what it is not sure of.

    An object serves any number of answers, also at the same time. Its callables (trigger, query,
    no-evidence rule) and, for blocking answers, its retriever are called on the thread that asks
    for the next event; for asyncio answers a retriever without ``asearch`` is called on a thread.

    Parameters
    ----------
    engine : EngineLike
        A :class:`flarecore.Engine`.
    retriever : Retriever or None
        Finds passages. May offer ``check_filter(filter)``, called before any work, and ``async def
        asearch(queries, k, filter)`` for asyncio answers. None is enough if the options never
        search.
    config : FlareConfig or None
        None: the defaults.
    clock : callable
        Monotonic seconds, for times and ``deadline_ms``.

    Raises
    ------
    ConfigError
        An argument is of the wrong type, the options need a retriever, or the template does not
        suit the model.
    UnsupportedError
        The engine cannot do what the placement needs.
    """

    def __init__(
        self, engine: EngineLike, retriever: Retriever | None,
        config: FlareConfig | None = None, *, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = FlareConfig() if config is None else config
        if not isinstance(config, FlareConfig):
            raise ConfigError(f"config must be a FlareConfig, got {type(config).__name__}")
        if retriever is None:
            if config.may_retrieve:
                raise ConfigError(
                    "a retriever is needed; without one, use FlareConfig(gate='never')")
        elif not callable(getattr(retriever, "search", None)):
            raise ConfigError(
                f"retriever must have a method search(queries, k, filter), got "
                f"{type(retriever).__name__}")
        if not callable(getattr(engine, "sequence", None)):
            raise ConfigError(f"engine must be an Engine, got {type(engine).__name__}")
        if config.placement == "parallel" and getattr(engine, "passages", None) is None:
            raise UnsupportedError(
                f"placement='parallel' needs an engine that encodes passages, and "
                f"{type(engine).__name__} has no attribute passages; use 'prefix' or 'boundary'")
        self._engine = engine
        self._retriever = retriever
        self._config = config
        self._clock = clock
        self._prompts = PromptBuilder(engine.tokenizer, config.template)
        self._pieces = PieceEncoder(engine.tokenizer)
        self._joint = Joint(engine.tokenizer)

    @property
    def config(self) -> FlareConfig:
        """The options."""
        return self._config

    def generate(
        self, prompt: PromptInput, *, question: str | None = None, scope: str | None = None,
        filter: Filter | None = None, num_head_tokens: int | None = None,
    ) -> FlareResult:
        """Writes an answer.

        Parameters
        ----------
        prompt : str, list of messages or list of int
            A question (put into the model's chat template, or after the exemplars for a model
            without one); chat messages, the last one the user's; or token ids after which the
            answer begins.
        question : str or None
            What queries fall back to, and the query of the initial retrieval; None: the question,
            or the last message.
        scope : str or None
            Text put before every query (a year, a product): what the draft must not override.
        filter : Mapping or None
            Metadata conditions of every search; only the application sets them.
        num_head_tokens : int or None
            For token ids and placement ``prefix`` or ``parallel``: how many of them stay before
            the evidence.
            None: only a begin-of-sequence token.

        Raises
        ------
        ConfigError
            An argument is wrong.
        ContextOverflowError
            The prompt leaves too little room in the model's context, see ``FlareConfig.overflow``;
            before any work.
        RetrievalError
            The retriever raised (the cause is chained) or returned something wrong.
        FlarecoreError
            What the engine raised. Of this and a RetrievalError the attribute ``partial`` holds
            the :class:`FlareResult` up to the last accepted sentence.
        """
        with self.stream(
            prompt, question=question, scope=scope, filter=filter,
            num_head_tokens=num_head_tokens,
        ) as events:
            for _ in events:
                pass
            return events.result

    def stream(
        self, prompt: PromptInput, *, question: str | None = None, scope: str | None = None,
        filter: Filter | None = None, num_head_tokens: int | None = None,
    ) -> AnswerStream:
        """The same answer as :meth:`generate`, as events while it is written.

        Arguments are checked at once; work begins with the first event.
        """
        setup = self._setup(prompt, question, scope, filter, num_head_tokens)
        outcome: Outcome[FlareResult] = Outcome()
        return AnswerStream(drive(self._steps(setup), self._retriever, outcome), outcome)

    async def agenerate(
        self, prompt: PromptInput, *, question: str | None = None, scope: str | None = None,
        filter: Filter | None = None, num_head_tokens: int | None = None,
    ) -> FlareResult:
        """:meth:`generate` for asyncio; cancelling the task ends the answer."""
        async with self.astream(
            prompt, question=question, scope=scope, filter=filter,
            num_head_tokens=num_head_tokens,
        ) as events:
            async for _ in events:
                pass
            return events.result

    def astream(
        self, prompt: PromptInput, *, question: str | None = None, scope: str | None = None,
        filter: Filter | None = None, num_head_tokens: int | None = None,
    ) -> AsyncAnswerStream:
        """:meth:`stream` for asyncio: ``async for event in flare.astream(question)``."""
        setup = self._setup(prompt, question, scope, filter, num_head_tokens)
        outcome: Outcome[FlareResult] = Outcome()
        return AsyncAnswerStream(
            drive_async(self._steps(setup), self._retriever, outcome), outcome)

    def _setup(
        self, prompt: PromptInput, question: str | None, scope: str | None,
        filter: Filter | None, num_head_tokens: int | None,
    ) -> AnswerSetup:
        """Checks a request and prepares everything that needs no forward pass."""
        started = self._clock()
        if scope is not None:
            check_text("scope", scope)
        if filter is not None and not isinstance(filter, Mapping):
            raise ConfigError(
                f"filter must map field names to conditions, got {type(filter).__name__}")
        check_filter = getattr(self._retriever, "check_filter", None)
        if filter is not None and check_filter is not None:
            check_filter(filter)
        model = self._engine.model
        built, template = self._build(prompt, question, num_head_tokens)
        asks = self._config.gate == "always" or (
            self._config.initial_retrieval and self._config.gate != "never")
        if asks and built.question_text is None:
            raise ConfigError(
                "the initial retrieval searches with the question, which token ids do not tell: "
                "pass question=..., or use initial_retrieval=False")
        maker = EvidenceMaker(self._engine.tokenizer, template, self._config)
        num_reserved = maker.max_rendered_tokens
        check_room(self._config, built, template, self._pieces, model.config.context_length,
                   num_reserved or 0)
        return AnswerSetup(
            engine=self._engine, config=self._config, prompt=built, template=template,
            pieces=self._pieces, maker=maker, joint=self._joint, scope=scope, filter=filter,
            clock=self._clock, started=started,
            reserved=None if num_reserved is None else Reserved(
                built.num_attach_head, num_reserved))

    def _build(
        self, prompt: PromptInput, question: str | None, num_head_tokens: int | None
    ) -> tuple[Prompt, PromptTemplate]:
        return self._prompts.build(
            prompt, question=question, num_head_tokens=num_head_tokens,
            vocab_size=self._engine.model.config.vocab_size)

    def _steps(self, setup: AnswerSetup) -> Steps[FlareResult]:
        # Made on the first step: that is when the clock starts.
        return (yield from self._loop(setup).run())

    def _loop(self, setup: AnswerSetup) -> AnswerLoop:
        return AnswerLoop(setup)


def _finished(outcome: Outcome[FlareResult]) -> FlareResult:
    if outcome.value is None:
        raise ConfigError("the answer is not finished: there is no result before the last event")
    return outcome.value
