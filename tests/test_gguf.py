"""The GGUF reader: what it reads, and that no file can do more than raise ModelFileError."""

from __future__ import annotations

import os
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers_gguf import TENSOR_TYPES, VALUE_TYPES, Gguf, Raw, Tensor, Typed, string, tensor_bytes

from flarecore import _C
from flarecore.errors import ModelFileError
from flarecore.model_files import find_model

EXTREMES = {
    "uint8": [0, 255], "int8": [-128, 127], "uint16": [0, 65535], "int16": [-32768, 32767],
    "uint32": [0, 2**32 - 1], "int32": [-(2**31), 2**31 - 1], "uint64": [0, 2**64 - 1],
    "int64": [-(2**63), 2**63 - 1], "float32": [-1.5, 3.0], "float64": [0.1, -1e300],
    "bool": [False, True],
}  # fmt: skip


def small() -> Gguf:
    """A valid file with every kind of thing in it."""
    metadata: dict[str | bytes, Any] = {
        "general.architecture": "llama",
        "名前": "文 é \x00 end",
        "tokens": ["a", "", "ĠĠ", "长" * 20],
        "empty": Typed("uint8", []),
        "x.bytes": b"\xff\xfe broken",
        "general.alignment": 64,
    }
    for name, values in EXTREMES.items():
        metadata[f"one.{name}"] = Typed(name, values[1])
        metadata[f"many.{name}"] = Typed(name, values)
    tensors = [
        Tensor("w", (64, 3), "Q4_1"),
        Tensor("norm", (5,), "F32"),
        Tensor("four", (2, 3, 1, 2), "F16"),
        Tensor("k", (256, 2), "Q6_K"),
    ]
    return Gguf(metadata, tensors, alignment=64)


def load(gguf: Gguf | bytes, path: Path) -> Any:
    path.write_bytes(gguf if isinstance(gguf, bytes) else gguf.to_bytes())
    return _C.GgufFile(path)


def read_everything(file: Any) -> int:
    """Touches every value and every byte that the reader hands out."""
    total = sum(len(repr(item)) for item in file.metadata.items())
    return total + sum(int(t.data.sum()) + len(t.name) for t in file.tensors)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


# What it reads


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


# What it refuses

F32 = Tensor("t", (8,), "F32")
HUGE = 2**64 - 1


def raw_entry(type_id: int, payload: bytes) -> Gguf:
    return Gguf({"k": Raw(struct.pack("<I", type_id) + payload)})


def array_entry(element_type: int, count: int, payload: bytes = b"") -> Gguf:
    return raw_entry(9, struct.pack("<IQ", element_type, count) + payload)


