"""The script that checks and times a GPU, at tiny sizes in the interpreter."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flarecore.bench.gpu import main
from flarecore.bench.gpu.report import Report, Settings

torch = pytest.importorskip("torch", reason="the GPU engine runs on torch tensors")
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
            "product with Q4_1: values, bits", "Q4_1, 1 rows",
            "vendor products: rows, bits"} <= names
    assert {"tiny q4", "tiny q8"} <= {row["section"] for row in rows}
    assert f"{len(rows)} rows, 0 failed" in done.stdout.splitlines()[-1]


def test_a_product_whose_rows_depend_on_each_other_is_found(monkeypatch):
    """Or one that leaves inputs out, as vendors' splits have done."""
    from flarecore.bench.gpu import vendor_checks  # imports torch

    settings = Settings("interpreter", False)
    assert "5 matrices" in vendor_checks._check_all(settings)
    for broken, message in (
        (lambda x, w: x @ w + 1e-6 * x.sum(), "depend on the rest"),
        (lambda x, w: x[:, :24] @ w[:24], "off by"),
    ):
        monkeypatch.setattr(torch, "mm", lambda x, w, out, f=broken: out.copy_(f(x, w)))
        with pytest.raises(AssertionError, match=message):
            vendor_checks._check_all(settings)


def test_one_failure_does_not_lose_the_other_rows():
    lines = []
    report = Report(Settings("interpreter", True), show=lines.append)
    report.check("a", "breaks", lambda: 1 / 0)
    report.check("a", "works", lambda: "fine")
    report.measure("a", "breaks too", "us", lambda: [][0])
    report.measure("a", "works too", "us", lambda: 3.0, at_most=1.0)
    assert [row.is_ok for row in report.rows] == [False, True, False, None]
    assert report.num_failed == 2 and "ZeroDivisionError" in lines[0]


def fake_tool(path, script, monkeypatch):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(main.shutil, "which", lambda name: str(path))


def has_ended(process_id: int) -> bool:
    try:
        status = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return True
    return status.rsplit(")")[-1].split()[0] == "Z"


@pytest.mark.skipif(os.name != "posix", reason="the tool is a shell script")
def test_a_sanitizer_that_takes_too_long_leaves_no_process(tmp_path, monkeypatch):
    """Nor what it has started itself, which would be timed along with everything behind it."""
    monkeypatch.setattr(main, "_SANITIZER_SECONDS", 1)
    fake_tool(tmp_path / "tool", f"sleep 60 &\necho $! > {tmp_path}/child\nwait", monkeypatch)
    assert "more than 1 s" in main._sanitize(Settings("cuda", True))
    child = int((tmp_path / "child").read_text())
    for _ in range(1000):  # it has been killed; the system may need a moment to end it
        if has_ended(child):
            break
        time.sleep(0.01)
    assert has_ended(child)


@pytest.mark.skipif(os.name != "posix", reason="the tool is a shell script")
def test_what_a_sanitizer_finds_is_a_failure(tmp_path, monkeypatch):
    settings = Settings("cuda", True)
    fake_tool(tmp_path / "tool", "echo ========= ERROR SUMMARY: 2 errors\nexit 9", monkeypatch)
    with pytest.raises(AssertionError, match="2 errors"):
        main._sanitize(settings)
    fake_tool(tmp_path / "tool", "echo no such thing\nexit 3", monkeypatch)
    assert main._sanitize(settings) == "does not work here: no such thing"
    fake_tool(tmp_path / "tool", "env | grep -q PYTORCH_NO_CUDA_MEMORY_CACHING=1", monkeypatch)
    assert main._sanitize(settings) == "memcheck found nothing"


def test_aims_count_on_a_device_only():
    report = Report(Settings("cuda", False), show=lambda line: None)
    report.measure("a", "slow", "us", lambda: 3.0, at_most=1.0)
    report.measure("a", "share", "%", lambda: 80.0, at_least=78.0)
    assert [row.is_ok for row in report.rows] == [False, True]
