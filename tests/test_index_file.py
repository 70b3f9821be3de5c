"""The index file: round trip, atomic replacement, refusal of damage and of hostile contents."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers_retrieval import (
    TableEncoder,
    WordEncoder,
    forge,
    poke,
    random_table,
    replace_text,
    table_passages,
)

from flarecore.errors import ConfigError, IndexFileError
from flarecore.retrieval.graph import GraphLinks, GraphParams, HnswGraph
from flarecore.retrieval.hnsw import HnswRetriever
from flarecore.retrieval.index_io import index_info, read_index_file
from flarecore.retrieval.passage import Passage

NUM_ROWS, DIM = 300, 8
TABLE = random_table(NUM_ROWS + 20, DIM, seed=1)
QUERIES = [f"v{i}" for i in range(NUM_ROWS, NUM_ROWS + 20)]


def build(num_rows=NUM_ROWS, **options):
    return HnswRetriever.build(table_passages(0, num_rows), TableEncoder(TABLE),
                               **{"exact_below": 0, "m": 4, **options})


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "kb.index"
    build().save(path)
    return path


def test_round_trip(saved):
    before, after = build(), HnswRetriever.load(saved, TableEncoder(TABLE))
    assert after.search(QUERIES, 7) == before.search(QUERIES, 7)
    assert after.search(QUERIES, 7, {"mod": [1, 2, 3]}) == before.search(
        QUERIES, 7, {"mod": [1, 2, 3]})
    assert after.stats == before.stats and after.stats.num_graph > 0
    assert len(after) == NUM_ROWS


def test_load_restores_ef_and_may_override_it(saved):
    loaded = HnswRetriever.load(saved, TableEncoder(TABLE))
    assert loaded._parts.graph._index.ef == 64
    loaded = HnswRetriever.load(saved, TableEncoder(TABLE), ef_search=9)
    assert loaded._parts.graph._index.ef == 9
    with pytest.raises(ConfigError, match="ef_search"):
        HnswRetriever.load(saved, TableEncoder(TABLE), ef_search=0)


def test_save_is_deterministic_and_stable(saved, tmp_path):
    build().save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == saved.read_bytes()
    HnswRetriever.load(saved, TableEncoder(TABLE)).save(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == saved.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "copy"]


def test_metadata_and_text_survive(tmp_path):
    passages = [
        Passage("é/1", "zwei\nZeilen\u2028und \x00 mehr", "题目", metadata={
            "tags": ["a", 1, None], "big": 1 << 70, "x": 0.1, "deep": {"a": {"b": [True]}}}),
        Passage("2", "公司差旅政策", metadata={}),
    ]
    encoder = WordEncoder()
    HnswRetriever.build(passages, encoder, title_in_text=False).save(tmp_path / "i")
    loaded = HnswRetriever.load(tmp_path / "i", encoder)
    found = {p.id: p.with_score(0.0) for p in loaded.search(["x"], 5)[0]}
    assert found == {p.id: p for p in passages}
    assert index_info(tmp_path / "i")["title_in_text"] is False
    assert index_info(tmp_path / "i")["count"] == 2


@pytest.mark.parametrize("num_rows", [0, 1, 2])
def test_tiny_indexes(num_rows, tmp_path):
    build(num_rows, exact_below=10).save(tmp_path / "i")
    loaded = HnswRetriever.load(tmp_path / "i", TableEncoder(TABLE))
    assert [len(p) for p in loaded.search(["v0"], 5)] == [num_rows]


def test_add_after_load(saved):
    loaded = HnswRetriever.load(saved, TableEncoder(TABLE))
    loaded.add(table_passages(NUM_ROWS, NUM_ROWS + 20))
    found = loaded.search(QUERIES, 1)
    assert [p[0].id for p in found] == [f"p{q[1:]}" for q in QUERIES]
    assert loaded.stats.num_graph == len(QUERIES)
    with pytest.raises(ConfigError, match="'p3' is taken"):
        loaded.add(table_passages(3, 4))


def test_another_encoder_is_named(saved):
    message = r"'table' \(not quantised, dim 8.*'words' \(not quantised, dim 32"
    with pytest.raises(IndexFileError, match=message):
        HnswRetriever.load(saved, WordEncoder())
    other = TableEncoder(TABLE)
    other.fingerprint = "table-2"
    with pytest.raises(IndexFileError, match="fingerprint"):
        HnswRetriever.load(saved, other)


def test_damage_at_any_byte_is_refused(saved, tmp_path):
    data = saved.read_bytes()
    rng = np.random.default_rng(0)
    positions = {*range(0, 60), *range(len(data) - 20, len(data)),
                 *rng.integers(len(data), size=150).tolist()}
    broken = tmp_path / "broken"
    for position in positions:
        damaged = bytearray(data)
        damaged[position] ^= 1 << int(rng.integers(8))
        broken.write_bytes(damaged)
        with pytest.raises(IndexFileError, match="broken"):
            HnswRetriever.load(broken, TableEncoder(TABLE))


@pytest.mark.parametrize("size", [0, 1, 7, 47, 48, 100, 2000, -1, -64, "longer"])
def test_wrong_size_is_refused(size, saved, tmp_path):
    data = saved.read_bytes()
    broken = tmp_path / "broken"
    broken.write_bytes(data + b"\0" if size == "longer" else data[:size])
    with pytest.raises(IndexFileError, match="broken"):
        HnswRetriever.load(broken, TableEncoder(TABLE))


def test_missing_or_another_file(tmp_path):
    with pytest.raises(IndexFileError, match=r"nothing.*cannot be read"):
        HnswRetriever.load(tmp_path / "nothing", TableEncoder(TABLE))
    with pytest.raises(IndexFileError, match="cannot be read"):
        HnswRetriever.load(tmp_path, TableEncoder(TABLE))
    (tmp_path / "text").write_text("a text file that is long enough for any prologue of an index")
    with pytest.raises(IndexFileError, match="not a flarecore index"):
        HnswRetriever.load(tmp_path / "text", TableEncoder(TABLE))


GROUND_ELEMENT = 299  # an element without upper layers, see the test

FORGERIES = {
    "count too large": ({"count": NUM_ROWS + 1}, {}),
    "count negative": ({"count": -1}, {}),
    "count huge": ({"count": 1 << 60}, {}),
    "count text": ({"count": "3"}, {}),
    "dim": ({"dim": DIM * 2}, {}),
    "kind": ({"kind": "bm25"}, {}),
    "no encoder": ({"encoder": None}, {}),
    "title": ({"title_in_text": "yes"}, {}),
    "m": ({"m": 8}, {}),
    "m huge": ({"m": 1 << 40}, {}),
    "m too small": ({"m": 1}, {}),
    "ef": ({"ef_search": 0}, {}),
    "ef_construction": ({"ef_construction": 1}, {}),
    "seed": ({"seed": -1}, {}),
    "graph rows": ({"graph_rows": NUM_ROWS - 1}, {}),
    "graph rows beyond": ({"graph_rows": NUM_ROWS + 1}, {}),
    "entry": ({"graph_entry": NUM_ROWS}, {}),
    "entry below the top": ({"graph_entry": GROUND_ELEMENT}, {}),
    "link beyond": ({}, {"graph_base": poke(1, NUM_ROWS)}),
    "link count": ({}, {"graph_base": poke(9, 9)}),
    "deleted mark": ({}, {"graph_base": poke(0, 1 << 16 | 1)}),
    "upper link beyond": ({}, {"graph_upper": poke(1, 0xFFFFFFFF)}),
    "upper link to the ground": ({}, {"graph_upper": poke(1, GROUND_ELEMENT)}),
    "level": ({}, {"graph_levels": poke(GROUND_ELEMENT, 1, "u1")}),
    "level huge": ({}, {"graph_levels": poke(GROUND_ELEMENT, 255, "u1")}),
    "levels missing": ({}, {"graph_levels": lambda data: None}),
    "upper cut": ({}, {"graph_upper": lambda data: data[:-20]}),
    "vector nan": ({}, {"vectors": poke(3, float("nan"), "<f4")}),
    "vector long": ({}, {"vectors": poke(3, 3e38, "<f4")}),
    "vectors cut": ({}, {"vectors": lambda data: data[:-4]}),
    "passage lost": ({}, {"passages": lambda data: data[:-1]}),
    "passage not json": ({}, {"passages": replace_text(b'{"id"', b'["id"')}),
    "passage id twice": ({}, {"passages": replace_text(b'"p1"', b'"p0"')}),
    "passage id number": ({}, {"passages": replace_text(b'"p1"', b"1234")}),
    "passage nan": ({}, {"passages": replace_text(b'"n":5', b'"n":NaN')}),
    "passage deep": ({}, {"passages": replace_text(b'"n":5', b'"n":' + b"[" * 9999)}),
    "passage not utf-8": ({}, {"passages": replace_text(b'"v5"', b'"\xff"')}),
    "passage surrogate": ({}, {"passages": replace_text(b'"v5"', b'"\\ud800"')}),
    "passage line split": ({}, {"passages": replace_text(b'"v5"', b'"v5"\n')}),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_contents_are_refused(name, saved, tmp_path):
    levels = read_index_file(saved).section("graph_levels")
    assert levels[GROUND_ELEMENT] == 0 and levels.max() > 0
    header, sections = FORGERIES[name]
    path = forge(saved, tmp_path / "forged", header, sections)
    with pytest.raises(IndexFileError, match=r"forged|index graph"):
        HnswRetriever.load(path, TableEncoder(TABLE))


def test_forging_itself_changes_nothing(saved, tmp_path):
    assert forge(saved, tmp_path / "same").read_bytes() == saved.read_bytes()


@pytest.mark.parametrize("entry", [
    None, {"offset": 0}, {"offset": 64, "size_bytes": 8, "sha256": "0"},
    {"offset": 1 << 62, "size_bytes": 8, "sha256": "0"},
    {"offset": "x", "size_bytes": True, "sha256": "0"},
    {"offset": 192, "size_bytes": -5, "sha256": "0"},
])
def test_hostile_section_table(entry, tmp_path):
    header = json.dumps({"sections": {"a": entry}}).encode()
    path = tmp_path / "hostile"
    path.write_bytes(b"FLAREIDX" + (1).to_bytes(4, "little") + len(header).to_bytes(4, "little")
                     + hashlib.sha256(header).digest() + header + b"\0" * 200)
    with pytest.raises(IndexFileError, match="hostile"):
        read_index_file(path)


@pytest.mark.parametrize(("version", "size"), [(2, 10), (1, 1 << 31), (1, 500)])
def test_hostile_prologue(version, size, tmp_path):
    path = tmp_path / "hostile"
    path.write_bytes(b"FLAREIDX" + version.to_bytes(4, "little") + size.to_bytes(4, "little")
                     + b"\0" * 300)
    with pytest.raises(IndexFileError, match="hostile"):
        read_index_file(path)


def test_valid_links_are_accepted_and_equal():
    graph = HnswGraph(DIM, GraphParams(4, 50, 20, 0))
    vectors = np.ascontiguousarray(TABLE[:NUM_ROWS])
    graph.insert(vectors)
    links = graph.links()
    copy = HnswGraph.from_links(links, vectors, GraphParams(4, 50, 20, 0))
    assert np.array_equal(copy.query(vectors, 5), graph.query(vectors, 5))
    again = copy.links()
    assert isinstance(again, GraphLinks) and again.entry == links.entry
    assert all(np.array_equal(getattr(again, n), getattr(links, n))
               for n in ("base", "upper", "levels"))


def test_graph_state_that_hnswlib_refuses_is_built_again(saved, monkeypatch):
    def refuse(*args):
        raise RuntimeError("Invalid serialization version")

    monkeypatch.setattr("flarecore.retrieval.graph._compose", refuse)
    loaded = HnswRetriever.load(saved, TableEncoder(TABLE))
    assert loaded.search(QUERIES, 5) == build().search(QUERIES, 5)


CRASH = """
import os, sys
sys.path[:0] = sys.argv[3:]
import numpy as np
from helpers_retrieval import WordEncoder
from flarecore.retrieval import index_io
from flarecore.retrieval.hnsw import HnswRetriever
from flarecore.retrieval.passage import Passage

