"""FLARE-direct over an engine and a retriever: the public face of the loop."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from flarecore.answer_stream import AnswerStream, AsyncAnswerStream
from flarecore.codec import json_value
from flarecore.config import FlareConfig
from flarecore.errors import (
    ClosedError,
    ConfigError,
    FlarecoreError,
    RetrievalError,
    UnsupportedError,
)
from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.attaching import Reserved
from flarecore.loop.controller import AnswerLoop
from flarecore.loop.drivers import Outcome, drive, drive_async
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

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AnswerStream", "AsyncAnswerStream", "Flare"]


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
        if retriever is not None:
            _check_retriever(retriever)
        if not callable(getattr(engine, "sequence", None)):
            raise ConfigError(f"engine must be an Engine, got {type(engine).__name__}")
        self._engine = engine
        self._retriever = retriever
        self._clock = clock
        self._configure(config)
        self._pieces = PieceEncoder(engine.tokenizer)
        self._joint = Joint(engine.tokenizer)

    def _configure(self, config: FlareConfig) -> None:
        """Takes the options, once they are known to suit engine and retriever."""
        engine = self._engine
        if getattr(engine, "is_closed", False):
            raise ClosedError("the engine is closed; make a new one")
        if self._retriever is None and config.may_retrieve:
            raise ConfigError("a retriever is needed; without one, use FlareConfig(gate='never')")
        if config.placement == "parallel" and getattr(engine, "passages", None) is None:
            raise UnsupportedError(
                f"placement='parallel' needs an engine that encodes passages, and "
                f"{type(engine).__name__} has no attribute passages; use 'prefix' or 'boundary'")
        self._prompts = PromptBuilder(engine.tokenizer, config.template)
        self._config = config

    def replace(self, **changes: Any) -> Self:
        """The same with other options, for one request: ``flare.replace(deadline_ms=500)``.

        Cheap: engine (and with it every cache), retriever and clock are shared, nothing is copied.
        This object stays as it is.

        Parameters
        ----------
        **changes
            Options of :class:`FlareConfig`.

        Raises
        ------
        ConfigError
            An option is unknown or its value is wrong; or as for the class.
        """
        other = copy.copy(self)
        other._configure(dataclasses.replace(self._config, **changes))
        return other

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
            Metadata conditions of every search, which hold together; only the application sets
            them, no draft can change them. ``{"lang": "en", "team": ["a", "b"], "year":
            {"gte": 2020, "lt": 2024}}``: a value, any of several, or comparisons (``eq``, ``ne``,
            ``gt``, ``gte``, ``lt``, ``lte``, ``in``, ``not_in``); a passage without the field does
            not pass. See :mod:`flarecore.retrieval.filters`.
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
        CallbackError
            A callable of the options raised; the cause is chained.
        FlarecoreError
            What the engine raised, ClosedError if it was closed meanwhile. Of these errors the
            attribute ``partial`` holds the :class:`FlareResult` up to the last accepted sentence.
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

        Arguments are checked at once, and the time of ``deadline_ms`` begins; work begins with the
        first event.
        """
        loop = self._loop(self._setup(prompt, question, scope, filter, num_head_tokens))
        outcome: Outcome[FlareResult] = Outcome()
        return AnswerStream(drive(loop.run(), self._retriever, outcome), outcome, loop.partial)

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
        loop = self._loop(self._setup(prompt, question, scope, filter, num_head_tokens))
        outcome: Outcome[FlareResult] = Outcome()
        return AsyncAnswerStream(
            drive_async(loop.run(), self._retriever, outcome), outcome, loop.partial)

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
        filter_shown = None
        if filter is not None:
            _check_filter(self._retriever, filter)
            filter_shown = _shown(filter)
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
            filter_shown=filter_shown, clock=self._clock, started=started,
            reserved=None if num_reserved is None else Reserved(
                built.num_attach_head, num_reserved))

    def _build(
        self, prompt: PromptInput, question: str | None, num_head_tokens: int | None
    ) -> tuple[Prompt, PromptTemplate]:
        return self._prompts.build(
            prompt, question=question, num_head_tokens=num_head_tokens,
            vocab_size=self._engine.model.config.vocab_size)

    def _loop(self, setup: AnswerSetup) -> AnswerLoop:
        return AnswerLoop(setup)


def _check_retriever(retriever: object) -> None:
    search = getattr(retriever, "search", None)
    if not callable(search):
        raise ConfigError(
            f"retriever must have a method search(queries, k, filter), got "
            f"{type(retriever).__name__}")
    if inspect.iscoroutinefunction(search):
        raise ConfigError(
            f"{type(retriever).__name__}.search must be a plain method, an async one must be "
            "called asearch (agenerate and astream await it), beside a plain search")


def _shown(filter: Filter) -> dict[str, Any]:
    """The filter as JSON values, for events and trace."""
    try:
        shown: dict[str, Any] = json_value(filter)
    except ConfigError as error:
        raise ConfigError(f"filter: {error}; use smaller values") from None
    return shown


def _check_filter(retriever: object, filter: Filter) -> None:
    """Asks the retriever, if it offers to be asked."""
    check_filter = getattr(retriever, "check_filter", None)
    if check_filter is None:
        return
    try:
        check_filter(filter)
    except FlarecoreError:
        raise
    except Exception as error:
        raise RetrievalError(
            f"{type(retriever).__name__}.check_filter raised {type(error).__name__}: {error} "
            f"(filter {filter!r})") from error
