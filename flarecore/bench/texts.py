"""Text to measure on: the documentation that every Python carries, or a file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from flarecore.errors import ConfigError
from flarecore.tokenizer import Tokenizer
from flarecore.wording import system_reason

__all__ = ["PROMPTS", "context_ids", "read_text", "text_name"]

PROMPTS = (
    "The lighthouse keeper climbed the stairs every evening because",
    "In the early nineteenth century, the first railways were built to",
    "Water boils at a lower temperature on a mountain. The reason is that",
    "def count_words(text):\n    \"\"\"Return how often each word occurs.\"\"\"\n",
    "The capital of France is Paris, and the capital of Italy is",
    "To bake a simple loaf of bread you need flour, water, salt and",
    "Photosynthesis is the process by which plants",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    "Once upon a time, in a village at the edge of a forest, there lived",
    "The three largest oceans of the world are",
    "A binary search repeatedly halves the range in which",
    "The novel tells the story of two sisters who",
    "Most birds migrate in autumn. They find their way by",
    "SELECT name, price FROM products WHERE",
    "The Roman Empire reached its greatest extent under",
    "My grandmother's garden was full of",
    "An electric motor turns electrical energy into",
    "The committee met on Tuesday to discuss",
    "If a train leaves the station at noon and travels at 80 kilometres per hour, then after",
    "Marie Curie was born in Warsaw in 1867. She",
)


def read_text(source: Path | None) -> str:
    """The text of a file, or Python's own documentation of its language.

    Parameters
    ----------
    source : Path or None
        A text file, or ``.jsonl`` with ``title`` and ``text`` a line. None: ``pydoc_data.topics``.

    Raises
    ------
    ConfigError
        The file cannot be read, or this Python has no documentation.
    """
    if source is None:
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise ConfigError("this Python has no pydoc_data; name a text: --text FILE") from None
        return "\n\n".join(topics[name] for name in sorted(topics))
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text {source}: {system_reason(error)}") from error
    if source.suffix != ".jsonl":
        return text
    try:
        records = [json.loads(line) for line in text.splitlines() if line.strip()]
        return "\n\n".join(f"{r.get('title', '')}\n{r['text']}".strip() for r in records)
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"--text {source}: a line without \"text\": {error}") from error


def text_name(source: Path | None, text: str) -> str:
    """Which text it was: its name and the start of its checksum."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{source.name if source else 'pydoc_data.topics'} (sha256 {digest})"


def context_ids(
    tokenizer: Tokenizer, text_ids: list[int], num_tokens: int, number: int = 0
) -> list[int]:
    """A context of exactly so many tokens, another one for each `number`.

    Parameters
    ----------
    tokenizer : Tokenizer
        Decides whether a beginning-of-text token comes first.
    text_ids : list of int
        Tokens of the text; read in a circle.
    num_tokens : int
        At least 2.
    number : int
        From 0; contexts of different numbers begin at different places.
    """
    bos = tokenizer.bos_token_id
    head = [bos] if tokenizer.adds_bos and bos is not None else []
    start = (number * 997) % len(text_ids)
    needed = num_tokens - len(head)
    body = [text_ids[(start + i) % len(text_ids)] for i in range(needed)]
    return [*head, *body]