retriever = HnswRetriever.build([Passage("new", "text")], WordEncoder())
if sys.argv[2] == "write":
    class Dying:
        def __init__(self): self.calls = 0
        def __call__(self, path, header, sections):
            index_io.write_index_file(path, header, {"passages": self.chunks()})
        def chunks(self):
            yield b"x" * 100000
            os._exit(9)
    import flarecore.retrieval.stored as stored
    stored.write_index_file = Dying()
else:
    setattr(index_io.os, sys.argv[2], lambda *arguments: os._exit(9))
retriever.save(sys.argv[1])
"""


@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
@pytest.mark.parametrize("exists", [True, False])
def test_killed_in_the_middle_of_a_save(moment, exists, tmp_path):
    path, encoder = tmp_path / "i", WordEncoder()
    if exists:
        HnswRetriever.build([Passage("old", "text")], encoder).save(path)
    run = subprocess.run(
        [sys.executable, "-c", CRASH, str(path), moment, *[p for p in sys.path if p],
         os.path.dirname(__file__), os.getcwd()], check=False, capture_output=True, text=True)
    assert run.returncode == 9, run.stderr
    assert path.exists() == exists
    if exists:
        assert HnswRetriever.load(path, encoder).search(["text"], 3)[0][0].id == "old"
    HnswRetriever.build([Passage("newer", "text")], encoder).save(path)
    assert HnswRetriever.load(path, encoder).search(["text"], 3)[0][0].id == "newer"


def test_failed_save_leaves_the_old_index_and_no_rest(tmp_path, monkeypatch):
    path, encoder = tmp_path / "i", WordEncoder()
    HnswRetriever.build([Passage("old", "text")], encoder).save(path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(IndexFileError, match="No space left"):
            HnswRetriever.build([Passage("new", "text")], encoder).save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["i"]
    assert HnswRetriever.load(path, encoder).search(["text"], 1)[0][0].id == "old"
    with pytest.raises(IndexFileError, match="cannot be written"):
        HnswRetriever.build([], encoder).save(tmp_path / "no" / "folder")
    with pytest.raises(IndexFileError, match="cannot be written"):
        HnswRetriever.build([], encoder).save(tmp_path)
