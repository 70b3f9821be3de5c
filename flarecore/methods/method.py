"""Methods in use: the face of :class:`flarecore.Flare` with another loop behind it."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.flare import Flare
from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.controller import AnswerLoop
from flarecore.loop.interfaces import EngineLike
from flarecore.loop.prompt import Prompt, PromptInput
from flarecore.loop.prompt_builder import PromptBuilder
from flarecore.methods.registry import METHODS
from flarecore.methods.spec import MethodSpec
from flarecore.retrieval.passage import Retriever
from flarecore.templates import PromptTemplate
from flarecore.validation import check_choice, unknown_name

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Method", "make_method"]


class Method(Flare):
    """A way to write an answer; made by :func:`make_method`.

    ``generate``, ``stream``, ``agenerate`` and ``astream`` are those of :class:`flarecore.Flare`.
    A method with an instruction of its own (``MethodSpec.head``) puts it before the template's
    head, or before the system message of a chat; in a prompt of token ids it must stand already.

    Parameters
    ----------
    spec : MethodSpec
        The method.
    engine, retriever, config, clock
        As for :class:`flarecore.Flare`.
    own : Mapping
        The method's own options.

    Raises
    ------
    ConfigError
        An option is unknown, wrong, or does not apply; or as for :class:`flarecore.Flare`.
    """

    def __init__(
        self, spec: MethodSpec, engine: EngineLike, retriever: Retriever | None,
        config: FlareConfig | None, own: Mapping[str, Any], *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = FlareConfig() if config is None else config
        if not isinstance(config, FlareConfig):
            raise ConfigError(f"config must be a FlareConfig, got {type(config).__name__}")
        self.spec = spec
        self._own = spec.own_options(own)
        super().__init__(engine, retriever, config, clock=clock)
        self._prepared = {} if spec.prepare is None else spec.prepare(engine.tokenizer)

    def _configure(self, config: FlareConfig) -> None:
        super()._configure(self.spec.configured(config, self._own))
        self._given = config
        if self.spec.head is not None:
            template = self._prompts.template
            self._instructed = PromptBuilder(self._engine.tokenizer, dataclasses.replace(
                template, head=self.spec.head(template.head, self._own)))

    def replace(self, **changes: Any) -> Self:
        """As :meth:`flarecore.Flare.replace`; `changes` may be the method's own options, too."""
        known = {*self.spec.own, *(f.name for f in dataclasses.fields(FlareConfig))}
        if unknown := changes.keys() - known:
            raise unknown_name(
                f"method {self.name!r}", unknown, {*self.spec.own, *self.spec.options})
        own = {name: changes.pop(name) for name in self.spec.own if name in changes}
        other = copy.copy(self)
        other._own = self.spec.own_options(self._own | own)
        other._configure(dataclasses.replace(self._given, **changes))
        return other

    @property
    def name(self) -> str:
        """The method's name."""
        return self.spec.name

    @property
    def own_options(self) -> dict[str, Any]:
        """The options besides those of :class:`FlareConfig`."""
        return dict(self._own)

    def _build(
        self, prompt: PromptInput, question: str | None, num_head_tokens: int | None
    ) -> tuple[Prompt, PromptTemplate]:
        if self.spec.head is None:
            return super()._build(prompt, question, num_head_tokens)
        if isinstance(prompt, str):
            return self._instructed.build(
                prompt, question=question, num_head_tokens=num_head_tokens,
                vocab_size=self._engine.model.config.vocab_size)
        return super()._build(self._with_instruction(prompt), question, num_head_tokens)

    def _with_instruction(self, prompt: PromptInput) -> PromptInput:
        """Chat messages with the method's instruction in the system message; ids as they are."""
        assert self.spec.head is not None
        if isinstance(prompt, str) or not isinstance(prompt, Sequence) or not prompt \
                or not all(isinstance(message, Mapping) for message in prompt):
            return prompt
        messages: list[Any] = list(prompt)
        system = messages.pop(0).get("content") if messages[0].get("role") == "system" else ""
        if not isinstance(system, str):
            return prompt  # refused there, with the place of the fault
        instruction = self.spec.head("", self._own)
        content = f"{instruction}{system}" if system else instruction
        return [{"role": "system", "content": content}, *messages]

    def _loop(self, setup: AnswerSetup) -> AnswerLoop:
        return self.spec.loop(
            dataclasses.replace(setup, method=self.name, method_options=self._own),
            {**self._own, **self._prepared})


def make_method(
    name: str, engine: EngineLike, retriever: Retriever | None,
    config: FlareConfig | None = None, *, clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> Method:
    """A method by its name.

    Parameters
    ----------
    name : str
        One of :data:`METHODS`.
    engine : EngineLike
        A :class:`flarecore.Engine`; answers of several methods may run on it at the same time.
    retriever : Retriever or None
        As for :class:`flarecore.Flare`.
    config : FlareConfig or None
        Options; see ``MethodSpec.options`` for those that apply.
    clock : callable
        Monotonic seconds.
    **options
        The method's own options, see ``MethodSpec.own``.

    Raises
    ------
    ConfigError
        The name or an option is unknown, a value is wrong, or an option does not apply.
    """
    spec = METHODS[check_choice("method", name, METHODS)]
    return Method(spec, engine, retriever, config, options, clock=clock)
