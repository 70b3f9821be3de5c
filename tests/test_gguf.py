"""What the GGUF reader reads."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from helpers_gguf import (
    EXTREMES,
    TENSOR_TYPES,
    VALUE_TYPES,
    Gguf,
    Tensor,
    load,
    read_everything,
    small,
    tensor_bytes,
)

from flarecore import _C
from flarecore.model_files import find_model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("version", [2, 3])
def test_reads_metadata_and_tensors(path: Path, version: int) -> None:
    gguf = small()
    gguf.version = version
    file = load(gguf, path)
    assert (file.version, file.alignment, file.path) == (version, 64, str(path))
    assert file.size_bytes == path.stat().st_size
    metadata = file.metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["名前"] == "文 é \x00 end"
    assert metadata["tokens"] == ["a", "", "ĠĠ", "长" * 20]
    assert metadata["x.bytes"].encode("utf-8", "surrogateescape") == b"\xff\xfe broken"
    assert metadata["empty"].shape == (0,)
    for name, values in EXTREMES.items():
        assert metadata[f"one.{name}"] == values[1]
        assert type(metadata[f"one.{name}"]) is type(values[1])
        assert metadata[f"many.{name}"].dtype == np.dtype(name)
        assert metadata[f"many.{name}"].tolist() == values
    for tensor, spec in zip(file.tensors, gguf.tensors, strict=True):
        assert (tensor.name, tensor.type, tensor.shape) == (spec.name, spec.type, spec.shape)
        assert tensor.data.tobytes() == tensor_bytes(spec)
        assert tensor.size_bytes == len(tensor_bytes(spec))


def test_metadata_is_a_mapping(path: Path) -> None:
    gguf = small()
    metadata = load(gguf, path).metadata
    assert isinstance(metadata, Mapping)
    assert list(metadata) == list(metadata.keys()) == list(gguf.metadata)
    assert len(metadata) == len(gguf.metadata) == len(metadata.values()) == len(metadata.items())
    assert "tokens" in metadata and "token" not in metadata and 7 not in metadata
    assert metadata.get("nope") is None and metadata.get("nope", 3) == 3
    with pytest.raises(KeyError, match="nope"):
        metadata["nope"]


def test_tensor_data_is_read_only_and_outlives_the_file(path: Path) -> None:
    data = load(small(), path).tensors[0].data
    expected = tensor_bytes(small().tensors[0])
    path.unlink()
    assert data.tobytes() == expected
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        data.setflags(write=True)


def test_paths(path: Path, tmp_path: Path) -> None:
    small().write(path)
    for name in (path, str(path), os.fsencode(path)):
        assert len(_C.GgufFile(name).tensors) == 4
    odd = tmp_path / "模型 \udcff.gguf"  # a name that is not UTF-8
    small().write(odd)
    assert _C.GgufFile(odd).path == str(odd)


def test_agrees_with_the_gguf_package(path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(7)
    writer.add_array("tokenizer.ggml.tokens", ["a", "Ġb", "文"])
    writer.add_float32("llama.rope.freq_base", 1e5)
    weights = np.arange(96, dtype=np.float32).reshape(3, 32)
    writer.add_tensor("w", weights)
    writer.add_tensor("q", gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q8_0),
                      raw_dtype=gguf.GGMLQuantizationType.Q8_0)  # fmt: skip
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours, theirs = _C.GgufFile(path), gguf.GGUFReader(path)
    assert ours.metadata["llama.block_count"] == 7
    assert ours.metadata["tokenizer.ggml.tokens"] == ["a", "Ġb", "文"]
    assert ours.metadata["llama.rope.freq_base"] == 1e5
    for mine, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert (mine.name, mine.shape) == (other.name, tuple(other.shape))
        assert mine.type == other.tensor_type.name
        assert mine.data.tobytes() == other.data.tobytes()
    assert np.array_equal(ours.tensors[0].data.view(np.float32).reshape(3, 32), weights)
    # And the other way: the helper of these tests writes what the package reads.
    small().write(path)
    other = gguf.GGUFReader(path)
    assert other.fields["tokens"].contents() == ["a", "", "ĠĠ", "长" * 20]
    assert other.fields["many.int16"].contents() == EXTREMES["int16"]
    assert [t.data.tobytes() for t in other.tensors] == list(map(tensor_bytes, small().tensors))


def test_reads_the_real_model() -> None:
    file = _C.GgufFile(find_model("smollm2-135m"))
    assert Counter(t.type for t in file.tensors) == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert len(file.metadata["tokenizer.ggml.merges"]) == 48900
    assert {t.name: t.shape for t in file.tensors}["token_embd.weight"] == (576, 49152)


def test_large_vocabulary(path: Path) -> None:
    tokens = [f"token{i}" for i in range(262_144)]
    metadata = load(Gguf({"tokens": tokens, "after": 5}), path).metadata
    assert metadata["tokens"] == tokens
    assert metadata["after"] == 5


def test_two_tensors_may_share_one_range(path: Path) -> None:
    data = bytes(range(64))
    tied = [Tensor("a", (16,), data=data), Tensor("b", (4, 4), data=b"", offset=0)]
    first, second = load(Gguf(tensors=tied), path).tensors
    assert first.data.tobytes() == second.data.tobytes() == data


def test_many_threads_read_one_file(path: Path) -> None:
    file = load(small(), path)
    expected = read_everything(file)
    seen: list[int] = []
    threads = [
        threading.Thread(target=lambda: seen.extend(read_everything(file) for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [expected] * 200


def test_tables_of_the_helper_are_complete() -> None:
    """A type that the reader learns must be known here too, or these tests would miss it."""
    assert set(EXTREMES) == set(VALUE_TYPES)
    assert len(TENSOR_TYPES) == 11


@pytest.mark.parametrize("name", TENSOR_TYPES)
def test_every_tensor_type(path: Path, name: str) -> None:
    _, block_values, block_bytes = TENSOR_TYPES[name]
    (tensor,) = load(Gguf(tensors=[Tensor("t", (block_values * 3, 5), name)]), path).tensors
    assert (tensor.type, tensor.size_bytes) == (name, 15 * block_bytes)
