"""Scores, extraction and bootstrap of evaluations on cases worked out by hand."""

import pytest

from flarecore.errors import ConfigError
from flarecore.eval import (
    contains_answer,
    exact_match,
    extract_answer,
    f1_score,
    mean_interval,
    paired_difference,
    text_language,
    words_of,
)
from flarecore.eval.extract import Extracted


@pytest.mark.parametrize(("answer", "gold", "em", "f1"), [
    ("The  Eiffel Tower!", "eiffel tower", 1, 1),
    ("an apple a day", "Apple Day", 1, 1),
    ("U.S.", "US", 1, 1),
    ("23–16", "23-16", 1, 1),
    ("ＡＢＣ １２", "abc 12", 1, 1),
    ("theatre", "tre", 0, 0),  # articles are words, not letters
    ("born in Rome", "Rome", 0, 0.5),  # precision 1/3, recall 1
    ("Rome Rome", "Rome", 0, 2 / 3),  # a bag, not a set
    ("The Who", "Who", 1, 1),
    ("A", "A", 1, 1),
    ("A", "The", 0, 0),
    ("", "x", 0, 0),
    ("...", "x", 0, 0),
])
def test_english(answer, gold, em, f1):
    assert exact_match(answer, [gold], "en") == em
    assert f1_score(answer, [gold], "en") == pytest.approx(f1)


@pytest.mark.parametrize(("answer", "gold", "em", "f1"), [
    ("１３６ 次。", "136次", 1, 1),  # full-width digits, a space, a full stop
    ("“卡万·肖特”", "卡万·肖特", 1, 1),
    ("北京市", "北京", 0, 0.8),  # 2 of 3 and 2 of 2 characters
    ("1931年", "1932年", 0, 0.5),  # a number is one word
    ("NFL 球队", "ＮＦＬ球队", 1, 1),
    ("上海", "北京", 0, 0),
    ("", "北京", 0, 0),
])
def test_chinese(answer, gold, em, f1):
    assert exact_match(answer, [gold], "zh") == em
    assert f1_score(answer, [gold], "zh") == pytest.approx(f1)


def test_the_best_of_several_answers_counts():
    assert exact_match("two", ["one", "Two"], "en") == 1
    assert f1_score("a big dog", ["cat", "dog"], "en") == pytest.approx(2 / 3)


def test_contained_is_whole_words_in_order():
    assert contains_answer("It was in the Port of  Spain, then.", ["Port of Spain"], "en") == 1
    assert contains_answer("Nothing is known.", ["no"], "en") == 0
    assert contains_answer("Spain, a port of", ["Port of Spain"], "en") == 0
    assert contains_answer("他出生在北京市。", ["北京"], "zh") == 1
    assert contains_answer("共1360次", ["136"], "zh") == 0
    assert contains_answer("anything", ["。"], "zh") == 0


def test_language_and_words():
    assert text_language("Who is 乔治?") == "zh" and text_language("Café 12") == "en"
    assert words_of("Œuvre, the END", "en") == ["œuvre", "end"]
    assert words_of("在2013年，NFL", "zh") == ["在", "2013", "年", "nfl"]


@pytest.mark.parametrize(("text", "language", "answer", "has_pattern"), [
    (" He wrote it. So the answer is J. R. R. Tolkien. He died.", "en", "J. R. R. Tolkien", True),
    ("So the answer is: \"26 March 1827\".\nQuestion: Next", "en", "26 March 1827", True),
    ("Thus, the final answer is **no**", "en", "no", True),
    ("So the answer is. The answer is Rome.", "en", "Rome", True),
    ("So the answer is 3.5 million. So the answer is 4.", "en", "3.5 million", True),
    ("He was born. It was in Rome.", "en", "It was in Rome", False),
    ("所以答案是：“小猎犬号”。其他。", "zh", "小猎犬号", True),
    ("因此，答案为１８６９年", "zh", "１８６９年", True),
    ("他生于北京。他死于上海。", "zh", "他死于上海", False),
    ("答案 So the answer is 北京.", "zh", "北京", True),
    ("", "en", "", False),
    (" \n ", "zh", "", False),
    ("So the answer is", "en", "So the answer is", False),
])
def test_extraction(text, language, answer, has_pattern):
    found = extract_answer(text, language)
    assert (found.answer, found.has_pattern) == (answer, has_pattern)
    assert text.startswith(found.lead)


def test_the_lead_is_what_stands_before_the_pattern():
    assert extract_answer("A is B. So the answer is C.", "en").lead == "A is B. "
    assert extract_answer("甲是乙。所以答案是丙。", "zh").lead == "甲是乙。"


def test_extraction_of_long_white_space_takes_linear_time():
    text = "所以" + " \n" * 200_000 + "x"
    assert extract_answer(text, "zh") == Extracted("x", False, text)
    assert extract_answer("因此，\n答案是 北京。", "zh") == Extracted("北京", True, "")
    assert extract_answer("好。 答案是北京。", "zh").answer == "北京"


def test_bootstrap_is_seeded_and_right():
    values = [1.0] * 30 + [0.0] * 70
    first, again = mean_interval(values, seed=1), mean_interval(values, seed=1)
    assert first == again and first != mean_interval(values, seed=2)
    # The normal approximation: 0.3 ± 1.96 · sqrt(0.3 · 0.7 / 100).
    assert first.mean == pytest.approx(0.3) and first.num_values == 100
    assert first.low == pytest.approx(0.21, abs=0.02)
    assert first.high == pytest.approx(0.39, abs=0.02)
    assert mean_interval([]) is None
    one = mean_interval([0.5])
    assert (one.low, one.mean, one.high) == (0.5, 0.5, 0.5)
    with pytest.raises(ConfigError, match="level"):
        mean_interval(values, level=1.5)


def test_paired_differences_keep_the_pairs():
    hard = [float(i % 2) for i in range(100)]
    assert paired_difference(hard, hard) == mean_interval([0.0] * 100)
    better = [min(1.0, v + (i < 10)) for i, v in enumerate(hard)]
    difference = paired_difference(better, hard)
    assert difference.mean == pytest.approx(0.05) and difference.low > 0
    assert mean_interval(better).low < mean_interval(hard).high  # apart, they overlap
    with pytest.raises(ConfigError, match="same questions"):
        paired_difference([1.0], [1.0, 0.0])
