"""A decoder model: file, configuration and tokenizer. The first engine packs its weights."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarecore import _C
from flarecore.checkpoint.config import read_config
from flarecore.checkpoint.files import CheckpointFiles
from flarecore.checkpoint.json_file import read_json
from flarecore.errors import ConfigError, ModelFileError, UnsupportedError
from flarecore.gpu.device import GPU_DEVICES, open_device
from flarecore.model_files import find_model
from flarecore.quantization import Quantization, check_quantize
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
        The model file, or the directory of a checkpoint.
    config : ModelConfig
        Its shape.
    tokenizer : Tokenizer
        Its tokenizer, built from the file's own metadata, or the directory's ``tokenizer.json``.
    num_threads : int
        Threads of each engine's forward pass.
    device : str
        Where its engines run.
    quantize : {"q4", "q8"} or None
        How its float weights are quantised at load.
    """

    def __init__(self, native: _C.Model, name: str, path: Path, tokenizer: Tokenizer,
                 quantize: str | None = None, device: str = "cpu") -> None:
        native.set_vocabulary(tokenizer.token_table, sorted(tokenizer.special_token_ids),
                              sorted(tokenizer.eos_token_ids))
        self._native = native
        self.quantize = quantize
        self.device = device
        # By compute type and form; see flarecore.gpu.build.
        self._gpu_weights: dict[tuple[str, str], Any] = {}
        self.name = name
        self.path = path
        self.tokenizer = tokenizer
        self.config = ModelConfig(**native.config())
        self.num_threads: int = native.num_threads

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str], *, device: str = "cpu",
             threads: int | None = None, quantize: str | None = None) -> Model:
        """Opens a model file, or a checkpoint in the Hugging Face format.

        Parameters
        ----------
        name_or_path : str or path
            A known name (``"smollm2-135m"``), found in its installed package, a GGUF file, or a
            directory with ``config.json``, ``tokenizer.json`` and ``model.safetensors`` or its
            shards (``model.safetensors.index.json``). A checkpoint's weights stay F32, F16 or BF16,
            as they are, unless `quantize` is given.
        device : {"cpu", "cuda", "interpreter"}
            ``"cuda"`` needs torch, triton and an NVIDIA GPU. ``"interpreter"`` runs the GPU engine
            on CPU tensors in Triton's interpreter: very slow, for tests.
        threads : int, optional
            Threads of the forward pass. None takes what the process may use (affinity and the
            container's CPU quota). Results do not depend on it.
        quantize : {"q4", "q8"}, optional
            Quantises matrices of F32, F16 and BF16 when they are packed, for any kind of file, in
            groups of 32 values: ``"q8"`` to 8 bits and a scale, ``"q4"`` to 4 bits, scale and
            minimum, but token embedding and output head to 8 bits. Norms stay what they are, as do
            matrices that the file holds quantised, or whose rows are no multiple of 32. What it
            changes is in :attr:`quantization`. The same weights are used by ``compute="float32"``,
            and by an engine on a GPU.

        Raises
        ------
        ModelFileError
            A file is missing, damaged or hostile, or the name is unknown.
        UnsupportedError
            Its architecture, a feature of it, its tokenizer or tensor types are not supported, or
            the device is not.
        ConfigError
            `name_or_path` is neither a string nor a path, `threads` is not a positive integer,
            `quantize` is unknown, or finds nothing to quantise since the file is quantised already.
        """
        if device != "cpu":
            if device not in GPU_DEVICES:
                raise UnsupportedError(f"device {device!r} is unknown; known are 'cpu', "
                                       + ", ".join(map(repr, GPU_DEVICES)))
            open_device(device)
        if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool)
                                    or not 1 <= threads <= 1024):
            raise ConfigError(f"threads must be None or an integer from 1 to 1024, got {threads!r}")
        check_quantize(quantize)
        path = find_model(name_or_path)
        options = (threads or 0, quantize or "none")
        if path.is_dir():
            native, tokenizer = _open_checkpoint(path, *options)
        elif path.suffix in (".safetensors", ".json"):
            raise ModelFileError(f"{path} is one file of a checkpoint: give its directory, "
                                 f"{path.parent}")
        else:
            native = _C.Model(str(path), *options)
            tokenizer = Tokenizer.from_gguf(path)
        return cls(native, os.fspath(name_or_path), path, tokenizer, quantize, device)

    @property
    def quantization(self) -> Quantization | None:
        """What `quantize` changed, measured while packing; None without it.

        Packs the weights, as an engine with ``compute="int8"`` does, if none has been made yet.
        """
        if self.quantize is None:
            return None
        return Quantization.from_tensors(self.quantize, self._native.quantization())

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the weights and how they are quantised, in hexadecimal.

        Of a directory, of its JSON and safetensors files. Read once, when it is first asked for.
        """
        files = [self.path]
        if self.path.is_dir():
            files = sorted(p for p in self.path.iterdir()
                           if p.suffix in (".json", ".safetensors") and p.is_file())
        digest = hashlib.sha256((self.quantize or "as stored").encode())
        for path in files:
            digest.update(f"\0{path.name if len(files) > 1 else ''}\0".encode())
            with open(path, "rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.config.architecture}, {self.num_threads} threads)"


def _open_checkpoint(path: Path, threads: int, quantize: str) -> tuple[_C.Model, Tokenizer]:
    """Model and tokenizer of a directory. Raises as :meth:`Model.load`."""
    if (path / "adapter_config.json").exists():
        raise UnsupportedError(f"{path}: adapter_config.json: an adapter is not supported; merge "
                               "it into its model and save that")
    config = read_json(path / "config.json")
    shape = read_config(config, str(path / "config.json"))
    opened = CheckpointFiles.open(path)
    places = opened.places(shape)
    native = _C.Model.from_checkpoint(
        shape.native | {"name": path.resolve().name}, opened.files, places, shape.vector_offset,
        threads, quantize)
    tokenizer = Tokenizer.from_directory(
        path, vocab_size=shape.native["vocab_size"], config=config)
    return native, tokenizer
