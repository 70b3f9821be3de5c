"""Reading questions, exemplars and options of evaluations, and refusing bad ones."""

import json

import pytest
from helpers_eval import QUESTIONS, write_data

from flarecore.errors import ConfigError
from flarecore.eval import extract_answer, load_data, load_exemplars
from flarecore.eval.dataset import read_questions
from flarecore.eval.exemplars import PromptMaker, default_exemplars
from flarecore.eval.settings import config_from_settings, parse_methods, split_settings
from flarecore.eval.sweep import Grid

GOOD = '{"id": "1", "question": "q", "answers": ["a"]}'


def test_layouts(tmp_path):
    data = load_data(write_data(tmp_path / "plain"), limit=2)
    assert [q.id for q in data.questions] == ["q1", "q2"] and len(data.passages) == 3
    assert data.questions[1].kind == "compositional" and data.name == "plain"
    assert data.questions[1].gold_titles == ("Marrow Point", "Tobias Renfell")
    other = load_data(write_data(tmp_path / "both", "zh."), prefix="zh")
    assert len(other.questions) == 3 and other.queries_sha256 == data.queries_sha256
    with pytest.raises(ConfigError, match=r"no queries.jsonl; use --prefix with one of zh"):
        load_data(tmp_path / "both")
    with pytest.raises(ConfigError, match="no such folder"):
        load_data(tmp_path / "none")
    with pytest.raises(ConfigError, match="both files"):
        load_data(queries=tmp_path / "plain" / "queries.jsonl")


@pytest.mark.parametrize(("line", "message"), [
    ("{", "line 2 is not valid JSON"),
    ("[1]", "line 2 must be a JSON object"),
    ("[" * 100_000, "line 2 is not valid JSON"),
    ('{"id": "2", "question": "q"}', "line 2: 'answers' must be a list"),
    ('{"id": "2", "question": "q", "answers": []}', "at least 1"),
    ('{"id": "2", "question": "q", "answers": [3]}', r"line 2: 'answers\[0\]'"),
    ('{"id": "2", "question": " ", "answers": ["a"]}', "line 2: 'question'"),
    ('{"id": true, "question": "q", "answers": ["a"]}', "line 2: 'id'"),
    ('{"id": "1", "question": "q", "answers": ["a"]}', "line 2: the id '1' is taken by .*line 1"),
    ('{"id": "2", "question": "\\ud800", "answers": ["a"]}', "line 2: .*surrogate"),
    (b'{"id": "\xff"}', "line 2: not UTF-8"),
])
def test_bad_lines_name_file_and_line(tmp_path, line, message):
    file = tmp_path / "queries.jsonl"
    raw = line if isinstance(line, bytes) else line.encode()
    file.write_bytes(GOOD.encode() + b"\n" + raw + b"\n")
    with pytest.raises(ConfigError, match=message) as caught:
        read_questions(file)
    assert str(file) in str(caught.value)


def test_odd_but_good_lines(tmp_path):
    file = tmp_path / "queries.jsonl"
    row = '{"id": 7, "question": "a\u2028b", "answers": ["x"]}'
    file.write_bytes(b"\xef\xbb\xbf" + row.encode() + b"\r\n\n")
    (question,) = read_questions(file)
    assert question.id == "7" and question.text == "a\u2028b"
    file.write_bytes(b"\n")
    with pytest.raises(ConfigError, match="holds no question"):
        read_questions(file)


def test_gold_ids_must_exist(tmp_path):
    folder = write_data(tmp_path)
    rows = [dict(QUESTIONS[2], gold_ids=["p9"])]
    (folder / "queries.jsonl").write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(ConfigError, match="gold passage 'p9'"):
        load_data(folder)


@pytest.mark.parametrize("name", ["two-hop-en", "single-en", "single-zh"])
def test_built_in_exemplars_keep_their_own_format(name):
    found = load_exemplars(name)
    assert len(found.exemplars) == 8 and found.instruction
    for exemplar in found.exemplars:
        answer = extract_answer(exemplar.answer, found.language)
        # The answer ends with the pattern, and its passages hold the facts.
        assert answer.has_pattern and exemplar.answer.endswith(answer.answer + (
            "。" if found.language == "zh" else "."))
        assert len(exemplar.passages) == (2 if name == "two-hop-en" else 1)
        if answer.answer not in ("yes", "no"):
            shown = " ".join(title + " " + text for title, text in exemplar.passages)
            assert answer.answer.removeprefix("the ").split("、")[0] in shown
    assert len({e.question for e in found.exemplars}) == 8


def test_default_sets(tmp_path):
    # A limit must not change the prompt.
    assert load_data(write_data(tmp_path), limit=1).num_gold == 2
    assert default_exemplars(2, "en") == "two-hop-en"
    assert default_exemplars(1, "en") == default_exemplars(0, "en") == "single-en"
    assert default_exemplars(2, "zh") == "single-zh"


def exemplar_file(tmp_path, **changes):
    row = {"language": "en", "instruction": "Answer.", "exemplars": [
        {"question": "Q1?", "answer": "A. So the answer is A.",
         "passages": [{"title": "T", "text": "P1"}]},
        {"question": "Q2?", "answer": "So the answer is B."}]}
    file = tmp_path / "exemplars.json"
    file.write_text(json.dumps(row | changes))
    return file


