"""The settings of the paper and of its authors' code, as values of FlareConfig's options."""

from __future__ import annotations

from typing import Any

from flarecore.validation import check_choice

__all__ = ["DATASETS", "authors_values", "paper_values"]

_PASSAGE_TOKENS = 160  # a passage of 100 words
_RENDERED_TOKENS = 16  # number and title around it

# Jiang et al. 2023 (arXiv 2305.06983), table 9.
_TABLE_9: dict[str, dict[str, Any]] = {
    "2wiki": {"theta": 0.8, "beta": 0.4, "query": "mask", "k": 2, "evidence_policy": "replace",
              "max_new_tokens": 256},
    "strategyqa": {"theta": 0.4, "beta": 0.4, "query": "mask", "k": 3,
                   "evidence_policy": "replace", "max_new_tokens": 256},
    "asqa": {"theta": 0.8, "beta": 0.4, "query": "question", "k": 3,
             "evidence_policy": "keep_first", "max_new_tokens": 256},
    "wikiasp": {"theta": 0.8, "beta": 0.4, "query": "question", "k": 5,
                "evidence_policy": "keep_first", "max_new_tokens": 512},
}

DATASETS = tuple(_TABLE_9)
"""Names of the paper's data sets."""


def paper_values(dataset: str) -> dict[str, Any]:
    """The options of the paper's runs on a data set.

    Raises
    ------
    ConfigError
        The paper has no such data set.
    """
    table = _TABLE_9[check_choice("dataset", dataset, DATASETS)]
    # Nothing is cut in the paper: room for the question's passages and the step's.
    num_passages = table["k"] * (2 if table["evidence_policy"] == "keep_first" else 1)
    return {
        "mask_unit": "token", "trigger_punctuation": True, "placement": "prefix",
        "draft_context": "none", "initial_retrieval": True, "span_gap": 5,
        "max_draft_tokens": 64, "max_passage_tokens": _PASSAGE_TOKENS,
        "max_evidence_tokens": num_passages * (_PASSAGE_TOKENS + _RENDERED_TOKENS)} | table


def authors_values() -> dict[str, Any]:
    """What the authors' code does otherwise."""
    return {
        "theta_inclusive": True, "theta_zero_always": True, "beta_inclusive": True,
        "empty_query": "accept_draft", "draft_context": "last_evidence", "max_query_tokens": 64}
