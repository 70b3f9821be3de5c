"""``flarecore._cuda`` over CPU tensors: its emulation, with a count of what was called."""

from __future__ import annotations

import collections
from typing import Any

from flarecore import _C
from flarecore.gpu import device_ops, fused_sampler


class EmulatedModule:
    """The calls of the module, as the engine makes them with a device."""

    def __init__(self) -> None:
        self.calls: collections.Counter[str] = collections.Counter()

    def __getattr__(self, name: str) -> Any:
        body = getattr(_C.testing, f"emulate_cuda_{name}")

        def call(**arguments: Any) -> Any:
            self.calls[name] += 1
            return body(**arguments)

        return call


def emulate_module(monkeypatch: Any) -> EmulatedModule:
    """Engines that are made from now on find this module."""
    module = EmulatedModule()
    for user in (device_ops, fused_sampler):
        monkeypatch.setattr(user, "load_cuda", lambda device: module)
    return module
