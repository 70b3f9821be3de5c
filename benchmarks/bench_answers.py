"""Whole answers under pytest-benchmark: the cases of ``flarecore bench answers``, one by one."""

import pytest

from flarecore.bench.answers import AnswersOptions, make_modes, prove
from flarecore.bench.loop import LoopOptions
from flarecore.bench.questions import LoopQuestions


@pytest.fixture(scope="module")
def modes(session, source):
    options = AnswersOptions(loop=LoopOptions(source=source))
    pair = make_modes(session, options, LoopQuestions.open(source))
    prove(*pair)
    yield dict(zip(("in turn", "at once"), pair, strict=True))
    for mode in pair:
        mode.close()


@pytest.mark.parametrize("how", ["in turn", "at once"])
def test_answers(modes, time_case, how):
    time_case(modes[how].case(), f"{len(modes[how].answers)} whole answers",
              modes[how].total("num_tokens"))