def test_own_exemplars_as_text_and_as_turns(tmp_path):
    own = load_exemplars(exemplar_file(tmp_path))
    text = PromptMaker(own, has_chat=True, num_exemplars=2)
    assert text.style == "text" and text.prompt("Real?") == "Real?"
    assert text.template.head == (
        "Answer.\n\nSearch results:\n[1]: P1\nQuestion: Q1?\nAnswer: A. So the answer is A.\n\n"
        "Question: Q2?\nAnswer: So the answer is B.\n\n")
    after = PromptMaker(own, has_chat=False, num_exemplars=1, placement="boundary")
    assert "Question: Q1?\nSearch results:\n[1]: P1\nAnswer: A." in after.template.head
    bare = PromptMaker(own, has_chat=False, num_exemplars=1, with_passages=False)
    assert bare.template.head == "Answer.\n\nQuestion: Q1?\nAnswer: A. So the answer is A.\n\n"
    turns = PromptMaker(own, has_chat=True, num_exemplars=2, style="turns").prompt("Real?")
    assert [m["role"] for m in turns] == ["system", "user", "assistant", "user", "assistant",
                                          "user"]
    assert turns[1]["content"].endswith("Q1?") and "P1" in turns[1]["content"]
    assert turns[-1]["content"] == "Real?"
    system = PromptMaker(own, has_chat=True, num_exemplars=1, style="system").prompt("Real?")
    assert [m["role"] for m in system] == ["system", "user"]
    assert "Answer: A. So the answer is A." in system[0]["content"]
    with pytest.raises(ConfigError, match="chat template"):
        PromptMaker(own, has_chat=False, style="turns")
    with pytest.raises(ConfigError, match=r"num_exemplars must be an integer in \[0, 2\]"):
        PromptMaker(own, has_chat=False, num_exemplars=3)


@pytest.mark.parametrize(("changes", "message"), [
    ({"language": "de"}, "language must be one of"),
    ({"exemplars": "x"}, "'exemplars' must be a list"),
    ({"exemplars": [{"question": "q"}]}, r"exemplars\[0\].answer"),
    ({"exemplars": [{"question": "q", "answer": "a", "passages": ["p"]}]}, r"passages must be"),
    ({"exemplars": [{"question": "q", "answer": "a", "more": 1}]}, r"exemplars\[0\] must be"),
    ({"base": {"question": "no place"}}, r"base: PromptTemplate.question must hold"),
    ({"base": {"kind": "chat"}}, "without 'kind'"),
    ({"examplars": []}, "unknown option 'examplars'; did you mean 'exemplars'"),
])
def test_bad_exemplars(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        load_exemplars(exemplar_file(tmp_path, **changes))


def test_methods_and_settings():
    first, second = parse_methods(["flare:theta=0.6:placement=boundary, no-retrieval"])
    assert first.settings == (("theta", "0.6"), ("placement", "boundary"))
    assert second.name == second.label == "no-retrieval"
    assert first.file_name == "flare_theta=0.6_placement=boundary"
    for texts, message in ((["flare,flare"], "twice"), (["a/b"], "NAME"), ([""], "NAME"),
                           (["flare:theta"], "option=value")):
        with pytest.raises(ConfigError, match=message):
            parse_methods(texts)
    config, others = config_from_settings(split_settings(
        ["theta=0.2", "theta=0.6", "speculative=false", "window-tokens=16", "seed=3", "way=x"]))
    assert (config.theta, config.speculative, config.sampling.seed) == (0.6, False, 3)
    assert others == {"window_tokens": 16, "way": "x"}
    assert (config.max_sentences, config.k) == (4, 2)
    paper, _ = config_from_settings([("preset", "paper_strategyqa"), ("max_sentences", "9")])
    assert (paper.theta, paper.k, paper.max_sentences) == (0.4, 3, 9)
    for setting in ("theta=x", "theta=2", "placement=left", "speculative=maybe"):
        with pytest.raises(ConfigError):
            config_from_settings(split_settings([setting]))


def test_a_grid_shares_runs_where_beta_cannot_matter():
    grid = Grid.make(parse_methods(["flare:k=3"])[0], [0, 0.5], [0.2, 0.4])
    assert grid.labels == (("flare:k=3:theta=0",) * 2,
                           ("flare:k=3:theta=0.5:beta=0.2", "flare:k=3:theta=0.5:beta=0.4"))
    assert [r.label for r in grid.requests] == list(dict.fromkeys(sum(grid.labels, ())))
    assert grid.requests[1].settings == (("k", "3"), ("theta", "0.5"), ("beta", "0.2"))
    back = Grid.from_dict(json.loads(json.dumps(grid.to_dict())), "file")
    assert back.labels == grid.labels and back.betas == grid.betas
    for bad in ({}, {**grid.to_dict(), "labels": [["a"]]}, {**grid.to_dict(), "thetas": ["x"]}):
        with pytest.raises(ConfigError, match="file"):
            Grid.from_dict(bad, "file")
