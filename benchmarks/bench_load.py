"""Loading under pytest-benchmark: a fresh process a round, file cache warm."""

import subprocess

import pytest

from flarecore.bench.load import LoadOptions, load_cases
from flarecore.errors import FlarecoreError


def test_load(session, engine, time_case):
    try:
        case = load_cases(session, LoadOptions())[engine]
    except KeyError:
        pytest.skip(f"no {engine}: not asked for, or its other format cannot be made")
    try:
        case.run()
    except (FlarecoreError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no {engine}: {error}")
    time_case(case, "process start to first token")
