"""Options that may be callables: what each is given, checked early, and how they are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from flarecore.errors import CallbackError, CancelledError, ConfigError

__all__ = ["call_option", "check_callable"]

_GIVEN = {
    "gate": "the question, a str or None",
    "trigger": "the sentence, a flarecore.Candidate",
    "must_retrieve": "the draft, a flarecore.Candidate",
    "never_retrieve": "the sentence, a flarecore.Candidate",
    "query": "the sentence, a flarecore.Candidate",
    "no_evidence": "the sentence, a flarecore.Candidate, or None at the initial retrieval",
}


def check_callable(name: str, function: Callable[..., Any]) -> None:
    """Checks that the option's callable can be called with what it is given.

    Raises
    ------
    ConfigError
        It is async, or cannot take exactly one argument. What tells no signature (some builtins)
        passes.
    """
    if inspect.iscoroutinefunction(function):
        raise _async_error(name)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None)
    except TypeError:
        raise ConfigError(
            f"{name}: the callable must take one argument, {_GIVEN[name]}; got "
            f"{_name_of(function)}{signature}") from None


def call_option(name: str, function: Callable[[Any], Any], argument: object) -> Any:
    """What the option's callable returns.

    Raises
    ------
    CallbackError
        It raised; the cause is chained. What is no Exception (KeyboardInterrupt, asyncio's
        CancelledError), and the library's own CancelledError, goes through as it is.
    """
    try:
        answer = function(argument)
    except CancelledError:
        raise
    except Exception as error:
        raise CallbackError(
            f"{name}: the callable {_name_of(function)} raised {type(error).__name__}: {error}; it "
            f"was given {_GIVEN[name]}; the answer so far is in the error's attribute 'partial'"
        ) from error
    if inspect.iscoroutine(answer):
        answer.close()  # nobody will await it
        raise _async_error(name)
    return answer


def _async_error(name: str) -> ConfigError:
    return ConfigError(
        f"{name}: the callable must be a plain function, an async one is not awaited; do what "
        "takes time in a retriever, whose asearch may be async")


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
