"""Metadata filters: meaning by hand, whole columns against row by row, refused input."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecore.errors import ConfigError, RetrievalWarning
from flarecore.retrieval.columns import MetadataColumns
from flarecore.retrieval.filters import compile_filter
from flarecore.retrieval.passage import Passage

ROWS = [
    {"year": 2023, "lang": "en", "tags": ["a", "b"], "date": "2023-05-01"},
    {"year": 2024.0, "lang": "zh", "tags": ["b", "c"], "date": "2024-01-01", "ok": True},
    {"year": "2024", "lang": None, "tags": [], "ok": 1},
    {"lang": ["en", "zh"], "tags": "b", "year": 1 << 70, "ok": False, "deep": {"year": 2024}},
    {},
]
PASSAGES = [Passage(id=f"r{i}", text="t", title=f"T{i % 2}", metadata=m)
            for i, m in enumerate(ROWS)]


def rows_of(filter, passages=PASSAGES):
    """The rows a filter lets through, the same by column and row by row."""
    compiled = compile_filter(filter)
    mask = MetadataColumns(passages).mask(compiled, len(passages))
    assert mask.tolist() == [compiled.matches(p) for p in passages]
    return np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(("filter", "expected"), [
    ({"year": 2024}, [1]),
    ({"year": "2024"}, [2]),
    ({"year": [2023, "2024"]}, [0, 2]),
    ({"year": []}, []),
    ({"year": {"gte": 2024}}, [1, 3]),
    ({"year": {"gt": 2024}}, [3]),
    ({"year": {"gt": "2000"}}, [2]),
    ({"year": {"gte": 2023, "lt": 2024}}, [0]),
    ({"year": {"ne": 2024}}, [0, 2, 3]),
    ({"year": 1 << 70}, [3]),
    ({"year": {"lt": (1 << 70) + 1, "gt": (1 << 70) - 1}}, [3]),
    ({"lang": "en"}, [0, 3]),
    ({"lang": {"ne": "en"}}, [1]),
    ({"tags": "b"}, [0, 1, 3]),
    ({"tags": {"ne": "c"}}, [0, 3]),
    ({"tags": {"not_in": ["a", "c"]}}, [3]),
    ({"tags": {"gt": "b"}}, [1]),
    ({"tags": {"gte": "c\0"}}, []),
    ({"tags": {"lt": "a\0"}}, [0]),
    ({"tags": {"in": ["a", "c"], "ne": "b"}}, []),
    ({"date": {"gte": "2023-06-01", "lte": "2024-01-01"}}, [1]),
    ({"ok": True}, [1]),
    ({"ok": 1}, [2]),
    ({"ok": False}, [3]),
    ({"year": {"eq": 2023}, "lang": "en"}, [0]),
    ({"year": 2023, "lang": "zh"}, []),
    ({"year": {"in": [2023, 2024], "eq": 2024}}, [1]),
    ({"deep": "x"}, []),
    ({"deep": {"ne": "x"}}, []),
    ({"unknown": {"ne": "x"}}, []),
    ({"id": ["r0", "r4"]}, [0, 4]),
    ({"title": "T1"}, [1, 3]),
])
def test_meaning(filter, expected):
    assert rows_of(filter) == expected


def test_no_condition_is_no_filter():
    assert compile_filter(None) is None
    assert compile_filter({}) is None


@pytest.mark.parametrize(("filter", "message"), [
    ([("a", 1)], "mapping"),
    ({"a": {"~=": 1}}, "unknown operator '~='.*gte"),
    ({"a": {}}, "no comparison"),
    ({"a": None}, "NoneType"),
    ({"a": [None]}, "NoneType"),
    ({"a": float("nan")}, "NaN"),
    ({"a": {"lt": True}}, "boolean"),
    ({"a": {"in": "abc"}}, "list"),
    ({"a": {"eq": [1]}}, "list"),
    ({"a": {"ne": {"b": 1}}}, "dict"),
    ({"": 1}, "field name"),
    ({3: 1}, "field name"),
])
def test_refused(filter, message):
    with pytest.raises(ConfigError, match=message):
        compile_filter(filter)


def test_a_field_that_no_passage_has_is_told():
    columns = MetadataColumns(PASSAGES)
    message = "'langauge', so nothing matches; the fields are id, title, date, lang, ok, tags, year"
    with pytest.warns(RetrievalWarning, match=message):
        mask = columns.mask(compile_filter({"langauge": {"ne": "en"}}), len(PASSAGES))
    assert not mask.any(), "a missing field meets no condition"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns.mask(compile_filter({"lang": "none has it"}), len(PASSAGES))
        assert not MetadataColumns([]).mask(compile_filter({"lang": "en"}), 0).any()


def test_masks_follow_new_passages():
    passages = PASSAGES[:2]
    columns = MetadataColumns(passages)
    compiled = compile_filter({"lang": ["en", "zh"]})
    assert columns.mask(compiled, 2).tolist() == [True, True]
    passages.extend(PASSAGES[2:])
    assert columns.mask(compiled, 5).tolist() == [True, True, False, True, False]
    assert columns.mask(compiled, 1).tolist() == [True]
    for n in range(100):  # more filters than are remembered
        assert columns.mask(compile_filter({"n": n}), 5).sum() == 0
    assert columns.mask(compiled, 5).tolist() == [True, True, False, True, False]


SCALARS = st.one_of(st.integers(-2, 2), st.sampled_from([0.5, 1.0, 2.0]), st.booleans(),
                    st.sampled_from(["", "1", "a", "a\0", "\0", "b", "B", "é", "中"]))
FIELDS = st.sampled_from(["x", "y"])
METADATA = st.dictionaries(FIELDS, st.one_of(SCALARS, st.none(), st.lists(SCALARS, max_size=3)))
BOUNDS = SCALARS.filter(lambda v: not isinstance(v, bool))
COMPARISONS = st.fixed_dictionaries({}, optional={
    "eq": SCALARS, "ne": SCALARS, "in": st.lists(SCALARS, max_size=3),
    "not_in": st.lists(SCALARS, max_size=3), "gt": BOUNDS, "gte": BOUNDS, "lt": BOUNDS,
    "lte": BOUNDS}).filter(bool)
FILTERS = st.dictionaries(FIELDS, st.one_of(SCALARS, st.lists(SCALARS, max_size=3), COMPARISONS),
                          min_size=1)


@pytest.mark.filterwarnings("ignore::flarecore.errors.RetrievalWarning")
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(METADATA, max_size=8), FILTERS)
def test_columns_equal_rows(rows, filter):
    rows_of(filter, [Passage(id=str(i), text="t", metadata=m) for i, m in enumerate(rows)])
