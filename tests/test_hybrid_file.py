"""The file of a hybrid: passages once or apart, and nothing forged in it is believed."""

import pytest
from helpers_retrieval import HYBRID_PASSAGES, WordEncoder, build_hybrid, forge, replace_text

from flarecore.errors import IndexFileError
from flarecore.retrieval.bm25 import BM25Retriever
from flarecore.retrieval.exact import ExactRetriever
from flarecore.retrieval.hybrid import HybridRetriever
from flarecore.retrieval.index_io import index_info, read_index_file


def test_same_passages_are_written_once(tmp_path):
    hybrid = build_hybrid(weights=[1, 2], rank_constant=10, depth=12)
    hybrid.save(tmp_path / "i")
    assert sorted(read_index_file(tmp_path / "i").sections) == [
        "0.lengths", "0.numbers", "0.terms", "1.vectors", "passages"]
    info = index_info(tmp_path / "i")
    assert (info["kind"], info["count"], info["depth"]) == ("hybrid", 40, 12)
    loaded = HybridRetriever.load(tmp_path / "i", WordEncoder())
    assert loaded.search(["X-7 t1", "shared"], 9) == hybrid.search(["X-7 t1", "shared"], 9)


def test_different_passages_are_written_apart(tmp_path):
    encoder = WordEncoder()
    hybrid = HybridRetriever([BM25Retriever.build(HYBRID_PASSAGES[:30]),
                              ExactRetriever(encoder, HYBRID_PASSAGES[20:])])
    hybrid.save(tmp_path / "i")
    loaded = HybridRetriever.load(tmp_path / "i", encoder)
    assert [len(part) for part in loaded.retrievers] == [30, 20] and len(loaded) == 40
    assert loaded.search(["X-7 X-35"], 9) == hybrid.search(["X-7 X-35"], 9)
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "i").read_bytes()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "kb.index"
    build_hybrid().save(path)
    return path


def change_part(number, **changes):
    def change(header):
        parts = [dict(part) for part in header["parts"]]
        parts[number] = {**parts[number], **changes}
        return {"parts": parts}
    return change


def change_header(number, **changes):
    def change(header):
        return change_part(number, header={**header["parts"][number]["header"], **changes})(header)
    return change


FORGERIES = {
    "no parts": ({"parts": []}, {}),
    "parts no list": ({"parts": {"0": 1}}, {}),
    "part no object": ({"parts": [1]}, {}),
    "many parts": (lambda header: {"parts": header["parts"] * 40}, {}),
    "a part too many": (lambda header: {"parts": header["parts"] + header["parts"][:1]}, {}),
    "hybrid in a hybrid": (change_header(0, kind="hybrid"), {}),
    "kind a list": (change_header(0, kind=["bm25"]), {}),
    "kinds exchanged": (lambda header: {"parts": header["parts"][::-1]}, {}),
    "weight": (change_part(1, weight=0), {}),
    "weight missing": (change_part(1, weight=None), {}),
    "rank constant": ({"rank_constant": "60"}, {}),
    "rank constant nan": ({"rank_constant": float("nan")}, {}),
    "depth": ({"depth": 0}, {}),
    "count": ({"count": 39}, {}),
    "count of a part": (change_header(0, count=39), {}),
    "count of another": (change_header(1, count=41), {}),
    "count huge": ({"count": 1 << 50}, {}),
    "passages not shared": ({"shared_passages": False}, {}),
    "shared no boolean": ({"shared_passages": [1]}, {}),
    "encoder": (change_header(1, encoder={"name": "../x", "fingerprint": "0"}), {}),
    "passages gone": ({}, {"passages": lambda data: None}),
    "id twice": ({}, {"passages": replace_text(b'"p1"', b'"p0"')}),
    "vectors gone": ({}, {"1.vectors": lambda data: None}),
    "numbers": ({}, {"0.numbers": lambda data: data[4:]}),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_contents_are_refused(name, saved, tmp_path):
    header, sections = FORGERIES[name]
    if callable(header):
        header = header(read_index_file(saved).header)
    path = forge(saved, tmp_path / "forged", header, sections)
    assert path.read_bytes() != saved.read_bytes()
    with pytest.raises(IndexFileError, match="forged"):
        HybridRetriever.load(path, WordEncoder())
