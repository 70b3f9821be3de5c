"""Writes small GGUF files, valid ones and hostile ones, without the gguf package.

Source of the layout: the GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flarecore import _C

# Value types: name -> (id, struct format of one number).
VALUE_TYPES = {
    "uint8": (0, "B"), "int8": (1, "b"), "uint16": (2, "H"), "int16": (3, "h"),
    "uint32": (4, "I"), "int32": (5, "i"), "float32": (6, "f"), "bool": (7, "?"),
    "uint64": (10, "Q"), "int64": (11, "q"), "float64": (12, "d"),
}  # fmt: skip
STRING, ARRAY = 8, 9

# Tensor types: name -> (id, values in a block, bytes of a block).
TENSOR_TYPES = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "BF16": (30, 1, 2),
}  # fmt: skip


@dataclass(frozen=True)
class Typed:
    """A metadata value with its type chosen: a number, or a list of numbers for an array."""

    type: str
    value: Any


@dataclass(frozen=True)
class Raw:
    """A metadata value as bytes, type id included: for what no honest writer makes."""

    data: bytes


@dataclass(frozen=True)
class Tensor:
    """A tensor; shape in GGUF order (row length first). None: what an honest writer would put."""

    name: str | bytes
    shape: Sequence[int]
    type: str | int = "F32"
    data: bytes | None = None
    offset: int | None = None
    num_dims: int | None = None


@dataclass
class Gguf:
    """A GGUF file to be; every field that a hostile file might bend can be bent."""

    metadata: Mapping[str | bytes, Any] | Sequence[tuple[str | bytes, Any]] = field(
        default_factory=dict
    )
    tensors: Sequence[Tensor] = ()
    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32  # used for the layout; put "general.alignment" into metadata to declare it
    num_tensors: int | None = None
    num_entries: int | None = None

    def to_bytes(self) -> bytes:
        items = self.metadata.items() if isinstance(self.metadata, Mapping) else self.metadata
        entries = [string(key) + value(v) for key, v in items]
        out = self.magic + struct.pack(
            "<IQQ",
            self.version,
            len(self.tensors) if self.num_tensors is None else self.num_tensors,
            len(entries) if self.num_entries is None else self.num_entries,
        )
        out += b"".join(entries)
        data = b""
        for tensor in self.tensors:
            data += bytes(-len(data) % self.alignment)
            out += _tensor_info(tensor, len(data))
            data += tensor_bytes(tensor)
        return out + bytes(-len(out) % self.alignment) + data if self.tensors else out

    def write(self, path: Path) -> Path:
        path.write_bytes(self.to_bytes())
        return path


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(v: Any) -> bytes:
    """Type id and value. Lists become arrays: of strings, or of int32 or float32."""
    if isinstance(v, Raw):
        return v.data
    if isinstance(v, (str, bytes)):
        return struct.pack("<I", STRING) + string(v)
    if isinstance(v, list) and v and isinstance(v[0], (str, bytes)):
        return struct.pack("<IIQ", ARRAY, STRING, len(v)) + b"".join(map(string, v))
    if isinstance(v, list):
        return value(Typed("float32" if any(isinstance(x, float) for x in v) else "int32", v))
    if isinstance(v, bool):
        return value(Typed("bool", v))
    if isinstance(v, (int, float)):
        return value(Typed("uint32" if isinstance(v, int) else "float32", v))
    assert isinstance(v, Typed), v
    type_id, code = VALUE_TYPES[v.type]
    if isinstance(v.value, list):
        head = struct.pack("<IIQ", ARRAY, type_id, len(v.value))
        return head + struct.pack(f"<{len(v.value)}{code}", *v.value)
    return struct.pack("<I" + code, type_id, v.value)


def tensor_bytes(tensor: Tensor) -> bytes:
    """The tensor's data: as given, or bytes that differ from one tensor to the next."""
    if tensor.data is not None:
        return tensor.data
    _, block_values, block_bytes = TENSOR_TYPES[str(tensor.type)]
    size = int(np.prod(list(tensor.shape), dtype=object)) // block_values * block_bytes
    return np.random.default_rng(len(tensor.name)).bytes(size)


def _tensor_info(tensor: Tensor, offset: int) -> bytes:
    type_id = tensor.type if isinstance(tensor.type, int) else TENSOR_TYPES[tensor.type][0]
    num_dims = len(tensor.shape) if tensor.num_dims is None else tensor.num_dims
    return (
        string(tensor.name)
        + struct.pack("<I", num_dims)
        + struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
        + struct.pack("<IQ", type_id, offset if tensor.offset is None else tensor.offset)
    )


# Extreme values of every type.
EXTREMES: dict[str, list[Any]] = {
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
