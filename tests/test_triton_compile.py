"""Every kernel compiles for sm_80 and sm_90 without a device, and spills nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the Triton kernels take torch tensors")
triton = pytest.importorskip("triton", reason="the kernels are Triton kernels")

ROOT = Path(__file__).resolve().parent.parent


def test_kernels_compile_without_spills_and_as_the_table_says():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, "-m", "kernels.compile_table", "--check"],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("| sm_90 |") == result.stdout.count("| sm_80 |") >= 12


def test_the_table_has_every_kernel():
    sources = "".join(p.read_text() for p in (ROOT / "kernels").glob("*.py"))
    kernels = re.findall(r"@triton\.jit.*\ndef _(\w+)_kernel\(", sources)
    table = (ROOT / "kernels" / "COMPILED.md").read_text()
    missing = [k for k in kernels if f"| {k} |" not in table]
    assert len(kernels) >= 7 and not missing


@pytest.mark.skipif(not hasattr(triton.runtime.JITFunction, "_do_compile"),
                    reason="this Triton compiles elsewhere")
def test_batches_of_other_sizes_take_the_kernels_that_are_there():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.triton_variants"], cwd=ROOT,
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert len(found["later"]) == 24 and found["num_variants"] >= 15
    assert not {name: kernels for name, kernels in found["later"].items() if kernels}


def test_interpreted_kernels_are_refused():
    result = subprocess.run(
        [sys.executable, "-m", "kernels.compile_table", "--check"],
        cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 2
    assert "unset TRITON_INTERPRET" in result.stderr
