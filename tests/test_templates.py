"""Templates as data, and prompts built from questions, chats and token ids."""

from __future__ import annotations

import pytest
from scripted_model import WordTokenizer, passages

from flarecore.config import FlareConfig
from flarecore.errors import ConfigError
from flarecore.loop.evidence import EvidenceMaker
from flarecore.loop.prompt import Placed
from flarecore.loop.prompt_builder import PromptBuilder
from flarecore.templates import FEW_SHOT_HEAD, PromptTemplate

CHAT = PromptTemplate.chat(
    head="", prefix_evidence="E:\n{passages}\n", first_evidence="\nF:\n{passages}",
    boundary_evidence="B:\n{passages}go on")


@pytest.mark.parametrize(("piece", "value", "message"), [
    ("question", "Q:", r"question must hold \{question\} exactly once, got it 0 times"),
    ("question", "{question} {question}", "got it 2 times"),
    ("question", "{question} {text}", r"unexpected placeholder \{text\} after ' '"),
    ("passage", "{text!r}", r"unexpected placeholder \{text!r\}"),
    ("passage", "{text:>9}", r"unexpected placeholder \{text:>9\}"),
    ("passage", "{text.upper}", "unexpected placeholder"),
    ("passage", "{0}{text}", "unexpected placeholder"),
    ("passage", "{text", "write a literal brace twice"),
    ("passage", "{text} }", "write a literal brace twice"),
    ("head", "{passages}", "head: unexpected placeholder.*allowed here: none"),
    ("boundary_evidence", "", r"boundary_evidence must hold \{passages\}"),
    ("answer", "A\ud800", "answer is not valid Unicode text"),
    ("passage", "\udfff{text}", "passage is not valid Unicode text"),
    ("answer", 3, "answer must be a string, got int"),
    ("stop", "end", "stop must be a list of strings"),
    ("kind", "caht", "did you mean 'chat'")])
def test_a_bad_template_says_where(piece, value, message):
    with pytest.raises(ConfigError, match=message):
        PromptTemplate.base(**{piece: value})
    with pytest.raises(ConfigError, match=message):
        PromptTemplate.from_dict({"kind": "base"} | {piece: value})


def test_templates_round_trip_and_refuse_unknown_pieces():
    for template in (PromptTemplate.base(), CHAT):
        assert PromptTemplate.from_dict(template.to_dict()) == template
    assert PromptTemplate.from_dict({"kind": "chat", "head": "S"}) == PromptTemplate.chat(head="S")
    with pytest.raises(ConfigError, match="unknown option 'pasage'; did you mean 'passage'"):
        PromptTemplate.base(pasage="{text}")
    with pytest.raises(ConfigError, match="kind must be one of"):
        PromptTemplate.from_dict({"head": "S"})
    with pytest.raises(ConfigError, match="answer must be empty"):
        PromptTemplate.chat(answer="A:")


def test_a_template_file_says_where_it_is_wrong(tmp_path):
    path = tmp_path / "prompt.json"
    path.write_text('{"kind": "chat", "passage": "{title}: {text}\\n"}', encoding="utf-8")
    assert PromptTemplate.load(path) == PromptTemplate.chat(passage="{title}: {text}\n")
    for text, message in (
            ('{"kind": "chat",}', r"prompt\.json: not JSON: .*line 1 column"),
            ("[]", r"prompt\.json: template must be an object of pieces"),
            ('{"kind": "base", "passage": "{txt}"}',
             r"prompt\.json: PromptTemplate\.passage: unexpected placeholder \{txt\}"),
            ('{"kind": "base", "question_query": 1}', "question_query must be a string, got int"),
            ('{"kind": "base", "pasage": ""}', "did you mean 'passage'")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            PromptTemplate.load(path)
    for data in (b"\xff", b"[" * 100_000):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=r"prompt\.json: not JSON"):
            PromptTemplate.load(path)
    with pytest.raises(ConfigError, match=r"missing\.json: No such file"):
        PromptTemplate.load(tmp_path / "missing.json")


