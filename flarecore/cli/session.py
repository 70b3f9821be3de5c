"""Opens model and engine for a command, saying what takes time."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flarecore.cli.options import check_engine_options
from flarecore.cli.progress import StageProgress, waiting

if TYPE_CHECKING:
    from rich.console import Console

    from flarecore.engine import Engine

__all__ = ["kept_passages", "locate_model", "open_engine"]


@contextlib.contextmanager
def kept_passages(path: str | None, engine: Engine) -> Iterator[None]:
    """Uses the passages of a file, and adds to it what was encoded when the block ends well.

    Raises
    ------
    IndexFileError
        The file is damaged, belongs to another model, or cannot be written.
    """
    if path is None:
        yield
        return
    from flarecore.passage_file import PassageKvFile

    file = PassageKvFile.open(path, engine) if os.path.exists(path) else None
    if file is not None:
        engine.passages.attach_file(file)
    yield
    encoded = engine.passages.passages()
    if encoded:
        PassageKvFile.write(path, engine, encoded, extends=file)


def locate_model(name: str, notes: Console) -> None:
    """Makes sure that a model is there. Raises ModelFileError."""
    from flarecore.model_files import find_model

    # Only a model that comes in parts takes time here, once.
    with StageProgress(notes) as progress:
        find_model(
            name,
            progress=lambda stage, done, total: progress(stage, done >> 20, total >> 20),
        )


@contextlib.contextmanager
def open_engine(args: argparse.Namespace, notes: Console) -> Iterator[Engine]:
    """An engine for ``--model`` and the options of ``add_engine_options``; closed at the end.

    Raises
    ------
    ConfigError, ModelFileError, UnsupportedError
        As from ``Model.load`` and ``Engine``.
    """
    from flarecore.engine import Engine
    from flarecore.model import Model

    check_engine_options(args)
    size = None if args.kv_cache_mb is None else args.kv_cache_mb << 20
    locate_model(args.model, notes)
    with waiting(notes, f"loading {args.model}"):
        model = Model.load(args.model, threads=args.threads, quantize=args.quantize)
        engine = Engine(model, compute=args.compute, kv_cache_bytes=size)
    if model.quantization is not None and getattr(args, "verbose", False):
        for line in model.quantization.lines():
            notes.print(line, style="dim", highlight=False)
    try:
        yield engine
    finally:
        engine.close()
