"""The methods that an evaluation compares."""

from __future__ import annotations

import dataclasses
from typing import Any

from flarecore.config import FlareConfig
from flarecore.engine import Engine
from flarecore.errors import ConfigError
from flarecore.flare import Flare
from flarecore.retrieval.passage import Retriever

__all__ = ["make_method"]

_CHANGES: dict[str, dict[str, Any]] = {
    "flare": {},
    "no-retrieval": {"gate": "never"},
    "single-retrieval": {
        "gate": "always", "trigger": "never", "draft_context": "last_evidence"},
}


def make_method(
    name: str, engine: Engine, retriever: Retriever | None, config: FlareConfig, **options: Any
) -> Flare:
    """A method by name."""
    if name not in _CHANGES:
        raise ConfigError(f"unknown method {name!r}; known: {', '.join(sorted(_CHANGES))}")
    if options:
        raise ConfigError(f"method {name!r} has no option {sorted(options)[0]!r}")
    return Flare(engine, retriever, dataclasses.replace(config, **_CHANGES[name]))
