"""Whether a model can run on a GPU here, and how the Triton kernels are found."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from flarecore.errors import UnsupportedError

__all__ = ["GPU_DEVICES", "DeviceReport", "has_driver", "load_kernels", "open_device",
           "probe_device"]

# "interpreter": the GPU engine on CPU tensors, its kernels in Triton's interpreter. Slow; it is
# what the engine is tested with where there is no GPU.
GPU_DEVICES = ("cuda", "interpreter")

_KERNELS = "flarecore._kernels"
_INSTALL = "pip install 'flarecore[gpu]'"


@dataclass(frozen=True)
class DeviceReport:
    """Whether ``device="cuda"`` works here: the device's name, or what is missing."""

    name: str | None
    reason: str | None


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def has_driver() -> bool:
    """Whether an NVIDIA driver shows itself; imports nothing."""
    return os.path.exists("/dev/nvidiactl") or shutil.which("nvidia-smi") is not None


def probe_device() -> DeviceReport:
    """Looks for torch, triton and a CUDA device. Imports torch."""
    for module in ("torch", "triton"):
        if not _has(module):
            return DeviceReport(None, f"{module} is not installed ({_INSTALL})")
    import torch

    if not torch.cuda.is_available():
        build = torch.version.cuda
        reason = (f"no CUDA device is visible (torch {torch.__version__})" if build else
                  f"torch {torch.__version__} is built without CUDA; install a CUDA build of it")
        return DeviceReport(None, reason)
    major, minor = torch.cuda.get_device_capability()
    name = f"{torch.cuda.get_device_name()} (sm_{major}{minor})"
    if major < 8:
        return DeviceReport(None, f"{name} is too old: the kernels need sm_80 or later")
    return DeviceReport(name, None)


def open_device(device: str) -> Any:
    """The torch device behind ``"cuda"`` or ``"interpreter"``.

    Raises
    ------
    UnsupportedError
        torch, triton or the GPU is missing; the message says what to install.
    """
    if device == "cuda":
        report = probe_device()
        if report.reason is not None:
            raise UnsupportedError(f'device="cuda" is not available: {report.reason}; '
                                   'device="cpu" works everywhere')
    elif not (_has("torch") and _has("triton")):
        raise UnsupportedError(
            f'device="interpreter" needs torch and triton: {_INSTALL}')
    elif "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    kernels = load_kernels()
    if (device == "interpreter") != kernels.checks.INTERPRETED:
        raise UnsupportedError(
            f"device={device!r} is not available: triton was first imported "
            f"{'with' if kernels.checks.INTERPRETED else 'without'} TRITON_INTERPRET=1 in this "
            "process; use one of the two devices in a process")
    import torch

    if device == "interpreter":
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


@functools.cache
def load_kernels() -> ModuleType:
    """The package of Triton kernels, with its modules as attributes.

    An installed flarecore carries it as ``flarecore._kernels``; a source checkout has it beside the
    package, where it is loaded under the same name.
    """
    package = sys.modules.get(_KERNELS)
    if package is None:
        package = _load_package()
    for name in ("attention", "checks", "norm", "quantized", "rope", "sampling", "swiglu"):
        importlib.import_module(f"{_KERNELS}.{name}")
    return package


def _load_package() -> ModuleType:
    if _has(_KERNELS):
        return importlib.import_module(_KERNELS)
    folder = Path(__file__).resolve().parents[2] / "kernels"
    spec = importlib.util.spec_from_file_location(
        _KERNELS, folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None or not (folder / "__init__.py").is_file():
        raise UnsupportedError(
            f"the Triton kernels are not part of this installation (looked for {_KERNELS} and "
            f"{folder}); install flarecore from a release or a checkout")
    package = importlib.util.module_from_spec(spec)
    sys.modules[_KERNELS] = package
    spec.loader.exec_module(package)
    return package
