"""Reading a knowledge base: JSONL, documents, chunking with and without spaces, errors."""

import json
import os
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecore.errors import ConfigError
from flarecore.retrieval.chunking import Section, count_words, markdown_sections, split_text
from flarecore.retrieval.corpus import read_passages
from flarecore.retrieval.passage import Passage


def write_jsonl(path, *rows):
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r, ensure_ascii=False)
                              for r in rows), encoding="utf-8")
    return path


def test_jsonl_rows(tmp_path):
    path = write_jsonl(
        tmp_path / "kb.jsonl",
        {"id": "a", "title": "T", "text": "one\u2028two", "year": 2024, "tags": ["x"]},
        "", "   ",
        {"id": 7, "title": None, "text": "中文", "metadata": {"lang": "zh"}, "k": 1, "score": 0.3},
        {"text": "no id"}, "")
    assert read_passages(path) == [
        Passage("a", "one\u2028two", "T", metadata={"year": 2024, "tags": ["x"]}),
        Passage("7", "中文", metadata={"lang": "zh", "k": 1}),
        Passage("kb.jsonl:5", "no id"),
    ]


def test_passage_json_is_a_jsonl_row(tmp_path):
    passage = Passage("a", "text", "title", metadata={"x": [1]})
    assert read_passages(write_jsonl(tmp_path / "kb.jsonl", passage.to_json())) == [passage]


def test_byte_order_mark_and_windows_lines(tmp_path):
    (tmp_path / "kb.jsonl").write_bytes(
        b'\xef\xbb\xbf{"id":"a","text":"x"}\r\n{"id":"b","text":"y"}')
    assert [p.id for p in read_passages(tmp_path / "kb.jsonl")] == ["a", "b"]
    (tmp_path / "d.md").write_bytes(b"\xef\xbb\xbf# H\r\ntext\r\n")
    assert read_passages(tmp_path / "d.md") == [
        Passage("d.md#1", "text", "H", metadata={"source": "d.md"})]


@pytest.mark.parametrize(("line", "message"), [
    ("{", "line 2: not JSON"), ("[1]", "line 2: must be a JSON object, got list"),
    ('{"id": "x"}', "line 2: 'text'"), ('{"id": "x", "text": " "}', "line 2: 'text'"),
    ('{"id": "", "text": "t"}', "line 2: 'id'"), ('{"id": true, "text": "t"}', "line 2: 'id'"),
    ('{"id": "x", "text": "t", "title": 3}', "line 2: 'title'"),
    ('{"id": "x", "text": "t", "y": NaN}', "line 2: not JSON.*NaN"),
    ('{"id": "x", "text": "t", "y": 1, "metadata": {"y": 2}}', "line 2: 'metadata'"),
    ('{"id": "x", "text": "t", "metadata": [1]}', "line 2: 'metadata'"),
    ('{"id": "a", "text": "t"}', r"line 2: the id 'a' is taken by .*line 1"),
    ("[" * 99999, "line 2: not JSON"),
])
def test_bad_line_is_named(line, message, tmp_path):
    path = write_jsonl(tmp_path / "kb.jsonl", {"id": "a", "text": "x"}, line)
    with pytest.raises(ConfigError, match=rf"kb\.jsonl, {message}"):
        read_passages(path)


def test_bad_utf8_is_named(tmp_path):
    (tmp_path / "kb.jsonl").write_bytes(b'{"id":"a","text":"x"}\n{"id":"b","text":"\xff"}\n')
    with pytest.raises(ConfigError, match=r"kb\.jsonl, line 2: not UTF-8 at byte 18"):
        read_passages(tmp_path)
    (tmp_path / "kb.jsonl").unlink()
    (tmp_path / "doc.txt").write_bytes(b"ok\nok\n" + "gbk 中".encode("gbk"))
    with pytest.raises(ConfigError, match=r"doc\.txt, line 3: not UTF-8"):
        read_passages(tmp_path)