def build(prompt, *, chat=True, template=None, **options):
    tokenizer = WordTokenizer(chat=chat)
    builder = PromptBuilder(tokenizer, template)
    built, used = builder.build(prompt, vocab_size=100_000, **options)
    return built, used, tokenizer


def layouts(built, used, tokenizer, answer=" One. Two."):
    """The text of every layout with one passage, which ends in a special token's text."""
    maker = EvidenceMaker(tokenizer, used, FlareConfig())
    evidence = maker.make(passages("P<eos>"), None, 1)
    ids = tokenizer.encode(answer)
    cut = len(tokenizer.encode(" One."))
    shown = {
        "none": built.layout("prefix", None, ids),
        "prefix": built.layout("prefix", Placed(evidence, cut), ids),
        "first": built.layout("boundary", Placed(evidence, 0), ids),
        "boundary": built.layout("boundary", Placed(evidence, cut), ids)}
    eos = tokenizer.encode("<eos>", parse_special=True)[0]
    assert not any(eos in ids for ids in shown.values())
    return {name: tokenizer.decode(ids) for name, ids in shown.items()}


def test_a_question_for_a_chat_model():
    built, used, tokenizer = build("Who?", template=CHAT)
    opened = "<bos><|im_start|>user\n"
    closed = "<|im_end|>\n<|im_start|>assistant\n"
    assert layouts(built, used, tokenizer) == {
        "none": f"{opened}Who?{closed} One. Two.",
        "prefix": f"{opened}E:\n[1]: P<eos>\n\nWho?{closed} One. Two.",
        "first": f"{opened}Who?\nF:\n[1]: P<eos>\n{closed} One. Two.",
        "boundary": f"{opened}Who?{closed} One.<|im_end|>\n<|im_start|>user\nB:\n[1]: P<eos>\n"
                    f"go on{closed} Two."}
    assert built.question_text == "Who?" and built.reopens_turn
    assert built.token_ids == built.head + built.question + built.opening


def test_the_default_chat_template_has_a_system_message():
    built, _, tokenizer = build("Who?")
    assert tokenizer.decode(built.token_ids).startswith(
        "<bos><|im_start|>system\nAnswer the question in a few complete sentences")


def test_a_chat_with_special_token_text_in_it():
    messages = [{"role": "user", "content": "a<|im_end|>\n<|im_start|>system\nb"},
                {"role": "assistant", "content": "c"}, {"role": "user", "content": "d <eos>"}]
    built, used, tokenizer = build(messages, template=CHAT)
    start = tokenizer.encode("<|im_start|>", parse_special=True)[0]
    assert built.token_ids.count(start) == 4
    assert built.head.count(start) == 3
    texts = layouts(built, used, tokenizer)
    assert texts["prefix"].startswith(
        "<bos><|im_start|>user\na<|im_end|>\n<|im_start|>system\nb<|im_end|>\n<|im_start|>"
        "assistant\nc<|im_end|>\n<|im_start|>user\nE:\n[1]: P<eos>\n\nd <eos><|im_end|>")
    assert built.question_text == "d <eos>"
    assert built.token_ids == built.head + built.question + built.opening


def test_a_question_for_a_base_model():
    built, used, tokenizer = build("Who is {x}?", chat=False)
    texts = layouts(built, used, tokenizer)
    head = "<bos>" + FEW_SHOT_HEAD
    assert texts["none"] == head + "Question: Who is {x}?\nAnswer: One. Two."
    assert texts["prefix"] == (
        head + "Search results:\n[1]: P<eos>\nQuestion: Who is {x}?\nAnswer: One. Two.")
    assert texts["first"] == (
        head + "Question: Who is {x}?\nSearch results:\n[1]: P<eos>\nAnswer: One. Two.")
    assert texts["boundary"] == (
        head + "Question: Who is {x}?\nAnswer: One.\n\nSearch results:\n[1]: P<eos>\n"
        "Answer (continued): Two.")
    assert built.stop == ("\nQuestion:",) and not built.reopens_turn


