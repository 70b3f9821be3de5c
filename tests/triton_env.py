"""Where the Triton tests run: on a CUDA device if there is one, in Triton's interpreter otherwise.

Import this before anything that imports triton. The tests' bodies are the same on both.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the Triton kernels take torch tensors")

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

pytest.importorskip("triton", reason="the kernels are Triton kernels")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def device_tensor(values, dtype=None):
    """numpy array or nested list -> tensor on the test device."""
    tensor = torch.as_tensor(np.asarray(values), device=DEVICE)
    return tensor if dtype is None else tensor.to(dtype)


def float64(tensor):
    """Tensor -> numpy float64, exactly."""
    return tensor.detach().to("cpu", torch.float64).numpy()


def bits(tensor):
    """Tensor -> its bytes, for comparisons bit for bit."""
    return tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes()


def device_only(*values):
    """Parameters that take minutes in the interpreter: run with a CUDA device only."""
    skip = pytest.mark.skipif(DEVICE == "cpu", reason="too slow in the Triton interpreter")
    return pytest.param(*values, marks=[pytest.mark.gpu, skip])
