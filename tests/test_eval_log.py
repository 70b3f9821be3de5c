"""Answers on disk: going on after a kill, refusing other settings, damaged files."""

import dataclasses
import json

import pytest
from helpers_eval import record

from flarecore.errors import ConfigError
from flarecore.eval.answer_log import AnswerLog, read_records, settings_hash
from flarecore.trace_file import read_traces

SETTINGS = {"method": "flare", "config": {"theta": 0.8, "k": 2}}


def made(log, name="q1"):
    return dataclasses.replace(
        record(name, "So the answer is Rome."), settings_hash=log.hash)


def test_records_come_back(tmp_path):
    file = tmp_path / "answers" / "flare.jsonl"
    with AnswerLog(file, SETTINGS) as log:
        first = made(log)
        log.append(first)
    with AnswerLog(file, dict(reversed(SETTINGS.items()))) as log:
        assert log.records == {"q1": first}
        log.append(made(log, "q2"))
    settings, records = read_records(file)
    assert settings == SETTINGS and [r.id for r in records] == ["q1", "q2"]
    # The same file is one of traces.
    assert len(read_traces(file.read_bytes(), "file")) == 2


def test_every_torn_end_is_cut_off(tmp_path):
    file = tmp_path / "flare.jsonl"
    with AnswerLog(file, SETTINGS) as log:
        log.append(made(log))
        whole = file.stat().st_size
        log.append(made(log, "q2"))
    data = file.read_bytes()
    for size in (whole, whole + 1, whole + 40, len(data) - 1):
        file.write_bytes(data[:size])
        assert [r.id for r in read_records(file)[1]] == ["q1"]
        with AnswerLog(file, SETTINGS) as log:
            assert list(log.records) == ["q1"]
            assert file.stat().st_size == whole
            log.append(made(log, "q2"))
        assert [r.id for r in read_records(file)[1]] == ["q1", "q2"]


def test_other_settings_are_named(tmp_path):
    file = tmp_path / "flare.jsonl"
    with AnswerLog(file, SETTINGS) as log:
        log.append(made(log))
    before = file.read_bytes()
    other = {"method": "flare", "config": {"theta": 0.6, "k": 2}, "seed": 1}
    with pytest.raises(ConfigError, match=r"config.theta: was 0.8, is 0.6; seed: was null, is 1"), \
            AnswerLog(file, other):
        pass
    assert file.read_bytes() == before
    file.with_suffix(".json").unlink()
    with pytest.raises(ConfigError, match=r"settings flare\.json are gone"), \
            AnswerLog(file, SETTINGS):
        pass


def test_damaged_lines_are_refused_by_line(tmp_path):
    file = tmp_path / "flare.jsonl"
    with AnswerLog(file, SETTINGS) as log:
        log.append(made(log))
    good = file.read_text()
    row = json.loads(good)
    bad = {
        "not valid JSON": "{\n",
        "must be a JSON object": "[]\n",
        "field 'id' is missing": json.dumps({k: v for k, v in row.items() if k != "id"}) + "\n",
        "em must be of type float": json.dumps(row | {"em": "1"}) + "\n",
        "a second time": good,
        "other settings": json.dumps(row | {"settings_hash": "0" * 16, "id": "q9"}) + "\n",
    }
    for message, line in bad.items():
        file.write_text(good + line)
        with pytest.raises(ConfigError, match=f"line 2.*{message}"):
            read_records(file)
    file.write_bytes(good.encode() + b"\xff\n")
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        read_records(file)


def test_one_process_at_a_time(tmp_path):
    file = tmp_path / "flare.jsonl"
    with AnswerLog(file, SETTINGS) as log:
        with pytest.raises(ConfigError, match="another evaluation"), AnswerLog(file, SETTINGS):
            pass
        log.append(made(log))
    with AnswerLog(file, SETTINGS) as log:
        assert list(log.records) == ["q1"]


def test_the_hash_depends_on_values_only():
    assert settings_hash({"a": 1, "b": [2]}) == settings_hash({"b": [2], "a": 1})
    assert settings_hash({"a": 1}) != settings_hash({"a": 2})
