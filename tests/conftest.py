"""What must hold before any test module is imported."""

import os

from flarecore.gpu.device import has_driver

# Triton decides at its first import whether kernels run in its interpreter, and transformers
# imports it too: without a GPU the choice is made here, before anything else can make it. A
# container may have the driver without nvidia-smi.
if not has_driver():
    os.environ.setdefault("TRITON_INTERPRET", "1")
