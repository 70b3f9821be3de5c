"""An answer on the page: the text, the totals, every sentence, the options."""

from __future__ import annotations

from flarecore.trace import RetrievalTrace, Trace
from flarecore.trace_html.bars import Segment, bar, count, percent, seconds
from flarecore.trace_html.facts import Settings, check_trace, shown_value, words_found
from flarecore.trace_html.markup import Markup, join, language, tag
from flarecore.trace_html.phases import phase_table, timeline
from flarecore.trace_html.searches import Words, search_step
from flarecore.trace_html.sentence import (
    OUTCOMES,
    outcome_of,
    passes_of,
    reason,
    sentence_card,
    time_segments,
    token_segments,
)
from flarecore.trace_html.tokens import NUM_LEVELS
from flarecore.wording import placement_words

__all__ = ["answer_body", "heading_of"]

_MANY = 12


def heading_of(trace: Trace) -> str:
    """The question on one line."""
    return " ".join((trace.question or "").split()) or "(the prompt was given as tokens)"


def answer_body(trace: Trace, anchor: str) -> Markup:
    """Everything of an answer below its question.

    Raises
    ------
    ConfigError
        The trace contradicts itself.
    """
    check_trace(trace)
    settings = Settings.of(trace)
    longest_ms = max((sum(part.value for part in time_segments(s)) for s in trace.sentences),
                     default=0.0)
    most_tokens = max((int(sum(part.value for part in token_segments(*passes_of(s))))
                       for s in trace.sentences), default=0)
    cards = [sentence_card(s, f"{anchor}s{s.index + 1}", settings, longest_ms, most_tokens)
             for s in trace.sentences]
    # Many cards are laid out only where they are looked at.
    lazy = "sentences lazy" if len(cards) > _MANY else "sentences"
    return join(
        _facts(trace, settings), _reading(trace, anchor), _tiles(trace), phase_table(trace),
        timeline(trace, anchor),
        tag("section", tag("h3", "Sentence by sentence", cls="section"), _legend(settings),
            _initial(trace, settings, longest_ms), tag("ol", cards, cls=lazy), cls="log"),
        _options(trace))


def _facts(trace: Trace, settings: Settings) -> Markup:
    """Model and rules in one line."""
    parts = [("model", trace.model)]
    if trace.method != "flare":
        parts.append(("method", trace.method))
        parts += [(name, shown_value(value)) for name, value in trace.method_options.items()
                  if value is not None]
    parts += [(sign, f"{value:g}") for sign, value in
              (("θ", settings.theta), ("β", settings.beta)) if value is not None]
    parts.append(("placement", placement_words(trace.placement, trace.is_approximate)))
    parts += [(name, shown_value(trace.config[name]))
              for name in ("k", "draft_context") if name in trace.config]
    if trace.scope is not None:
        parts.append(("scope", trace.scope))
    parts.append(("prompt", count(len(trace.prompt_token_ids), "token")))
    return tag("ul", [tag("li", tag("span", name), " ", tag("b", value, dir="auto"))
                      for name, value in parts], cls="facts")


def _reading(trace: Trace, anchor: str) -> Markup:
    """The answer; each sentence leads to its card."""
    parts: list[Markup] = []
    length = 0
    for sentence in trace.sentences:
        if sentence.outcome not in ("draft", "regenerated"):
            continue
        length += len(sentence.text)
        text = sentence.text if parts else sentence.text.lstrip()
        core = text.rstrip()
        outcome = outcome_of(sentence)
        number = tag("a", str(sentence.index + 1), href=f"#{anchor}s{sentence.index + 1}",
                     title=f"sentence {sentence.index + 1}, "
                           f"{OUTCOMES.get(outcome, ('', outcome))[1]}")
        space = core[:len(core) - len(core.lstrip())]
        parts.append(join(
            space, tag("span", core.lstrip(), cls=f"s o-{outcome}" if outcome in OUTCOMES else "s"),
            tag("sup", number), text[len(core):]))
    # Text that was held back to the end belongs to no sentence.
    parts.append(join(trace.text[length:].rstrip()))
    text = tag("p", parts if trace.text.strip() else tag("span", "(no text)", cls="note"),
               cls="text", dir="auto", lang=language(trace.text))
    key = tag(
        "p", "Plain: as drafted. ", tag("span", "Underlined", cls="s o-regenerated"),
        ": written again with evidence. ", tag("span", "Dashed", cls="s o-unsupported"),
        ": unsure, but without evidence. Numbers lead to the steps. Ended: ",
        reason(trace.stop_reason), ".", cls="note")
    return tag("section", tag("h3", "Answer", cls="section"), text, key, cls="reading")


