"""Where the bodies of the CUDA kernels run in a test: in the emulation, or on a device.

Both take the same calls with addresses. What differs is whose memory they are of.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flarecore import _C

FLOAT_COLUMNS = {"temperature": 0.0, "top_p": 1.0, "min_p": 0.0, "beta": 0.0, "theta": 0.0}
INT_COLUMNS = {"seed": 0, "stream": 0, "pass_index": 0, "top_k": 0, "halt_flags": 1 | 128 | 256}
BELOW_BETA, BELOW_THETA, INVALID, FULL = 32, 64, 128, 256


class Emulation:
    """The kernels' bodies on the CPU, over numpy arrays."""

    def put(self, values: Any) -> np.ndarray:
        return np.array(values, order="C")

    def address(self, memory: np.ndarray) -> int:
        return memory.ctypes.data

    def get(self, memory: np.ndarray) -> np.ndarray:
        return memory

    def call(self, name: str, **arguments: Any) -> Any:
        if name != "sample_workspace_size":
            arguments.setdefault("stream", 0)
        return getattr(_C.testing, f"emulate_cuda_{name}")(**arguments)


class Device:
    """The kernels themselves, over torch tensors on a device."""

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch", reason="device memory is handed in by torch")
        self.module = pytest.importorskip("flarecore._cuda", reason="_cuda is not built here")
        if self.module.device_count() == 0:
            pytest.skip(self.module.device_status())
        if not self.torch.cuda.is_available():
            pytest.skip("torch has no CUDA here to hand in memory with")

    def put(self, values: Any) -> Any:
        array = np.array(values, order="C")
        return self.torch.from_numpy(array.view(np.uint8).reshape(-1)).cuda(), array

    def address(self, memory: Any) -> int:
        return int(memory[0].data_ptr())

    def get(self, memory: Any) -> np.ndarray:
        return memory[0].cpu().numpy().view(memory[1].dtype).reshape(memory[1].shape)

    def call(self, name: str, **arguments: Any) -> Any:
        arguments.pop("block_order", None)
        if name != "sample_workspace_size":
            arguments.setdefault("stream", self.torch.cuda.current_stream().cuda_stream)
        return getattr(self.module, name)(**arguments)


BACKENDS = [Emulation, pytest.param(Device, marks=pytest.mark.gpu)]


def to_dtype(values: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """float32 values -> what lies in memory, and its exact values as float32."""
    if dtype == "float32":
        return values, values
    if dtype == "float16":
        half = values.astype(np.float16)
        return half.view(np.uint16), half.astype(np.float32)
    cut = (values.view(np.uint32) >> 16).astype(np.uint16)
    return cut, (cut.astype(np.uint32) << 16).view(np.float32)


class Rows:
    """Rows of logits with the sampler's state beside them.

    Parameters
    ----------
    logits
        (num_rows, vocab_size) as they lie in memory: float32, or uint16 for the other types.
    settings
        Of each row: names of FLOAT_COLUMNS and INT_COLUMNS.
    """

    def __init__(self, backend: Any, logits: np.ndarray, settings: list[dict[str, Any]], *,
                 dtype: str = "float32", positions: list[int] | None = None, capacity: int = 4,
                 pad: int = 0, token_flags: np.ndarray | None = None,
                 seen: np.ndarray | None = None, penalties: list[float] | None = None,
                 bias: np.ndarray | None = None, choice: np.ndarray | None = None,
                 candidates: int = 32768) -> None:  # fmt: skip
        self.backend = backend
        rows, vocab = logits.shape
        floats = [[s.get(k, v) for k, v in FLOAT_COLUMNS.items()] for s in settings]
        ints = [[s.get(k, v) for k, v in INT_COLUMNS.items()] for s in settings]
        size = backend.call("sample_workspace_size", max_rows=rows, vocab_size=vocab,
                            candidate_capacity=candidates)  # fmt: skip
        self.memory = {
            "logits": backend.put(np.pad(logits, ((0, 0), (0, pad)))),
            "token_flags": backend.put(np.zeros(vocab, np.uint8) if token_flags is None
                                       else token_flags),
            "floats": backend.put(np.array(floats, np.float32)),
            "ints": backend.put(np.array(ints, np.uint64).view(np.int64)),
            "positions": backend.put(np.array(positions or [5] * rows, np.int32)),
            "tokens": backend.put(np.zeros(rows, np.int32)),
            "flags": backend.put(np.zeros(rows, np.int32)),
            "num_sampled": backend.put(np.zeros(rows, np.int32)),
            "min_prob": backend.put(np.ones(rows, np.float32)),
            "history_tokens": backend.put(np.full((rows, capacity), -1, np.int32)),
            "history_probs": backend.put(np.full((rows, capacity), -1, np.float32)),
            "history_flags": backend.put(np.zeros((rows, capacity), np.uint8)),
            "workspace": backend.put(np.zeros(size, np.uint8)),
        }  # fmt: skip
        for name, value in (("seen", seen), ("bias", bias), ("choice_logits", choice)):
            if value is not None:
                self.memory[name] = backend.put(value)
        if penalties is not None:
            self.memory["penalties"] = backend.put(np.array(penalties, np.float32))
        self.sizes = {
            "dtype": dtype, "num_rows": rows, "vocab_size": vocab, "logits_stride": vocab + pad,
            "history_capacity": capacity, "workspace_bytes": size, "candidate_capacity": candidates,
        }  # fmt: skip
        if bias is not None:
            self.sizes["bias_stride"] = vocab if len(bias) > 1 else 0
        if choice is not None:
            self.sizes["choice_stride"] = vocab

    def arguments(self) -> dict[str, Any]:
        addresses = {name: self.backend.address(m) for name, m in self.memory.items()}
        return {**addresses, **self.sizes}

    def step(self, **options: Any) -> Rows:
        """One launch (two with filters)."""
        self.backend.call("sample", **self.arguments(), **options)
        return self

    def __getitem__(self, name: str) -> np.ndarray:
        return self.backend.get(self.memory[name])

    @property
    def probs(self) -> np.ndarray:
        """(num_rows) confidences of the first step."""
        return self["history_probs"][:, 0]


def bits_of_seen(vocab: int, ids: list[int]) -> np.ndarray:
    """(ceil(vocab / 32)) uint32 with the bits of `ids` set."""
    words = np.zeros(-(-vocab // 32), np.uint32)
    for i in ids:
        words[i // 32] |= np.uint32(1 << (i % 32))
    return words
