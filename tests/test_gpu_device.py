"""The checks of benchmarks/gpu_check.py as tests, on a CUDA device (``pytest -m gpu``)."""

import pytest
from triton_env import DEVICE

from flarecore.bench.gpu.kernel_checks import check_kernels
from flarecore.bench.gpu.main import _run_engine_checks
from flarecore.bench.gpu.report import Report, Settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cpu", reason="there is no CUDA device"),
]
SETTINGS = Settings("cuda", False)


def assert_all_passed(report):
    failed = [f"{row.section}, {row.name}: {row.detail}" for row in report.rows
              if row.is_ok is False]  # fmt: skip
    assert report.rows and not failed, failed


def test_kernels():
    report = Report(SETTINGS)
    check_kernels(report)
    assert_all_passed(report)


def test_engine(tmp_path):
    report = Report(SETTINGS)
    _run_engine_checks(report, tmp_path)
    assert_all_passed(report)
