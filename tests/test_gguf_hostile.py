"""What the GGUF reader refuses: no file can do more than raise ModelFileError."""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers_gguf import Gguf, Raw, Tensor, load, read_everything, small, string

from flarecore import _C
from flarecore.errors import ModelFileError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


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