def _tiles(trace: Trace) -> Markup:
    """The totals."""
    stats = trace.stats
    context = stats.num_reused + stats.num_prefilled
    tiles = [
        (seconds(stats.total_ms), "in all", f"{seconds(stats.total_ms / stats.num_sentences)} a "
         "sentence" if stats.num_sentences > 0 else ""),
        (count(stats.num_sentences), "sentence" if stats.num_sentences == 1 else "sentences",
         count(stats.num_tokens, "token")),
        (f"{count(stats.num_triggers)} of {count(stats.num_drafts)}", "drafts needed evidence",
         f"trigger rate {percent(stats.num_triggers, stats.num_drafts)}"),
        (count(stats.num_retrievals), "searches",
         f"{count(stats.num_regenerations, 'sentence')} written again"),
    ]
    if context > 0:
        tiles.append((percent(stats.num_reused, context), "of the context reused",
                      f"{count(stats.num_prefilled)} of {count(context)} tokens prefilled"))
    if trace.is_approximate:
        tiles.append((count(stats.num_encoded), "passages encoded on their own",
                      "the others were there already; none saw another one"))
    if stats.num_proposed > 0:
        tiles.append((percent(stats.num_accepted, stats.num_proposed), "of proposals right",
                      f"{count(stats.num_accepted)} of {count(stats.num_proposed, 'token')}"))
    found, words = words_found(trace)
    if words:
        tiles.append((percent(found, words), "words found",
                      f"{count(found)} of {count(words)} content words of sentences written again "
                      "stand in their passages"))
    if trace.passage_overlap is not None:
        tiles.append((percent(trace.passage_overlap, 1), "passage overlap",
                      "used passages that the search before had used as well"))
    return tag("ul", [tag("li", tag("b", number), tag("span", name), tag("small", remark))
                      for number, name, remark in tiles], cls="tiles")


def _legend(settings: Settings) -> Markup:
    """What colours and signs mean, with θ and β on the scale."""
    scale = [tag("span", f".{i}", cls=f"t c{i}", title=f"confidence {i / NUM_LEVELS:.1f} to "
                 f"{(i + 1) / NUM_LEVELS:.1f}") for i in range(NUM_LEVELS)]
    marks = [
        tag("svg", tag("path", d="M0 0h10L5 6z"), tag("text", f"{sign} = {value:g}", x=5, y=-3),
            x=f"{100 * value:.2f}%", y=16, cls="pin", overflow="visible")
        for sign, value in (("β", settings.beta), ("θ", settings.theta)) if value is not None]
    beta = "" if settings.beta is None else f" = {settings.beta:g}"
    return tag(
        "div",
        tag("div", tag("svg", marks, cls="pins", aria_hidden="true"),
            tag("div", scale, cls="scale"), cls="ruler"),
        tag("ul",
            tag("li", tag("span", "token", cls="t c1"), " the less sure, the stronger the colour "
                "and the thicker the line; point at a token for its confidence"),
            tag("li", tag("span", "token", cls="t c5 lo"), " bold: below θ"
                f"{settings.equals_theta}, asks for evidence"),
            tag("li", tag("s", "token", cls="t c3"), f" struck: not in the query (below β{beta}, "
                "or in one word with such a token)"),
            tag("li", tag("del", "token"), " removed, ", tag("ins", "token"), " new against the "
                "draft"),
            tag("li", tag("mark", "word"), " in sentence and passage, ",
                tag("mark", "word", cls="new"), " and not in the draft")),
        cls="legend")


def _initial(trace: Trace, settings: Settings, longest_ms: float) -> Markup | None:
    """The search with the question, before the first sentence."""
    search = trace.initial_retrieval
    if search is None:
        return None
    shown = seconds(search.time_ms)
    cost = bar([Segment("retrieve", search.time_ms, shown)], max(longest_ms, search.time_ms))
    heading = tag("header", tag("h3", "Before the first sentence"),
                  tag("div", cost, tag("span", shown), cls="costs"))
    words = _words_seen(trace, search)
    return tag("div", heading, tag("div", search_step(search, settings.scope, words), cls="steps"),
               cls="sentence initial")


def _words_seen(trace: Trace, search: RetrievalTrace) -> Words | None:
    """Words of the accepted drafts that had the search's passages in view."""
    ids = {p.id for p in search.passages if p.num_tokens > 0}
    texts = [s.draft.text for s in trace.sentences
             if s.outcome == "draft" and ids & set(s.draft.passage_ids)]
    return Words("\n".join(texts)) if texts else None


def _options(trace: Trace) -> Markup:
    """The configuration, folded."""
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", shown_value(value), dir="auto"))
            for name, value in trace.config.items()]
    return tag("details", tag("summary", "All options of this answer"),
               tag("table", tag("tbody", rows)), cls="options")
