"""Where the Triton tests run: on a CUDA device if there is one, in Triton's interpreter otherwise.

The tests' bodies are the same on both. They take triton from here, so that it is imported after the
choice is made.
"""

from __future__ import annotations

import inspect
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the Triton kernels take torch tensors")

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

triton = pytest.importorskip("triton", reason="the kernels are Triton kernels")
tl = pytest.importorskip("triton.language", reason="the kernels are Triton kernels")

# Triton's own functions show what it was told when it was first imported.
INTERPRETED = not isinstance(tl.philox, triton.runtime.JITFunction)
if not INTERPRETED and not torch.cuda.is_available():
    raise RuntimeError(
        "triton was imported before TRITON_INTERPRET was set and there is no CUDA device; set "
        "TRITON_INTERPRET=1 for the whole test run"
    )
DEVICE = "cpu" if INTERPRETED else "cuda"


def _look_at_builtins_only():
    """The interpreter searches Triton's language for builtins at every call of a device function;
    what it finds does not change.
    """
    from triton.runtime import interpreter

    names = {}

    def patch_builtin(package, *args):
        if package not in names:  # nothing of it is patched yet
            members = inspect.getmembers(package)
            names[package] = [name for name, member in members if tl.core.is_builtin(member)]
        for name in names[package]:
            member = getattr(package, name)
            if tl.core.is_builtin(member):
                interpreter._patch_attr(package, name, member, *args)

    interpreter._patch_builtin = patch_builtin


if INTERPRETED:
    _look_at_builtins_only()


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