def test_folder_in_order_with_progress(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.txt").write_text("hidden")
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / "image.png").write_bytes(b"\xff\xfe")
    (tmp_path / "b.TXT").write_text("plain text")
    (tmp_path / "sub" / "a.md").write_text("before\n\n# One\nfirst\n## Two\nsecond\n")
    write_jsonl(tmp_path / "c.jsonl", {"id": "c1", "text": "row"})
    calls = []
    found = read_passages(tmp_path, progress=lambda *args: calls.append(args))
    assert [(p.id, p.title, p.text) for p in found] == [
        ("b.TXT#1", "b", "plain text"), ("c1", "", "row"), ("sub/a.md#1", "a", "before"),
        ("sub/a.md#2", "One", "first"), ("sub/a.md#3", "One - Two", "second")]
    assert found[4].metadata == {"source": "sub/a.md"}
    total = sum((tmp_path / n).stat().st_size for n in ("b.TXT", "c.jsonl", "sub/a.md"))
    assert [c[0] for c in calls] == ["read"] * 3 and calls[-1] == ("read", total, total)


def test_what_a_folder_leaves_out_is_told(tmp_path):
    write_jsonl(tmp_path / "corpus.jsonl", {"id": "a", "text": "one"})
    write_jsonl(tmp_path / "queries.jsonl", {"id": "q", "question": "which?", "answers": ["one"]})
    write_jsonl(tmp_path / "zh.queries.jsonl", {"id": "b", "text": "a passage after all"})
    (tmp_path / "skip.csv").write_text("a,b")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / ".hidden").write_text("x")
    told = []
    found = read_passages(tmp_path, left_out=lambda *args: told.append(args))
    assert [p.id for p in found] == ["a", "b"]
    assert told == [
        ("queries.jsonl", "questions, whose passages are in corpus.jsonl"),
        ("skip.csv", "of another kind than .jsonl, .ndjson, .md, .markdown, .txt"),
        ("empty.txt", "without text")]
    with pytest.raises(ConfigError, match=r"this is a question: .* corpus\.jsonl"):
        read_passages(tmp_path / "queries.jsonl")


def test_same_id_in_two_files(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        write_jsonl(tmp_path / name, {"id": "x", "text": "t"})
    with pytest.raises(ConfigError, match=r"b\.jsonl, line 1: the id 'x' is taken by .*a\.jsonl"):
        read_passages(tmp_path)


def test_nothing_to_read(tmp_path):
    for path, message in ((tmp_path, "holds no file"), (tmp_path / "x", "no such file"),
                          (tmp_path / "x.pdf", "must be a folder or end in")):
        if path.suffix:
            path.write_bytes(b"%PDF")
        with pytest.raises(ConfigError, match=message):
            read_passages(path)
    for sizes in ({"max_words": 0}, {"overlap": -1}, {"max_words": 10, "overlap": 6},
                  {"max_words": True}, {"overlap": 1.5}):
        with pytest.raises(ConfigError, match=next(reversed(sizes))):
            read_passages(tmp_path / "x.pdf", **sizes)


def test_whole_paragraphs_then_sentences_then_words():
    paragraph = "One two three. Four five six."
    text = f"{paragraph}\n\n{paragraph}\n \n{paragraph}"
    assert split_text(text, max_words=12) == [f"{paragraph}\n\n{paragraph}", paragraph]
    assert split_text(text, max_words=7) == [paragraph] * 3
    assert split_text(paragraph, max_words=3) == ["One two three.", "Four five six."]
    assert split_text(paragraph, max_words=2) == ["One two", "three.", "Four five", "six."]
    assert split_text("", max_words=2) == split_text(" \n\n ", max_words=2) == []


def test_short_rest_joins_the_next_paragraph():
    assert split_text("Short.\n\nA b c d e. F g h i j.", max_words=8) == [
        "Short.\n\nA b c d e.", "F g h i j."]
    assert split_text("A b c d.\n\nE f g h i. J k.", max_words=9) == [
        "A b c d.\n\nE f g h i.", "J k."]
    assert split_text("A b c d e.\n\nF g. H i j.", max_words=9) == ["A b c d e.", "F g. H i j."]


def test_unspaced_scripts_count_characters_and_end_at_their_terminators():
    text = "差旅须提前申请。超过三千元须经理批准！“可以吗？”可以。"
    assert count_words("差旅 policy 2024") == 4
    assert split_text(text, max_words=12) == [
        "差旅须提前申请。", "超过三千元须经理批准！", "“可以吗？”可以。"]
    assert split_text("字" * 25, max_words=10) == ["字" * 10, "字" * 10, "字" * 5]
    assert all(len(p) <= 10 for p in split_text("ก" * 95, max_words=10))
    assert [len(p) for p in split_text("x" * 100, max_words=2)] == [64, 36]


def test_overlap_repeats_whole_sentences():
    text = " ".join(f"Sentence number {i} here." for i in range(6))
    parts = split_text(text, max_words=12, overlap=4)
    assert parts[0] == text[: len("Sentence number 0 here. ") * 3 - 1]
    for before, after in pairwise(parts):
        assert after.startswith(before[-len("Sentence number 0 here."):])
    assert split_text(text, max_words=12, overlap=3) == split_text(text, max_words=12)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(alphabet="ab .!?\n中。！\t'\"", max_size=120), st.integers(1, 9))
