"""Where the Triton tests run: on a CUDA device if there is one, in Triton's interpreter otherwise.

The tests' bodies are the same on both. They take triton from here, so that it is imported after the
choice is made.
"""

from __future__ import annotations

import inspect
import os
import threading

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


def _look_at_builtins_only(interpreter):
    """The interpreter searches Triton's language for builtins at every call of a device function;
    what it finds does not change.
    """
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


def _patch_once_a_launch(interpreter):
    """The interpreter puts its functions into Triton's language at every call of a device function,
    and takes them out at the end of the launch; once a launch is enough. Launches of two threads
    come one after the other, or one would take out what the other needs.
    """
    patch, call = interpreter._patch_lang, interpreter.GridExecutor.__call__
    launching, patched = threading.RLock(), []

    def patch_lang(fn):
        modules = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        if all(module in patched for module in modules):
            return interpreter._LangPatchScope()
        patched.extend(modules)
        return patch(fn)

    def launch(self, *args, **kwargs):
        with launching:
            try:
                return call(self, *args, **kwargs)
            finally:
                patched.clear()

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_lang, launch


def _remember_dtypes(interpreter):
    """The interpreter makes a table of all types at every look at one."""
    get, known = interpreter._get_np_dtype, {}

    def get_np_dtype(dtype):
        scalar = dtype.scalar
        if scalar.name not in known:
            known[scalar.name] = get(scalar)
        return known[scalar.name]

    interpreter._get_np_dtype = get_np_dtype


if INTERPRETED:
    from triton.runtime import interpreter as _interpreter

    _look_at_builtins_only(_interpreter)
    _patch_once_a_launch(_interpreter)
    _remember_dtypes(_interpreter)


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
