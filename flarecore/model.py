"""A decoder model: file, configuration and tokenizer. The first engine packs its weights."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from flarecore import _C
from flarecore.errors import ConfigError, UnsupportedError
from flarecore.model_files import find_model
from flarecore.tokenizer import Tokenizer

__all__ = ["Model", "ModelConfig"]


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder. Sizes count values; ``context_length`` counts tokens."""

    architecture: str
    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    vocab_size: int


class Model:
    """A loaded model. Make one with :meth:`load`; any number of engines may share it.

    Attributes
    ----------
    name : str
        The name or path it was loaded by.
    path : pathlib.Path
        The model file.
    config : ModelConfig
        Its shape.
    tokenizer : Tokenizer
        Its tokenizer, built from the file's own metadata.
    num_threads : int
        Threads of each engine's forward pass.
    """

    def __init__(self, native: _C.Model, name: str, path: Path, tokenizer: Tokenizer) -> None:
        self._native = native
        self.name = name
        self.path = path
        self.tokenizer = tokenizer
        self.config = ModelConfig(**native.config())
        self.num_threads: int = native.num_threads

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str], *, device: str = "cpu",
             threads: int | None = None) -> Model:
        """Opens a model file.

        Parameters
        ----------
        name_or_path : str or path
            A known name (``"smollm2-135m"``), found in its installed package, or a GGUF file.
        device : str
            ``"cpu"``; nothing else is built yet.
        threads : int, optional
            Threads of the forward pass. None takes what the process may use (affinity and the
            container's CPU quota). Results do not depend on it.

        Raises
        ------
        ModelFileError
            The file is missing, damaged or hostile, or the name is unknown.
        UnsupportedError
            Its architecture, tokenizer or tensor types are not supported, or the device is not.
        ConfigError
            `threads` is not a positive integer.
        """
        if device != "cpu":
            raise UnsupportedError(f"device {device!r} is not available; available: 'cpu'")
        if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool)
                                    or not 1 <= threads <= 1024):
            raise ConfigError(f"threads must be None or an integer from 1 to 1024, got {threads!r}")
        path = find_model(name_or_path)
        native = _C.Model(str(path), threads or 0)
        tokenizer = Tokenizer.from_gguf(path)
        native.set_vocabulary(tokenizer.token_table, sorted(tokenizer.special_token_ids),
                              sorted(tokenizer.eos_token_ids))
        return cls(native, os.fspath(name_or_path), path, tokenizer)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the model file, in hexadecimal; read once, when it is first asked for."""
        digest = hashlib.sha256()
        with open(self.path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.config.architecture}, {self.num_threads} threads)"
