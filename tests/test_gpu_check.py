"""The script that checks and times a GPU, at tiny sizes in the interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flarecore.bench.gpu.report import Report, Settings

pytest.importorskip("torch", reason="the GPU engine runs on torch tensors")
pytest.importorskip("triton", reason="the kernels are Triton kernels")

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "gpu_check.py"


def test_the_script_runs_without_a_gpu(tmp_path):
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", "--quick", "--json", str(out)],
        capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(out.read_text())
    rows = written["rows"]
    assert len(rows) > 30 and all(row["is_ok"] is not False for row in rows)
    names = {row["name"] for row in rows}
    assert {"speculation on and off: bits", "alone and in a batch: bits", "FLARE loop",
            "deterministic prefill: bits", "RMSNorm + residual", "decode step, 1 sequence",
            "rollback", "FLARE loop, a sentence", "against the dense twin",
            "product with Q4_1: values, bits", "Q4_1, 1 rows"} <= names
    assert {"tiny q4", "tiny q8"} <= {row["section"] for row in rows}
    assert f"{len(rows)} rows, 0 failed" in done.stdout.splitlines()[-1]


def test_one_failure_does_not_lose_the_other_rows():
    lines = []
    report = Report(Settings("interpreter", True), show=lines.append)
    report.check("a", "breaks", lambda: 1 / 0)
    report.check("a", "works", lambda: "fine")
    report.measure("a", "breaks too", "us", lambda: [][0])
    report.measure("a", "works too", "us", lambda: 3.0, at_most=1.0)
    assert [row.is_ok for row in report.rows] == [False, True, False, None]
    assert report.num_failed == 2 and "ZeroDivisionError" in lines[0]


def test_aims_count_on_a_device_only():
    report = Report(Settings("cuda", False), show=lambda line: None)
    report.measure("a", "slow", "us", lambda: 3.0, at_most=1.0)
    report.measure("a", "share", "%", lambda: 80.0, at_least=78.0)
    assert [row.is_ok for row in report.rows] == [False, True]
