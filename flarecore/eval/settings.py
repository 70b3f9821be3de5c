"""Methods with their options from ``NAME:option=value`` and ``--set option=value``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.validation import check_choice, unknown_name

__all__ = [
    "MethodRequest", "config_from_settings", "parse_methods", "requested_options",
    "split_settings",
]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# An evaluation of hundreds of questions is about short answers: two facts and the result.
DEFAULTS: Mapping[str, Any] = {
    "max_sentences": 4, "max_new_tokens": 128, "max_draft_tokens": 48, "k": 2}


@dataclass(frozen=True)
class MethodRequest:
    """A method as it was asked for.

    Parameters
    ----------
    label : str
        What reports call it: the text that asked for it.
    name : str
        Of the method.
    settings : tuple of (str, str)
        Its own options, on top of those for all methods.
    """

    label: str
    name: str
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def file_name(self) -> str:
        """The label as a name for files."""
        return re.sub(r"[^A-Za-z0-9._=-]+", "_", self.label)


def parse_methods(texts: Iterable[str]) -> list[MethodRequest]:
    """Methods from ``NAME[:option=value...]``, several with commas between.

    Raises
    ------
    ConfigError
        A text is malformed or asks for the same twice.
    """
    requests: list[MethodRequest] = []
    for text in (part.strip() for whole in texts for part in whole.split(",")):
        name, *settings = text.split(":")
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"--method: must be NAME or NAME:option=value, got {text!r}; several are separated "
                "by commas")
        request = MethodRequest(text, name, split_settings(settings, "--method"))
        if any(request.file_name == other.file_name for other in requests):
            raise ConfigError(f"--method: {text!r} is asked for twice")
        requests.append(request)
    if not requests:
        raise ConfigError("--method: names no method")
    return requests


def split_settings(texts: Iterable[str], where: str = "--set") -> tuple[tuple[str, str], ...]:
    """(option, value) of texts such as ``theta=0.6``.

    Raises
    ------
    ConfigError
        A text has no ``=`` or no name before it.
    """
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{where}: must be option=value, got {text!r}")
        pairs.append((name.strip().replace("-", "_"), value.strip()))
    return tuple(pairs)


def config_from_settings(
    settings: Sequence[tuple[str, str]], where: str = "--set", **changes: Any
) -> tuple[FlareConfig, dict[str, Any]]:
    """Options of the loop and of the method.

    Options of :class:`FlareConfig`, its sampling options and ``preset`` are read as on the command
    line of ``flarecore generate``; all others are the method's own, as JSON where they are JSON
    (``16``, ``true``), else as text. A later setting replaces an earlier one.

    Parameters
    ----------
    settings : sequence of (str, str)
        Options.
    where : str
        Where they were given, for messages.
    changes : Any
        Defaults that are not FlareConfig's; the preset ``default`` also takes those of
        evaluations: four sentences, 128 tokens, two passages.

    Raises
    ------
    ConfigError
        A value is wrong.
    """
    from flarecore.cli.method_options import parse_options
    from flarecore.cli.options import flare_config, json_or_text

    args, others = parse_options(settings, where)
    start = dict(DEFAULTS) if args.preset == "default" else {
        name: DEFAULTS[name] for name in ("max_sentences", "max_new_tokens", "max_draft_tokens")}
    config = flare_config(args, **start | changes)
    if config.template is not None and args.template is not None and "template" in changes:
        # The words are the user's, the exemplars stay those of the run.
        config = dataclasses.replace(config, template=dataclasses.replace(
            config.template, head=changes["template"].head))
    return config, {name: json_or_text(value) for name, value in others.items()}


def requested_options(
    request: MethodRequest, shared: Sequence[tuple[str, str]], **changes: Any
) -> tuple[FlareConfig, dict[str, Any]]:
    """Options of the loop and of a method.

    Options for all methods reach those that have them; a method's own ones must suit it.

    Parameters
    ----------
    request : MethodRequest
        The method.
    shared : sequence of (str, str)
        Options of all methods.
    changes : Any
        As for :func:`config_from_settings`.

    Raises
    ------
    ConfigError
        The method is unknown, a value is wrong, or no method has an option of that name.
    """
    from flarecore.cli.method_options import check_method, option_names
    from flarecore.methods import METHODS

    spec = METHODS[check_choice("--method", request.name, METHODS)]
    where = f"--method {request.label}"
    everywhere = [name for other in METHODS.values() for name in other.own]
    for place, settings, own in (
            ("--set", shared, everywhere), (where, request.settings, spec.own)):
        known = {*option_names(), *own}
        if unknown := {name for name, _ in settings} - known:
            raise unknown_name(place, unknown, known)
        config_from_settings(settings, place)  # a wrong value is one of this place
    config, options = config_from_settings((*shared, *request.settings), where, **changes)
    given_here = {name for name, _ in request.settings}
    config = dataclasses.replace(spec.narrowed(config), **{
        name: getattr(config, name) for name in given_here if hasattr(config, name)})
    options = {name: value for name, value in options.items() if name in spec.own}
    check_method(spec, config, options, where, spelled=str)
    return config, options
