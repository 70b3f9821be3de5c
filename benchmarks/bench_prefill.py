"""Prefill under pytest-benchmark: the cases of ``flarecore bench prefill``, one by one."""

import pytest

from flarecore.bench.prefill import prefill_case, prove


@pytest.mark.parametrize("size", [64, 128, 512, 2048])
def test_prefill(session, runner, time_case, size):
    prove(session, size)
    time_case(prefill_case(session, runner, size), f"prefill {size} tokens", size)
