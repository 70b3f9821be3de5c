"""What must hold before any test module is imported."""

import os
import shutil

# Triton decides at its first import whether kernels run in its interpreter, and transformers
# imports it too: without a GPU the choice is made here, before anything else can make it.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")
