"""What a method is, and which options go with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.controller import AnswerLoop
from flarecore.loop.interfaces import TokenizerLike
from flarecore.validation import unknown_name

__all__ = ["COMMON", "EVIDENCE", "MethodSpec", "OwnOption", "plain_loop"]

COMMON = ("max_sentences", "max_new_tokens", "max_draft_tokens", "deadline_ms", "overflow", "stop",
          "sampling", "speculative", "template")
"""Options of :class:`FlareConfig` that apply to every method."""

EVIDENCE = ("gate", "k", "min_score", "max_passage_tokens", "max_evidence_tokens", "placement",
            "recompute_tokens", "no_evidence", "max_query_tokens")
"""Options that apply to every method that retrieves."""

_DEFAULTS = FlareConfig()
_NAMES = tuple(f.name for f in dataclasses.fields(FlareConfig))


def plain_loop(setup: AnswerSetup, own: Mapping[str, Any]) -> AnswerLoop:
    """The FLARE loop as it is."""
    return AnswerLoop(setup)


@dataclass(frozen=True)
class OwnOption:
    """An option that only one method has.

    Parameters
    ----------
    default : object
        Its value if it is not given.
    check : callable
        Returns the value as it is used; raises ConfigError.
    help : str
        What it is, for people.
    """

    default: Any
    check: Callable[[object], Any]
    help: str


@dataclass(frozen=True)
class MethodSpec:
    """A method.

    Parameters
    ----------
    name : str
        What :func:`make_method` knows it by.
    description : str
        One line.
    source : str
        Where it is described.
    needs_retriever : bool
        Whether it searches (which ``gate="never"`` forbids every method).
    options : tuple of str
        Options of :class:`FlareConfig` that apply.
    fixed : Mapping of str to object
        Options that the method itself sets.
    own : Mapping of str to OwnOption
        Options besides those of :class:`FlareConfig`.
    has_boundary : bool
        Whether ``placement="boundary"`` is possible: it takes a draft that tells how a sentence
        that begins a turn joins the answer, or evidence that stays before the answer.
    adjust : callable or None
        (config, own) -> options that the method sets according to its own ones.
    loop : callable
        (setup, own) -> the loop of one answer.
    head : callable or None
        (head of the template, own) -> the head with the method's own instruction.
    prepare : callable or None
        (tokenizer) -> values that are computed once and added to `own` for the loop.
    """

    name: str
    description: str
    source: str
    needs_retriever: bool
    options: tuple[str, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, OwnOption] = field(default_factory=dict)
    has_boundary: bool = False
    adjust: Callable[[FlareConfig, Mapping[str, Any]], dict[str, Any]] | None = None
    loop: Callable[[AnswerSetup, Mapping[str, Any]], AnswerLoop] = plain_loop
    head: Callable[[str, Mapping[str, Any]], str] | None = None
    prepare: Callable[[TokenizerLike], Mapping[str, Any]] | None = None

    def narrowed(self, config: FlareConfig) -> FlareConfig:
        """The options that apply, all others at their defaults.

        For running several methods with one set of options; the method alone refuses those that
        do not apply.
        """
        return dataclasses.replace(config, **{
            name: getattr(_DEFAULTS, name) for name in _NAMES if name not in self.options})

    def misfit(self, config: FlareConfig) -> str | None:
        """The first option that was changed and does not apply; None if all do."""
        for name in _NAMES:
            if name not in self.options and getattr(config, name) not in (
                    getattr(_DEFAULTS, name), self.fixed.get(name)):
                return name
        return None

    def configured(self, config: FlareConfig, own: Mapping[str, Any]) -> FlareConfig:
        """The options as the loop takes them.

        Raises
        ------
        ConfigError
            An option was changed that does not apply.
        """
        if (name := self.misfit(config)) is not None:
            raise ConfigError(
                f"method {self.name!r}: option {name}={getattr(config, name)!r} does not apply; "
                f"leave it at its default, or drop it with METHODS[{self.name!r}].narrowed(config) "
                f"(options that apply: {', '.join(self.options)})")
        if config.placement == "boundary" and not self.has_boundary:
            raise ConfigError(
                f"method {self.name!r}: placement='boundary' needs drafts, which it has not; use "
                "'prefix'")
        changes = dict(self.fixed)
        if self.adjust is not None:
            changes |= self.adjust(config, own)
        return dataclasses.replace(config, **changes)

    def own_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The method's own options with their defaults.

        Raises
        ------
        ConfigError
            A name is unknown or a value is wrong.
        """
        if unknown := set(given) - set(self.own):
            if not self.own:
                raise ConfigError(
                    f"method {self.name!r}: unknown option {min(unknown)!r}; it has none besides "
                    "those of FlareConfig")
            raise unknown_name(f"method {self.name!r}", unknown, self.own)
        return {name: option.check(given.get(name, option.default))
                for name, option in self.own.items()}
