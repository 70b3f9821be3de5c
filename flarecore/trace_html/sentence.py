"""A sentence's card: draft, search, rewritten sentence, what was accepted, what it cost."""

from __future__ import annotations

from flarecore.trace import PassTrace, SentenceTrace
from flarecore.trace_html.bars import Segment, bar, count, percent, seconds
from flarecore.trace_html.facts import Settings, rounds, used_passages
from flarecore.trace_html.markup import Markup, language, tag
from flarecore.trace_html.searches import Words, marked, search_step, step
from flarecore.trace_html.tokens import difference, pass_tokens

__all__ = [
    "OUTCOMES",
    "outcome_of",
    "passes_of",
    "reason",
    "sentence_card",
    "time_segments",
    "token_segments",
]

# outcome -> (sign, words)
OUTCOMES = {
    "draft": ("✓", "accepted as drafted"),
    "unsupported": ("!", "accepted without support"),
    "regenerated": ("↻", "written again with evidence"),
    "unchanged": ("=", "written again with evidence, unchanged"),
    "omitted": ("∅", "left out"),
    "nothing": ("■", "no sentence: the answer ended"),
}
_REASONS = {
    "sentence": "the sentence was complete",
    "eos": "the model ended the answer",
    "stop_string": "a stop string came",
    "max_tokens": "the limit of tokens was reached",
    "max_draft_tokens": "cut at the longest draft allowed",
    "max_new_tokens": "the limit of tokens was reached",
    "max_sentences": "the limit of sentences was reached",
    "context_length": "the model's context was full",
    "low_confidence": "stopped at a token below θ",
    "call": "a search call",
    "line": "end of the line",
    "final_answer": "the final answer was given",
    "deadline": "the deadline passed",
    "no_evidence": "no evidence was found",
    "no_progress": "the engine wrote nothing",
    "error": "an error ended it",
    "cancelled": "it was cancelled",
}


def reason(stop_reason: str) -> str:
    """A stop reason in words, with its name."""
    words = _REASONS.get(stop_reason)
    return stop_reason if words is None else f"{words} ({stop_reason})"


def outcome_of(sentence: SentenceTrace) -> str:
    """A key of :data:`OUTCOMES`, or an outcome that is not known here."""
    if sentence.outcome == "draft" and sentence.unsupported_because is not None:
        return "unsupported"
    if sentence.outcome == "regenerated" and sentence.regenerations \
            and sentence.regenerations[-1].token_ids == sentence.draft.token_ids:
        return "unchanged"
    return sentence.outcome


def time_segments(sentence: SentenceTrace) -> list[Segment]:
    """The sentence's time by phase."""
    times = (
        ("draft", sentence.draft.time_ms + _completion_ms(sentence, "draft")),
        ("query", sentence.query_ms),
        ("retrieve", sum(r.time_ms for r in sentence.retrievals)),
        ("regenerate", sum(p.time_ms for p in sentence.regenerations)
         + _completion_ms(sentence, "regenerate")))
    return [Segment(name, ms, f"{name} {seconds(ms)}") for name, ms in times
            if name != "query" or sentence.asked]


def _completion_ms(sentence: SentenceTrace, phase: str) -> float:
    """Time of the pass that wrote the sentence to its end, if it belongs to that phase."""
    own = "regenerate" if sentence.regenerations else "draft"
    return sentence.completion.time_ms if sentence.completion and phase == own else 0.0


def passes_of(sentence: SentenceTrace) -> list[PassTrace]:
    """All passes over a sentence."""
    completion = () if sentence.completion is None else (sentence.completion,)
    return [sentence.draft, *sentence.regenerations, *completion]


def token_segments(*passes: PassTrace) -> list[Segment]:
    """Tokens of passes by what they cost; accepted proposals apart from the other decoded ones."""
    accepted = sum(p.num_accepted for p in passes)
    parts = (
        ("reused", "reused", sum(p.num_reused for p in passes)),
        ("prefilled", "prefilled", sum(p.num_prefilled for p in passes)),
        ("decoded", "decoded one by one", sum(p.num_decoded for p in passes) - accepted),
        ("accepted", "accepted from a proposal", accepted))
    return [Segment(kind, n, f"{count(n)} {words}") for kind, words, n in parts]


