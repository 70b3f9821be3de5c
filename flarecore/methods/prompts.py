"""Instructions with exemplars of the methods that need some, in this project's own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "FINAL_LABEL",
    "INTERMEDIATE_LABEL",
    "SUB_QUESTION_LABEL",
    "decomposition_head",
    "instruct_head",
    "marker_head",
]

SUB_QUESTION_LABEL = "Follow up:"
INTERMEDIATE_LABEL = "Intermediate answer:"
FINAL_LABEL = "So the answer is:"

_SEARCH = """\
First skill: looking things up. Where a fact is needed that you are not sure of, write \
[Search(what to look for)] just before the fact. Results are then shown to you.

Question: How tall is the spire of Ulm Minster?
Answer: The spire of Ulm Minster is [Search(Ulm Minster spire height)] 161.5 metres tall.

Question: Who wrote the opera Fidelio, and where was it first performed?
Answer: Fidelio was written by [Search(Fidelio opera composer)] Ludwig van Beethoven. It was first \
performed at [Search(Fidelio (opera) first performance)] the Theater an der Wien in Vienna.

Question: What do sea urchins eat?
Answer: Sea urchins feed mainly on [Search(sea urchin diet)] algae.

Second skill: answering questions step by step.

"""
_BOTH = """\
Now use both skills together: answer step by step, and look up what you are not sure of.

"""

_MARKER = """\
Where you are not sure of a fact, put a mark [UNCERTAIN: keywords to look it up] right before it. \
Sentences without doubt have no mark.

Question: Who designed the Eddystone lighthouse of 1759, and how tall was it?
Answer: The lighthouse was designed by John Smeaton. It was \
[UNCERTAIN: Smeaton Eddystone lighthouse height] 22 metres tall.

Question: Which planet has the moon Triton?
Answer: Triton is a moon of Neptune.

"""

_DECOMPOSITION = """\
Answer each question by way of smaller ones. Ask one follow up question at a time, answer it in \
one sentence, and end with the result.

Question: Which of the two rivers is longer, the Rhine or the Elbe?
Answer: Follow up: How long is the Rhine?
Intermediate answer: The Rhine is about 1,230 kilometres long.
Follow up: How long is the Elbe?
Intermediate answer: The Elbe is about 1,090 kilometres long.
So the answer is: the Rhine.

Question: In which country was the inventor of dynamite born?
Answer: Follow up: Who invented dynamite?
Intermediate answer: Dynamite was invented by Alfred Nobel.
Follow up: Where was Alfred Nobel born?
Intermediate answer: Alfred Nobel was born in Stockholm, the capital of Sweden.
So the answer is: Sweden.

Question: Did the composer of The Magic Flute reach the age of forty?
Answer: Follow up: Who composed The Magic Flute?
Intermediate answer: The Magic Flute was composed by Wolfgang Amadeus Mozart.
Follow up: How old was Wolfgang Amadeus Mozart when he died?
Intermediate answer: Mozart died in December 1791 at the age of thirty-five.
So the answer is: no.

"""


def instruct_head(task: str, own: Mapping[str, Any]) -> str:
    """The two blocks: how to look things up, then the task; and the word to do both."""
    return (own["instruction"] or _SEARCH) + _paragraph(task) + _BOTH


def marker_head(task: str, own: Mapping[str, Any]) -> str:
    """The task, then how to mark doubt in it."""
    return _paragraph(task) + (own["instruction"] or _MARKER)


def decomposition_head(task: str, own: Mapping[str, Any]) -> str:
    """Exemplars with sub-questions, instead of those of the task, which show no such lines."""
    return str(own["instruction"] or _DECOMPOSITION)


def _paragraph(text: str) -> str:
    """A text with a blank line after it."""
    return text.rstrip("\n") + "\n\n" if text.strip() else ""
