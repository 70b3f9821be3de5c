"""A search on the page: the query and what came back, used words marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flarecore.trace import PassageTrace, RetrievalTrace
from flarecore.trace_html.bars import count, seconds
from flarecore.trace_html.markup import Markup, join, language, tag
from flarecore.wording import content_words, excerpt, filter_words, used_spans

__all__ = ["Words", "marked", "search_step", "step"]

# Longer passages are shown by an excerpt that opens.
_WHOLE_CHARS = 420
_EXCERPT_CHARS = 320
_SOURCES = {
    "question": "the question",
    "mask": "the draft without its struck tokens",
    "sentence": "the whole draft",
    "questions": "questions that the model wrote",
    "keywords": "keywords that the model wrote",
    "callable": "made by the application",
    "previous_sentence": "the sentence before",
    "previous_window": "the tokens before",
    "sub_question": "a question that the model asked itself",
    "call": "a search that the model called for",
}


class Words:
    """Content words of a text that are marked in others.

    Parameters
    ----------
    used : str
        The text that used them.
    known : str
        What was there before (the draft): words that are not in it count as new.
    """

    def __init__(self, used: str, known: str = "") -> None:
        self.used = content_words([used])
        self.new = self.used - content_words([known]) if known else self.used


def marked(text: str, words: Words, begin: int = 0, end: int | None = None) -> Markup:
    """``text[begin:end]`` with the words in ``<mark>``, the new ones with class ``new``."""
    end = len(text) if end is None else end
    fresh = [span for span in used_spans(text, words.new) if begin <= span[0] and span[1] <= end]
    parts: list[str | Markup | None] = []
    at, number = begin, 0
    for left, right in used_spans(text, words.used):
        if left < begin or right > end:
            continue
        parts.append(text[at:left])
        at = left
        # New words are among the used ones: both lists ascend, so one pass over each will do.
        while number < len(fresh) and fresh[number][1] <= right:
            i, j = fresh[number]
            number += 1
            if left <= i:
                parts += [tag("mark", text[at:i]) if at < i else None,
                          tag("mark", text[i:j], cls="new")]
                at = j
        parts.append(tag("mark", text[at:right]) if at < right else None)
        at = right
    return join(parts, text[at:end])


def step(name: str, title: str, cost: str, *body: Markup | list[Markup] | None) -> Markup:
    """One step of a sentence: a heading with what it cost, and what happened."""
    heading = tag("h4", tag("span", title), tag("span", cost, cls="cost"))
    return tag("section", heading, body, cls=f"step {name}")


def search_step(search: RetrievalTrace, scope: str | None, words: Words | None) -> Markup:
    """A search: query, conditions, passages with the words that the sentence uses."""
    used = sum(1 for p in search.passages if p.num_tokens > 0)
    cost = " · ".join([seconds(search.time_ms),
                       count(search.num_evidence_tokens, "token") + " of evidence"])
    source = _SOURCES.get(search.query_source, search.query_source)
    if search.query_source == "question" and search.kept is not None:
        source = "the question, since nothing of the draft was left"
    found = tag("ol", [_passage(p, words) for p in search.passages], cls="passages") \
        if search.passages else tag("p", "Nothing was found.", cls="note warn")
    note = None
    if search.passages and not used:
        note = tag("p", "None of the passages could be used.", cls="note warn")
    if search.is_unchanged:
        note = tag("p", "The sentence had these very passages in view already.", cls="note")
    return step(
        "search", "Search", cost,
        [tag("p", _query(query, scope), cls="query", dir="auto", lang=language(query))
         for query in search.queries],
        tag("p", "query: ", source, _conditions(search.filter), cls="note"),
        found, note)


def _query(query: str, scope: str | None) -> Markup:
    if scope and query.startswith(scope):
        return join(tag("span", scope, cls="scope", title="scope: put before every query"),
                    query[len(scope):])
    return join(query)


def _conditions(filter: Mapping[str, Any] | None) -> Markup | None:
    if not filter:
        return None
    return join("; only where ", tag("b", filter_words(filter)))


def _passage(passage: PassageTrace, words: Words | None) -> Markup:
    is_used = passage.num_tokens > 0
    head = tag(
        "header",
        tag("span", f"{passage.score:.3f}", cls="score", title=f"score {passage.score!r}"),
        tag("b", passage.title or passage.id, dir="auto", lang=language(passage.title)),
        tag("span", join(passage.id, " · ") if passage.title and passage.id else None,
            count(passage.num_tokens, "token") if is_used
            else "not used (score, duplicate or no room)", cls="id"))
    marks = words if is_used else None
    return tag("li", head, _text(passage.text, marks), cls=None if is_used else "unused",
               lang=language(passage.text))


def _text(text: str, words: Words | None) -> Markup:
    """The passage, or an excerpt that opens to the whole."""
    words = words or Words("")
    if len(text) <= _WHOLE_CHARS:
        return tag("p", marked(text, words), dir="auto")
    begin, end = excerpt(text, words.used, _EXCERPT_CHARS)
    shown = tag("span", "… " if begin else None, marked(text, words, begin, end), " …"
                if end < len(text) else None, cls="excerpt")
    more = tag("span", f"all {len(text):,} characters", cls="more")
    return tag("details", tag("summary", shown, " ", more, dir="auto"),
               tag("p", marked(text, words), dir="auto"))