def test_passages_are_ordered_slices_that_lose_nothing(text, max_words):
    position = 0
    passages = split_text(text, max_words=max_words)
    for passage in passages:
        assert passage == passage.strip() != ""
        assert count_words(passage) <= max_words
        begin = text.index(passage, position)
        assert not text[position:begin].strip()
        position = begin + len(passage)
    assert not text[position:].strip()
    for passage in split_text(text, max_words=max_words, overlap=max_words // 2):
        assert passage in text and count_words(passage) <= max_words


def test_markdown_headings():
    text = "\n".join(["# A #", "x", "### C", "y", "## B", "```", "# code", "```", "z", "#no", "# ",
                      "end", "~~~", "# open fence"])
    assert markdown_sections(text, "name") == [
        Section("A", "x"), Section("A - C", "y"), Section("A - B", "```\n# code\n```\nz\n#no"),
        Section("name", "end\n~~~\n# open fence")]
    assert markdown_sections("# Only a heading", "name") == []


def test_number_signs_that_close_a_heading_and_those_of_its_text():
    lines = ["# C#", "a", "# F# ##", "b", "#  #", "c", "# x\t##\t", "d"]
    assert markdown_sections("\n".join(lines), "name") == [
        Section("C#", "a"), Section("F#", "b"), Section("name", "c"), Section("x", "d")]


@pytest.mark.parametrize("run", [".", "!", "?!", ".)", " ", "\t", "#", " #", "# ", "\n ", "。"])
def test_long_runs_take_linear_time(run):
    """Some took quadratic or cubic time: with these sizes the test would not end."""
    many = run * (400_000 // len(run))
    assert "".join(split_text(many + "x", max_words=50)).endswith("x")
    assert len(markdown_sections(f"# a{many}b\ntext", "name")) >= 1


def test_what_is_no_regular_file_is_refused_not_waited_for(tmp_path):
    (tmp_path / "a.txt").write_text("A short text.")
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(ConfigError, match=r"pipe\.txt: a broken link or not a regular file"):
        read_passages(tmp_path)
    with pytest.raises(ConfigError, match="neither a regular file nor a folder"):
        read_passages(tmp_path / "pipe.txt")
    (tmp_path / "pipe.txt").unlink()
    (tmp_path / "link.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"link\.txt: a broken link"):
        read_passages(tmp_path)


def test_a_file_without_text_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ConfigError, match="nothing to index"):
        read_passages(tmp_path / "empty.txt")
