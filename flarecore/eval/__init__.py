"""Evaluation: questions with known answers, methods beside each other, quality with intervals."""

from flarecore.eval.bootstrap import Interval, mean_interval, paired_difference
from flarecore.eval.dataset import EvalData, Question, load_data
from flarecore.eval.exemplars import Exemplars, load_exemplars
from flarecore.eval.extract import Extracted, extract_answer
from flarecore.eval.metrics import contains_answer, exact_match, f1_score, text_language, words_of

__all__ = [
    "EvalData", "Exemplars", "Extracted", "Interval", "Question", "contains_answer", "exact_match",
    "extract_answer", "f1_score", "load_data", "load_exemplars", "mean_interval",
    "paired_difference", "text_language", "words_of",
]