def sentence_card(
    sentence: SentenceTrace, anchor: str, settings: Settings, longest_ms: float, most_tokens: int
) -> Markup:
    """The card.

    Parameters
    ----------
    sentence : SentenceTrace
        The sentence.
    anchor : str
        Its id on the page.
    settings : Settings
        Of the answer.
    longest_ms, most_tokens : float, int
        What fills the bars: the longest time and most tokens of the answer's sentences.
    """
    outcome = outcome_of(sentence)
    sign, words = OUTCOMES.get(outcome, ("?", outcome))
    name = f"Sentence {sentence.index + 1}"
    heading = tag(
        "h3", tag("a", name, href=f"#{anchor}"), " ",
        tag("span", tag("span", sign, cls="sign", aria_hidden="true"), " ", words,
            cls=f"badge o-{outcome}" if outcome in OUTCOMES else "badge"))
    found = rounds(sentence)
    masks = [search.kept for search, _ in found] + [None]
    steps = [_draft_step(sentence.draft, masks[0], settings)]
    if sentence.asked:
        steps.append(_asked_step(sentence))
    before = sentence.draft
    for (search, after), mask in zip(found, masks[1:], strict=True):
        words_used = None if after is None else Words(after.text, before.text)
        steps.append(search_step(search, settings.scope, words_used))
        if after is not None:
            steps.append(_rewrite_step(before, after, mask, is_first=before is sentence.draft))
            before = after
    if sentence.completion is not None:
        steps.append(_rest_step(sentence.completion))
        before = sentence.completion
    steps.append(_accepted_step(sentence, before))
    layout = "wide" if len(found) == 1 else ""
    return tag("li", tag("header", heading, _costs(sentence, longest_ms, most_tokens)),
               tag("div", steps, cls=f"steps {layout}".strip()),
               cls="sentence" + (" plain" if not found else ""), id=anchor)


def _costs(sentence: SentenceTrace, longest_ms: float, most_tokens: int) -> Markup:
    """Two bars: time by phase, tokens by kind."""
    times = time_segments(sentence)
    tokens = token_segments(*passes_of(sentence))
    total_ms = sum(s.value for s in times)
    total_tokens = int(sum(s.value for s in tokens))
    return tag(
        "div", bar(times, longest_ms), tag("span", seconds(total_ms)),
        bar(tokens, most_tokens), tag("span", count(total_tokens, "token")), cls="costs")


def _pass_cost(trace: PassTrace) -> str:
    return " · ".join([
        seconds(trace.time_ms), f"{count(trace.num_reused)} reused",
        f"{count(trace.num_prefilled)} prefilled", f"{count(trace.num_decoded)} decoded"])


def _draft_step(
    draft: PassTrace, kept: tuple[bool, ...] | None, settings: Settings
) -> Markup:
    text = pass_tokens(draft, kept) if draft.tokens else tag("p", "(no token)", cls="note")
    notes = [_trigger_note(draft, settings)]
    if draft.passage_ids:
        notes.append(f"{count(len(draft.passage_ids), 'passage')} in view")
    notes.append(f"ended: {reason(draft.stop_reason)}")
    return step("draft", "Draft", _pass_cost(draft), text,
                tag("p", _sentence_case("; ".join(notes)), ".", cls="note"))


def _trigger_note(draft: PassTrace, settings: Settings) -> str:
    """Why the draft was looked up or not."""
    if draft.triggered is None:
        return "the trigger was not asked"
    if draft.rule is not None:
        found = f"“{draft.rule.text}”" if draft.rule.text else draft.rule.entry
        verdict = "needs evidence" if draft.triggered else "needs no evidence"
        return f"{verdict} ({draft.rule.name}: {found})"
    counting = [p for p, low in zip(draft.probs, draft.low, strict=True) if low]
    if draft.triggered and counting:
        return f"lowest confidence {min(counting):.3g}, below θ{settings.equals_theta}: " \
               "needs evidence"
    if draft.triggered:
        return f"needs evidence (trigger: {settings.trigger})"
    lowest = min(draft.probs, default=None)
    if lowest is None or settings.theta is None or settings.trigger != "min":
        return f"needs no evidence (trigger: {settings.trigger})"
    if lowest < settings.theta:
        return f"below θ{settings.equals_theta} is only what may not trigger: needs no evidence"
    return f"lowest confidence {lowest:.3g}, not below θ{settings.equals_theta}: " \
           "needs no evidence"


