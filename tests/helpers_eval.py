"""A small world of our own for evaluations: questions, passages, scripted answers."""

from __future__ import annotations

import json
from pathlib import Path

from scripted_model import Say, ScriptedEngine, ScriptedRetriever
from test_controller import PAPER

from flarecore.config import FlareConfig
from flarecore.eval.dataset import Question
from flarecore.eval.record import make_record
from flarecore.flare import Flare
from flarecore.retrieval.passage import Passage

PASSAGES = [
    {"id": "p1", "title": "Marrow Point", "text": "The lighthouse of Marrow Point was built by "
                                                  "Tobias Renfell in 1871."},
    {"id": "p2", "title": "Tobias Renfell", "text": "Tobias Renfell was born in Stromness."},
    {"id": "p3", "title": "Ilse Marwede", "text": "Ilse Marwede was born in Husum in 1931."},
]
QUESTIONS = [
    {"id": "q1", "question": "Who built the lighthouse of Marrow Point?",
     "answers": ["Tobias Renfell"], "gold_titles": ["Marrow Point"]},
    {"id": "q2", "question": "Where was the builder of the lighthouse of Marrow Point born?",
     "answers": ["Stromness"], "type": "compositional",
     "gold_titles": ["Marrow Point", "Tobias Renfell"]},
    {"id": "q3", "question": "When was Ilse Marwede born?", "answers": ["1931", "in 1931"],
     "gold_ids": ["p3"]},
]


def write_data(folder: Path, prefix: str = "") -> Path:
    """The world as files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("queries", QUESTIONS), ("corpus", PASSAGES)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{prefix}{name}.jsonl").write_text(text, encoding="utf-8")
    return folder


def question(name: str) -> Question:
    row = next(q for q in QUESTIONS if q["id"] == name)
    return Question(
        id=row["id"], text=row["question"], answers=tuple(row["answers"]),
        gold_titles=tuple(row.get("gold_titles", ())), gold_ids=tuple(row.get("gold_ids", ())))


def passages(*names: str) -> list[Passage]:
    return [Passage(p["id"], p["text"], p["title"], 1.0) for p in PASSAGES if p["id"] in names]


def record(name: str, text: str, *, found: tuple[str, ...] = (), low: dict | None = None,
           rewritten: str | None = None, **options):
    """An answer of one sentence that a scripted model gives; `found` is what a search returns."""
    def script(context: str, pass_index: int) -> Say:
        if pass_index:
            return Say(rewritten if rewritten is not None else text, stop="eos")
        return Say(text, low=low or {}, stop="eos")

    retriever = ScriptedRetriever(*[passages(*found)] * 4) if found else None
    config = {"template": PAPER, "theta": .5, "initial_retrieval": bool(found)} | options
    if not found:
        config["gate"] = "never"
    asked = question(name)
    result = Flare(ScriptedEngine(script), retriever, FlareConfig(**config)).generate(asked.text)
    return make_record(asked, result, language="en", settings_hash="h" * 16, wall_ms=5.0,
                       num_parallel=1)
