"""Tokens of a pass with their confidences, and the difference between two passes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from flarecore.trace import PassTrace
from flarecore.trace_html.markup import Markup, join, language, tag

__all__ = ["NUM_LEVELS", "Difference", "confidence", "difference", "level", "pass_tokens"]

NUM_LEVELS = 10
# Beyond so many pairs of tokens only what the passes begin and end with is compared.
_MAX_PAIRS = 1_000_000
# A removed token that holds only part of a character.
_PART = "◌"


def level(prob: float) -> int:
    """0 (least sure) to 9: the tenth that a confidence lies in."""
    return min(max(int(prob * NUM_LEVELS), 0), NUM_LEVELS - 1)


def confidence(prob: float) -> str:
    """A confidence with all digits that float32 holds."""
    return f"{prob:.6g}"


def pass_tokens(trace: PassTrace, kept: Sequence[bool] | None) -> Markup:
    """The tokens of a pass, coloured by confidence; those that `kept` denies are struck.

    Parameters
    ----------
    trace : PassTrace
        Of n tokens.
    kept : sequence of bool or None
        (n,) whether the token stayed in the query; None: no query was made of the tokens.
    """
    shown = []
    for at, (text, prob, low) in enumerate(
            zip(trace.tokens, trace.probs, trace.low, strict=True)):
        is_masked = kept is not None and not kept[at]
        notes = [confidence(prob)] + ["below θ"] * low + ["not in the query"] * is_masked
        classes = f"t c{level(prob)}" + " lo" * low
        shown.append(_token(text, "s" if is_masked else "span", classes, notes, at == 0))
    return tag("p", shown, cls="tokens", dir="auto", lang=language(trace.text), tabindex=0,
               role="group", aria_label="draft, token by token; left and right arrow keys give "
                                        "the confidence of each")


def _token(text: str, name: str, classes: str, notes: list[str], is_first: bool) -> Markup:
    """A token's element; the space before a word stands outside of it."""
    core = text.lstrip(" ")
    space = "" if is_first else " " * (len(text) - len(core))
    if not text:
        notes = [*notes, "part of the next character"]
        classes += " part"
    elif not core:
        space, core = "", text
    else:
        core = _shown(core)
    return join(space, tag(name, core, cls=classes, title=" · ".join(notes)))


def _shown(text: str) -> str:
    """Line ends and tabs as signs: a sentence stays in one piece."""
    return text.replace("\n", "↵").replace("\t", "⇥")


@dataclass(frozen=True)
class Difference:
    """What a regeneration changed.

    Parameters
    ----------
    markup : Markup
        The new sentence with what went and what came.
    num_kept, num_removed, num_new : int
        Tokens in both, only before, only after.
    """

    markup: Markup
    num_kept: int
    num_removed: int
    num_new: int


def difference(before: PassTrace, after: PassTrace) -> Difference:
    """The difference of two passes over the same sentence.

    Token ids are compared; a word of several tokens is kept or changed as a whole, since "1922"
    become "1923" is easier to read than one digit of four.
    """
    old, new = _words(before), _words(after)
    parts: list[Markup] = []
    num_kept = num_removed = num_new = 0
    for kind, i, j, k, m in _opcodes(old.keys, new.keys):
        gone, come = old.tokens_of(i, j), new.tokens_of(k, m)
        if kind == "equal":
            num_kept += len(come)
            space, tokens = _new_tokens(after, come)
            parts.append(join(space if parts else "", tokens))
            continue
        num_removed += len(gone)
        num_new += len(come)
        if gone:
            text = "".join(before.tokens[at] for at in gone)
            core = text.lstrip(" ")
            space = " " * (len(text) - len(core)) if parts else ""
            parts.append(join(space, tag("del", _shown(core) or text or _PART)))
        if come:
            # A token that is only a space stands before the mark, like the space of other words.
            blank = next((n for n, at in enumerate(come) if after.tokens[at].strip(" ")), 0)
            for at in come[:blank]:
                parts.append(_token(after.tokens[at], "span", "t", [confidence(after.probs[at])],
                                    not parts))
            space, tokens = _new_tokens(after, come[blank:])
            parts.append(join(space if parts else "", tag("ins", tokens)))
    markup = tag("p", parts, cls="diff", dir="auto", lang=language(after.text or before.text))
    return Difference(markup, num_kept, num_removed, num_new)


@dataclass(frozen=True)
class _Words:
    """A pass cut into words: ``keys[i]`` are the ids of tokens ``[begins[i], begins[i + 1])``."""

    keys: list[tuple[int, ...]]
    begins: list[int]

    def tokens_of(self, begin: int, end: int) -> range:
        """Positions of the tokens of words ``[begin, end)``."""
        return range(self.begins[begin], self.begins[end])


def _words(trace: PassTrace) -> _Words:
    # A token without text is part of the next character: only the last one shows what changed.
    begins = [at for at, text in enumerate(trace.tokens) if not at or (
        trace.tokens[at - 1]
        and not (_in_word(trace.tokens[at - 1][-1]) and _in_word(text[:1])))]
    ends = [*begins[1:], len(trace.tokens)]
    keys = [trace.token_ids[i:j] for i, j in zip(begins, ends, strict=False)]
    return _Words(keys, [*begins, len(trace.tokens)])


def _in_word(char: str) -> bool:
    """Whether a character belongs to a word that tokens should not cut; Han and kana do not."""
    return char.isalnum() and not "\u2e80" <= char <= "\u9fff"


def _new_tokens(trace: PassTrace, positions: range) -> tuple[str, list[Markup]]:
    """The white space before the tokens, and the tokens with their confidences."""
    first = trace.tokens[positions[0]]
    core = first.lstrip(" ")
    space = " " * (len(first) - len(core)) if core else ""
    return space, [
        _token(trace.tokens[at], "span", "t", [confidence(trace.probs[at])], at == positions[0])
        for at in positions]


def _opcodes(
    before: list[tuple[int, ...]], after: list[tuple[int, ...]]
) -> list[tuple[str, int, int, int, int]]:
    """As of ``difflib``; for texts of absurd length only the ends are compared."""
    if len(before) * len(after) <= _MAX_PAIRS:
        matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
        return [(kind, i, j, k, m) for kind, i, j, k, m in matcher.get_opcodes()]
    shortest = min(len(before), len(after))
    head = next((i for i in range(shortest) if before[i] != after[i]), shortest)
    tail = next((i for i in range(shortest - head) if before[-1 - i] != after[-1 - i]),
                shortest - head)
    middle = (head, len(before) - tail, head, len(after) - tail)
    codes = [("equal", 0, head, 0, head), ("replace", *middle),
             ("equal", middle[1], len(before), middle[3], len(after))]
    return [code for code in codes if code[1] < code[2] or code[3] < code[4]]