def _asked_step(sentence: SentenceTrace) -> Markup:
    """What the model was asked to write as queries, and what it wrote."""
    cost = f"{seconds(sentence.query_ms)} · " \
        f"{count(sum(a.num_prefilled for a in sentence.asked))} prefilled · " \
        f"{count(sum(a.num_decoded for a in sentence.asked))} decoded"
    rows = []
    for asked in sentence.asked:
        about = "keywords" if asked.purpose == "keywords" else f"for “{asked.span}”"
        text = tag("span" if asked.is_used else "s", asked.text.strip() or "(nothing)")
        rows.append(tag("p", f"{about}: ", text, None if asked.is_used else ", not used",
                        cls="note asked", dir="auto"))
    return step("asked", "Queries by the model", cost, rows)


def _rest_step(rest: PassTrace) -> Markup:
    """The sentence written to its end after it had stopped at a low token."""
    return step("draft", "Written to its end", _pass_cost(rest),
                tag("p", rest.text.strip(), dir="auto", lang=language(rest.text)))


def _rewrite_step(
    before: PassTrace, after: PassTrace, next_kept: tuple[bool, ...] | None, *, is_first: bool
) -> Markup:
    """The difference; with the tokens one by one where another search asked with them."""
    changed = difference(before, after)
    compared = "the draft" if is_first else "the sentence before"
    numbers = (f"{count(changed.num_kept, 'token')} kept, {count(changed.num_removed)} removed, "
               f"{count(changed.num_new)} new") if changed.num_removed or changed.num_new \
        else f"the same {count(changed.num_kept, 'token')}"
    note = f"Against {compared}: {numbers}; ended: {reason(after.stop_reason)}."
    return step("rewrite", "Rewrite", _pass_cost(after), changed.markup,
                None if next_kept is None else pass_tokens(after, next_kept),
                tag("p", note, cls="note"), _proposal(after))


def _proposal(trace: PassTrace) -> Markup | None:
    """How much of what was proposed turned out right."""
    right, proposed = trace.num_accepted, trace.num_proposed
    if proposed <= 0:
        return None
    label = f"{count(right)} of {count(proposed, 'proposed token')} right " \
            f"({percent(right, proposed)})"
    return tag("p", bar([Segment("accepted", right, label)], proposed, cls="small"), " ", label,
               cls="note proposal")


def _accepted_step(sentence: SentenceTrace, last: PassTrace) -> Markup:
    """What the answer grew by, words that the passages in view have marked."""
    if sentence.outcome == "nothing":
        return step("accepted", "Result", "",
                    tag("p", "Nothing was added; ", reason(sentence.stop_reason), ".", cls="note"))
    if sentence.outcome == "omitted":
        return step("accepted", "Result", "", tag("p", "Left out of the answer.", cls="note warn"))
    text = sentence.text.strip()
    search = next((s for s, after in rounds(sentence) if after is last), None)
    shown = tag("span", "(its text comes with the next sentence)", cls="note") if not text \
        else text if search is None \
        else marked(text, Words(used_passages(search), sentence.draft.text))
    notes = [count(len(sentence.token_ids), "token"), *_remarks(sentence, last)]
    return step("accepted", "Accepted", "",
                tag("p", shown, cls="final", dir="auto", lang=language(text)),
                tag("p", "; ".join(notes), ".", cls="note"))


def _remarks(sentence: SentenceTrace, last: PassTrace) -> list[str]:
    remarks = []
    if sentence.unsupported_because is not None:
        because = sentence.unsupported_because.replace("_", " ")
        remarks.append(f"still unsure, no further search: {because}"
                       if sentence.outcome == "regenerated" else f"unsupported: {because}")
    if sentence.stop_reason != last.stop_reason:
        remarks.append(f"ended: {reason(sentence.stop_reason)}")
    return remarks


def _sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]