HOSTILE: dict[str, tuple[Gguf | bytes, str]] = {
    "empty file": (b"", "empty"),
    "magic": (Gguf(magic=b"GGML"), 'starts with "GGML"'),
    "zip": (b"PK\x03\x04" + bytes(100), r'starts with "PK\\x03\\x04"'),
    "version 0": (Gguf(version=0), "version 0 is unknown"),
    "version 1": (Gguf(version=1), "version 1 is not supported"),
    "version 4": (Gguf(version=4), "version 4 is unknown"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "entry count": (Gguf(num_entries=HUGE), f"counts {HUGE} metadata entries"),
    "entry count, one too many": (Gguf({"k": 1}, num_entries=2), "counts 2 metadata entries"),
    "tensor count": (Gguf(tensors=[F32], num_tensors=HUGE), f"counts {HUGE} tensors"),
    "tensor count, near": (Gguf(tensors=[F32], num_tensors=3), "counts 3 tensors"),
    "no key": (Gguf({"": 1}), "metadata key at byte 24 has 0 bytes"),
    "long key": (Gguf({"k" * 65536: 1}), "65536 bytes; allowed are 1 to 65535"),
    "key length": (Gguf(num_entries=1).to_bytes() + struct.pack("<Q", HUGE) + b"k" * 50,
                   f"a metadata key needs {HUGE} bytes"),
    "same key": (Gguf([("k", 1), ("j", 2), ("k", 3)]), 'key "k" is there twice'),
    "string length": (raw_entry(8, struct.pack("<Q", HUGE - 3)), f"needs {HUGE - 3} bytes"),
    "value type": (raw_entry(13, bytes(8)), "unknown value type 13"),
    "huge value type": (raw_entry(2**32 - 1, bytes(8)), "unknown value type 4294967295"),
    "element type": (array_entry(99, 1, bytes(8)), "unknown value type 99"),
    "nested array": (array_entry(9, 1, struct.pack("<IQ", 4, 0)), "array of arrays"),
    "array count": (array_entry(4, HUGE), f"counts {HUGE} values"),
    "array count * 8 wraps to 8": (array_entry(10, 2**61 + 1, bytes(8)), "counts 2305843009213"),
    "string array count": (array_entry(8, 2**61, bytes(64)), "hold at most 8"),
    "string in array": (array_entry(8, 2, string("ok") + struct.pack("<Q", HUGE)), "cut off"),
    "bool": (raw_entry(7, b"\x02"), "neither 0 nor 1"),
    "bool in array": (array_entry(7, 3, b"\x00\x01\x80"), "neither 0 nor 1"),
    "alignment 0": (Gguf({"general.alignment": 0}), "power of two"),
    "alignment 12": (Gguf({"general.alignment": 12}), "power of two"),
    "alignment 4": (Gguf({"general.alignment": 4}), "at least 8"),
    "alignment type": (Gguf({"general.alignment": "32"}), "must be a uint32"),
    "alignment array": (Gguf({"general.alignment": [32]}), "must be a uint32"),
    "alignment beyond the file": (
        Gguf({"general.alignment": 2**31}, [F32]), "data section has 0"),
    "same tensor": (Gguf(tensors=[F32, F32]), 'tensor name "t" is there twice'),
    "no dimensions": (Gguf(tensors=[Tensor("t", (), num_dims=0, data=b"")]), "has 0 dimensions"),
    "5 dimensions": (Gguf(tensors=[Tensor("t", (1,) * 5)]), "has 5 dimensions"),
    "2**32-1 dimensions": (
        Gguf(tensors=[Tensor("t", (1,), num_dims=2**32 - 1)]), "has 4294967295 dimensions"),
    "dimension 0": (Gguf(tensors=[Tensor("t", (8, 0), data=b"")]), "dimension 1 is 0"),
    "product wraps": (
        Gguf(tensors=[Tensor("t", (2**32, 2**32), data=b"")]), r"product below 2\^63"),
    "product wraps to 8": (
        Gguf(tensors=[Tensor("t", (8, 2**61 + 1), data=bytes(32))]), r"product below 2\^63"),
    "dimension 2**63": (Gguf(tensors=[Tensor("t", (2**63,), data=b"")]), r"product below 2\^63"),
    "byte size wraps": (Gguf(tensors=[Tensor("t", (2**62,), data=b"")]), r"2\^63 bytes or more"),
    "row of a part of a block": (
        Gguf(tensors=[Tensor("t", (48, 2), "Q4_1", data=bytes(60))]), "no multiple of the 32"),
    "row of a part of a k-block": (
        Gguf(tensors=[Tensor("t", (128, 2), "Q6_K", data=bytes(210))]), "no multiple of the 256"),
    "offset misaligned": (Gguf(tensors=[Tensor("t", (8,), offset=8)]), "no multiple of the align"),
    "offset beyond": (Gguf(tensors=[Tensor("t", (8,), offset=64)]), "at offset 64"),
    "offset + size wraps": (
        Gguf(tensors=[Tensor("t", (8,), offset=2**64 - 32)]), "18446744073709551584"),
    "one byte short": (Gguf(tensors=[F32]).to_bytes()[:-1], "data section has 31"),
    "overlap": (
        Gguf(tensors=[Tensor("a", (16,)), Tensor("b", (16,), data=bytes(64), offset=32)]),
        '"a" and "b" overlap'),
    "overlap at one start": (
        Gguf(tensors=[Tensor("a", (16,)), Tensor("b", (8,), data=b"", offset=0)]), "overlap"),
    "known type": (Gguf(tensors=[Tensor("t", (256,), 10, bytes(84))]), r"type 10 \(Q2_K\)"),
    "integer type": (Gguf(tensors=[Tensor("t", (8,), 26, bytes(32))]), r"type 26 \(I32\)"),
    "unknown type": (Gguf(tensors=[Tensor("t", (8,), 777, bytes(32))]), r"type 777 \(unknown\)"),
    "type 2**32-1": (Gguf(tensors=[Tensor("t", (8,), HUGE >> 32, bytes(32))]), "type 4294967295"),
    "names that are no text": (
        Gguf(tensors=[Tensor(b"\xff\n\xc3\x28", (8,), 777, bytes(32))]),
        r'"\\xff\\x0a\\xc3\(" has the type'),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_refuses(path: Path, name: str) -> None:
    gguf, message = HOSTILE[name]
    with pytest.raises(ModelFileError, match=message) as caught:
        load(gguf, path)
    assert str(path) in str(caught.value)


def test_every_truncation_is_refused(path: Path) -> None:
    whole = small().to_bytes()
    load(whole, path)
    for size in range(len(whole)):
        with pytest.raises(ModelFileError):
            load(whole[:size], path)


@pytest.mark.parametrize("mutate", ["bit", "byte", "word", "cut and shift"])
def test_mutations_never_crash(path: Path, mutate: str) -> None:
    """Whatever is flipped: the file parses, and all of it can be read, or ModelFileError."""
    rng = np.random.default_rng(7)
    whole = small().to_bytes()
    header = whole.index(b"four") + 60  # where the tensor data starts, about: mutations go before
    words = [0, 1, 33, 2**31, 2**63, HUGE]
    changes: dict[str, Callable[[bytearray, int], None]] = {
        "bit": lambda data, at: data.__setitem__(at, data[at] ^ (1 << int(rng.integers(8)))),
        "byte": lambda data, at: data.__setitem__(at, int(rng.integers(256))),
        "word": lambda data, at: data.__setitem__(
            slice(at, at + 8), struct.pack("<Q", words[int(rng.integers(len(words)))])
        ),
        "cut and shift": lambda data, at: data.__delitem__(slice(at, at + int(rng.integers(1, 9)))),
    }
    outcomes: Counter[str] = Counter()
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            changes[mutate](data, int(rng.integers(header)))
        try:
            read_everything(load(bytes(data), path))
            outcomes["read"] += 1
        except ModelFileError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 100
    assert outcomes["read"] > 100 or mutate in ("word", "cut and shift")


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe", "NUL"])
def test_refuses_what_is_no_file(tmp_path: Path, kind: str) -> None:
    target = str(tmp_path / "model.gguf")
    if kind == "directory":
        os.mkdir(target)
    elif kind == "pipe":
        os.mkfifo(target)  # must not wait for a writer
    elif kind == "NUL":
        target += "\0.gguf"
    with pytest.raises(ModelFileError, match=r"No such file|not a regular file|NUL character"):
        _C.GgufFile(target)


def test_tables_of_the_helper_are_complete() -> None:
    """A type that the reader learns must be known here too, or these tests would miss it."""
    assert set(EXTREMES) == set(VALUE_TYPES)
    assert len(TENSOR_TYPES) == 11


@pytest.mark.parametrize("name", TENSOR_TYPES)
def test_every_tensor_type(path: Path, name: str) -> None:
    _, block_values, block_bytes = TENSOR_TYPES[name]
    (tensor,) = load(Gguf(tensors=[Tensor("t", (block_values * 3, 5), name)]), path).tensors
    assert (tensor.type, tensor.size_bytes) == (name, 15 * block_bytes)
