"""Decoding under pytest-benchmark: the cases of ``flarecore bench decode``, one by one."""

import pytest

from flarecore.bench.decode import decode_case, prove, verify_case

TOKENS = 32


@pytest.mark.parametrize("context", [64, 2000])
def test_decode(session, runner, time_case, context):
    runner.set_contexts([session.context(context)])
    prove(runner, TOKENS, 1, (1,))
    time_case(decode_case(runner, TOKENS), f"decode {TOKENS} tokens, context {context}", TOKENS)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_decode_at_once(session, runner, time_case, count):
    runner.set_contexts([session.context(64, n) for n in range(count)])
    prove(runner, TOKENS, count, (1,))
    time_case(decode_case(runner, TOKENS, count), f"decode {TOKENS} tokens of {count} sequences",
              TOKENS * count)


@pytest.mark.parametrize("rows", [1, 4, 8, 16])
def test_verify(session, runner, time_case, rows):
    runner.set_contexts([session.context(64)])
    expected = prove(runner, 1, 1, (rows,))
    time_case(verify_case(runner, expected[:rows]), f"verify {rows} rows, 8 times")
