"""Header and tensors of a GGUF file in plain Python, independent of the native reader.

Layout: the GGUF specification (ggml, docs/gguf.md). The ``gguf`` package reads the header too, but
takes eleven seconds for a vocabulary of 262,144 tokens; it only dequantises here.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flarecore.errors import ModelFileError, UnsupportedError

__all__ = ["GgufContents", "read_gguf"]

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_STRING, _ARRAY = 8, 9


class GgufContents(NamedTuple):
    """What a GGUF file holds.

    Attributes
    ----------
    metadata
        Numbers, bools and strings; None for arrays.
    tensors
        GGUF name -> float32 array, exactly the values of the file; matrices as (outputs, inputs).
    quantized
        Names of the tensors that the file holds in a quantised type.
    """

    metadata: dict[str, Any]
    tensors: dict[str, npt.NDArray[np.float32]]
    quantized: frozenset[str]


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.position)
        self.position += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        size = self.number("Q")
        self.position += size
        return self.data[self.position - size : self.position].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """A number, bool or str; None for an array, which is passed over."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(_NUMBERS[kind])
        item, count = self.number("I"), self.number("Q")
        if item in _NUMBERS:
            self.position += count * struct.calcsize("<" + _NUMBERS[item])
        else:
            for _ in range(count):
                self.value(item)
        return None


def read_gguf(path: str | Path) -> GgufContents:
    """Read and dequantise a whole file.

    Parameters
    ----------
    path
        A GGUF file, version 2 or 3.

    Raises
    ------
    ModelFileError
        If the file does not begin like a GGUF file. Nothing else is checked.
    UnsupportedError
        If the ``gguf`` package is not installed.
    """
    try:
        import gguf
    except ImportError as error:
        raise UnsupportedError(
            "the reference reader needs the 'gguf' package: pip install flarecore[dev]"
        ) from error
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    cursor = _Cursor(data)
    if data[:4] != b"GGUF" or struct.unpack_from("<I", data, 4)[0] not in (2, 3):
        raise ModelFileError(f"{path} is not a GGUF file of version 2 or 3")
    cursor.position = 8
    num_tensors, num_entries = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.number("I"))
    infos = []
    for _ in range(num_tensors):
        name = cursor.string()
        sizes = [cursor.number("Q") for _ in range(cursor.number("I"))]
        infos.append((name, sizes, cursor.number("I"), cursor.number("Q")))
    alignment = metadata.get("general.alignment", 32)
    begin = -(-cursor.position // alignment) * alignment
    tensors, quantized = {}, set()
    for name, sizes, type_id, offset in infos:
        kind = gguf.GGMLQuantizationType(type_id)
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        size_bytes = int(np.prod(sizes)) // block_values * block_bytes
        raw = np.frombuffer(data, np.uint8, size_bytes, begin + offset)
        rows = raw.reshape(*sizes[:0:-1], sizes[0] // block_values * block_bytes)
        values = gguf.quants.dequantize(rows, kind)
        tensors[name] = np.array(values, dtype=np.float32).reshape(sizes[::-1])
        if kind.name not in ("F32", "F16", "BF16"):
            quantized.add(name)
    return GgufContents(metadata, tensors, frozenset(quantized))
