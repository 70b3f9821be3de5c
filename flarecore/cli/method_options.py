"""Options of methods: whether they go together, and those given as NAME=VALUE."""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from flarecore.cli.options import add_flare_options, option_flag
from flarecore.config import FlareConfig
from flarecore.errors import ConfigError

if TYPE_CHECKING:
    from flarecore.methods import MethodSpec

__all__ = ["check_method", "option_names", "parse_options"]

_SWITCH_WORDS = {"true": True, "on": True, "yes": True, "1": True,
                 "false": False, "off": False, "no": False, "0": False}


def check_method(
    spec: MethodSpec, config: FlareConfig, own: Mapping[str, Any], where: str,
    spelled: Callable[[str], str] = option_flag,
) -> None:
    """Checks the options that were given together with a method.

    Parameters
    ----------
    spec : MethodSpec
    config : FlareConfig
        With the options that were given; the others at their defaults.
    own : mapping
        The method's own options that were given.
    where : str
        The option that named the method, for messages.
    spelled : callable
        How an option is written where it was given.

    Raises
    ------
    ConfigError
        An option does not apply, is unknown or has a wrong value.
    """
    if (name := spec.misfit(config)) is not None:
        known = option_names()
        applying = ", ".join(spelled(option) for option in spec.options if option in known)
        raise ConfigError(f"{where}: {spelled(name)} does not apply to it; leave it out (options "
                          f"that apply: {applying}, and those of sampling)")
    spec.configured(config, spec.own_options(own))


class _OptionParser(argparse.ArgumentParser):
    """Raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(re.sub(r"^argument --([\w-]+): ", r"\1: ", message))


@functools.cache
def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.Action]]:
    """A parser of the loop's options, and what it reads for each name."""
    parser = _OptionParser(add_help=False, allow_abbrev=False)
    add_flare_options(parser)
    return parser, {action.dest: action for action in parser._actions}


def option_names() -> frozenset[str]:
    """Options of the loop that the command line has, in the form of fields of FlareConfig."""
    return frozenset(_parser()[1])


def parse_options(
    settings: Sequence[tuple[str, str]], where: str = "--set"
) -> tuple[argparse.Namespace, dict[str, str]]:
    """Options given as names and texts, read as those of the command line.

    Parameters
    ----------
    settings : sequence of (str, str)
        Names as in :class:`FlareConfig` or of a command-line option, and values; switches take
        ``true`` or ``false``.
    where : str
        Where they were given, for messages.

    Returns
    -------
    args : argparse.Namespace
        For :func:`flarecore.cli.options.flare_config`.
    others : dict of str to str
        Those with other names.

    Raises
    ------
    ConfigError
        A value is wrong.
    """
    parser, known = _parser()
    argv: list[str] = []
    others: dict[str, str] = {}
    for name, value in settings:
        action, flag = known.get(name), f"--{name.replace('_', '-')}"
        if action is None:
            others[name] = value
        elif isinstance(action, argparse.BooleanOptionalAction):
            if value.lower() not in _SWITCH_WORDS:
                raise ConfigError(f"{where}: {name} must be true or false, got {value!r}")
            argv.append(flag if _SWITCH_WORDS[value.lower()] else f"--no-{flag[2:]}")
        else:
            argv.append(f"{flag}={value}")
    try:
        return parser.parse_args(argv), others
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