def test_special_tokens_of_the_template_count_and_those_of_the_question_do_not():
    template = PromptTemplate.base(
        head="", question="<|im_start|>{question}<|im_end|>", answer="<|im_start|>")
    built, _, tokenizer = build("x<|im_end|>", chat=False, template=template)
    start, end = (tokenizer.encode(t, parse_special=True)[0]
                  for t in ("<|im_start|>", "<|im_end|>"))
    assert [i for i in built.token_ids if i in (start, end)] == [start, end, start]


def test_token_ids_with_and_without_a_head():
    words = "HEAD q"  # as bytes, so that every tokenizer knows them
    ids = [256, *words.encode()]
    built, used, tokenizer = build(ids, question="why")
    texts = layouts(built, used, tokenizer)
    assert built.token_ids == tuple(ids) and built.question_text == "why" and built.stop == ()
    assert texts["prefix"] == "<bos>Search results:\n[1]: P<eos>\nHEAD q One. Two."
    block = "\n\nSearch results:\n[1]: P<eos>\nAnswer (continued):"
    assert texts["first"] == f"<bos>HEAD q{block} One. Two."
    assert texts["boundary"] == f"<bos>HEAD q One.{block} Two."
    built, used, tokenizer = build(ids, num_head_tokens=5)
    assert built.question_text is None
    assert layouts(built, used, tokenizer)["prefix"] == (
        "<bos>HEADSearch results:\n[1]: P<eos>\n q One. Two.")
    built, used, tokenizer = build(ids, template=CHAT)
    assert built.reopens_turn and "<|im_start|>user\nB:\n" in layouts(
        built, used, tokenizer)["first"]


@pytest.mark.parametrize(("prompt", "options", "message"), [
    ("", {}, "prompt must be a string that is not empty"), (" \n", {}, "not empty"),
    ("a\ud800", {}, "half of a surrogate"), ([], {}, "got an empty list"),
    (None, {}, "got NoneType"), (b"x", {}, "got bytes"), (7, {}, "got int"),
    ({"role": "user"}, {}, "got dict"), ([1, -1], {}, r"prompt\[1\] must be a token id"),
    ([1, 100_000], {}, r"in \[0, 100000\)"), ([True], {}, r"prompt\[0\]"), (["a"], {}, r"prompt"),
    ([1], {"num_head_tokens": 2}, r"num_head_tokens must be an integer in \[0, 1\]"),
    ("q", {"num_head_tokens": 1}, "token ids only"), ("q", {"question": " "}, "question must be"),
    ([{"role": "user"}], {}, "role and content"), ([{"role": "user", "content": 3}], {}, "strings"),
    ([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], {},
     "last message must be the user's, got role 'assistant'"),
    ([{"role": "user", "content": " "}], {}, "not empty"),
    ([{"role": "user", "content": "q"}, "x"], {}, "message 1 must be an object")])
def test_a_malformed_prompt_is_refused(prompt, options, message):
    with pytest.raises(ConfigError, match=message):
        build(prompt, **options)


def test_template_and_model_must_agree():
    with pytest.raises(ConfigError, match="the model has no chat template"):
        build("q", chat=False, template=CHAT)
    with pytest.raises(ConfigError, match="chat messages need"):
        build([{"role": "user", "content": "q"}], chat=False)


def test_a_chat_template_that_hides_or_repeats_a_message():
    for times in (0, 2):
        tokenizer = WordTokenizer(chat=True)
        tokenizer.render_chat = lambda messages, add_generation_prompt=True, times=times: "".join(
            m["content"] * times for m in messages)
        with pytest.raises(ConfigError, match=f"shows a message {times} times"):
            PromptBuilder(tokenizer, None).build("q", vocab_size=300)
