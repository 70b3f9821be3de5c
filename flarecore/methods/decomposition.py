"""Question decomposition: the model asks itself sub-questions, and each is searched.

In the style of self-ask (Press et al. 2022), as the paper's baseline (section 4.1). The answer is
written line by line, and opened with the label of a first sub-question. A line that begins with
the label of a sub-question is searched and kept out of the text, though the model still sees it;
what follows it is the intermediate answer, written with the passages in view. The line with the
final answer ends the answer.
"""

from __future__ import annotations

import dataclasses

from flarecore.loop.answer_setup import AnswerSetup
from flarecore.loop.candidate import Candidate
from flarecore.loop.effects import Steps
from flarecore.loop.prompt import View
from flarecore.loop.recorder import Pass, SentenceStep
from flarecore.methods.pieces import PieceLoop, ended
from flarecore.methods.prompts import FINAL_LABEL, INTERMEDIATE_LABEL, SUB_QUESTION_LABEL

__all__ = ["DecompositionLoop", "asks_sub_question"]

_MAX_BLANK_LINES = 2


def asks_sub_question(candidate: Candidate) -> bool:
    """The trigger: the line is a sub-question."""
    return _sub_question(candidate.text) is not None


def _sub_question(line: str) -> str | None:
    """What follows the label, also where it is there twice; None without one."""
    line, label = line.strip(), SUB_QUESTION_LABEL.casefold()
    if not line.casefold().startswith(label):
        return None
    while line.casefold().startswith(label):
        line = line[len(label):].strip()
    return line


def _is_final(line: str) -> bool:
    label = FINAL_LABEL.rstrip(":").casefold()
    return line.strip()[:len(label)].casefold() == label


class DecompositionLoop(PieceLoop):
    """Writes sub-questions, intermediate answers and the final answer.

    Parameters
    ----------
    setup : AnswerSetup
        Engine, options and request.
    max_questions : int
        After so many sub-questions, or one that was asked before, the final answer's line is begun
        for the model.
    """

    def __init__(self, setup: AnswerSetup, max_questions: int) -> None:
        super().__init__(setup)
        self._max_questions = max_questions
        self._questions: list[str] = []
        self._must_close = False
        # What stands between the answer so far and the next line, and whether that line may be a
        # sub-question.
        self._lead = self._first_label()
        self._may_ask = True
        self._lead_ids: list[int] = []

    def _write_sentence(self) -> Steps[str | None]:
        self._lead_ids = self._encoded(self._lead)
        # What is written for the model counts as well: it takes the same room.
        left = self._config.max_new_tokens - self._num_new - len(self._lead_ids)
        cap = min(self._config.max_draft_tokens, left)
        if cap < 1:
            return "max_new_tokens"
        view = self._decode.fit(self._placed, [*self._answer, *self._lead_ids], cap)
        if view.max_tokens < 1:
            return "context_length"
        self._placed = view.placed
        step = yield from self._begin(view, self._line(view))
        line = step.draft
        text = self._lead + line.candidate.text
        question = _sub_question(text) if self._may_ask else None
        if question is not None and not line.is_empty:
            return (yield from self._look_up(step, question))
        self._kept = ((*self._lead_ids, *line.candidate.token_ids),
                      self._lead.encode() + line.text_bytes)
        self._num_new += len(self._lead_ids)
        ends_line = line.candidate.stop_reason == "line"
        self._num_whole += ends_line
        self._lead, self._may_ask = ("\n", True) if ends_line else ("", False)
        if ends_line and self._must_close:
            self._lead, self._may_ask = f"\n{FINAL_LABEL}", False
        reason = yield from self._end_sentence(step, "accept")
        return reason or ("final_answer" if ends_line and _is_final(text) else None)

    def _line(self, view: View) -> Steps[Pass]:
        """Writes up to the end of the line; the answer's stop strings are looked for in its text.

        A few blank lines are passed over.
        """
        newline = self._encoded("\n")
        for num_blank in range(_MAX_BLANK_LINES + 1):
            blank = newline * num_blank
            room = view.max_tokens - len(blank)
            line = yield from self._more(
                dataclasses.replace(
                    view, token_ids=[*view.token_ids, *blank], max_tokens=room), None,
                until="eos", stop=("\n",))
            is_blank = line.is_empty and line.candidate.stop_reason == "stop_string"
            if not is_blank or room <= len(newline):
                break
        self._lead += "\n" * num_blank
        self._lead_ids += blank
        if line.candidate.stop_reason == "stop_string":
            line = ended(line, "line")
        is_asked = self._may_ask and _sub_question(self._lead + line.candidate.text) is not None
        return dataclasses.replace(
            line, trace=dataclasses.replace(line.trace, triggered=is_asked))

    def _first_label(self) -> str:
        """The label of the first sub-question, as it follows the prompt."""
        last = self._setup.engine.tokenizer.token_bytes(self._setup.prompt.token_ids[-1])
        # White space (a base template may end in it) or what opens a turn in a chat.
        joins = last[-1:].isspace() or self._setup.prompt.reopens_turn
        return SUB_QUESTION_LABEL if joins else f" {SUB_QUESTION_LABEL}"

    def _encoded(self, text: str) -> list[int]:
        return self._setup.engine.tokenizer.encode(text) if text else []

    def _look_up(self, step: SentenceStep, question: str) -> Steps[str | None]:
        """Searches a sub-question, and opens its intermediate answer."""
        known = question.casefold()
        if known in self._questions or len(self._questions) + 1 >= self._max_questions:
            self._must_close = True
        self._questions.append(known)
        query = self._queries.from_text(question, "sub_question")
        verdict = yield from self._search(step, query)
        label = self._encoded(f"\n{INTERMEDIATE_LABEL}")
        self._kept = (*self._lead_ids, *step.draft.candidate.token_ids, *label), b""
        self._num_new += len(self._lead_ids) + len(label)
        if step.draft.candidate.stop_reason == "eos":
            # The question is asked: its answer follows, also where the model would end its turn.
            step.current = ended(step.draft, "line")
        self._lead, self._may_ask = "", False
        return (yield from self._end_sentence(step, "omit" if verdict == "accept" else verdict))
