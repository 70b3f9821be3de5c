"""What must hold before any test module is imported, and an engine for those that need one."""

import os

import pytest

from flarecore.gpu.device import has_driver

# Triton decides at its first import whether kernels run in its interpreter, and transformers
# imports it too: without a GPU the choice is made here, before anything else can make it. A
# container may have the driver without nvidia-smi.
if not has_driver():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def engine():
    """A tiny engine of its own, whose books are right when the test is over."""
    from helpers import TinyLlama, open_engine  # after what is decided above

    with open_engine(TinyLlama(context_length=512)) as opened:
        yield opened
        opened.check_integrity()
