"""Whether an answer fits into the model's context, before any work."""

from __future__ import annotations

from collections.abc import Mapping

from flarecore.config import FlareConfig
from flarecore.errors import ContextOverflowError
from flarecore.loop.pieces import PieceEncoder
from flarecore.loop.prompt import Prompt
from flarecore.templates import PromptTemplate

__all__ = ["check_room"]


def check_room(
    config: FlareConfig, prompt: Prompt, template: PromptTemplate, pieces: PieceEncoder,
    context_length: int, num_reserved: int = 0,
) -> None:
    """Refuses a prompt that leaves too little room.

    `num_reserved` positions are kept free for attached passages (placement ``parallel``).

    Raises
    ------
    ContextOverflowError
        With ``overflow="error"``, if the fullest possible context would not fit; else, if there is
        no room for one sentence.
    """
    parts = {"prompt": len(prompt.token_ids)}
    if num_reserved:
        parts["positions for passages"] = num_reserved
    if config.overflow == "error":
        parts["max_new_tokens"] = config.max_new_tokens
        if config.may_retrieve:
            if config.placement != "parallel":
                parts["max_evidence_tokens"] = config.max_evidence_tokens
                parts["text around the evidence"] = prompt.max_block_tokens(config.placement)
            if config.query in ("question", "keywords"):
                parts["writing a query"] = _num_query_tokens(config, prompt, template, pieces)
    else:
        parts["one sentence"] = min(config.max_draft_tokens, config.max_new_tokens)
    total = sum(parts.values())
    if total > context_length:
        shown = " + ".join(f"{name} {num}" for name, num in parts.items())
        raise ContextOverflowError(
            f"the model's context holds {context_length} tokens, but the answer may need "
            f"{total} ({shown}); {_remedy(config, parts, context_length)}")


def _remedy(config: FlareConfig, parts: Mapping[str, int], context_length: int) -> str:
    """What would make room; nothing that could not."""
    num_fixed = parts["prompt"] + parts.get("positions for passages", 0)
    if num_fixed >= context_length:
        lower = " or lower max_evidence_tokens" if parts["prompt"] < context_length else ""
        return f"shorten the prompt{lower}"
    sentence = min(config.max_draft_tokens, config.max_new_tokens)
    options = [name for name in ("max_new_tokens", "max_evidence_tokens") if name in parts]
    if "positions for passages" in parts:
        options.append("max_evidence_tokens")
    if config.overflow == "drop_oldest":
        shorter = config.max_draft_tokens <= config.max_new_tokens
        options.insert(0, "max_draft_tokens" if shorter else "max_new_tokens")
    hint = f"shorten the prompt or lower {' or '.join(options)}"
    if config.overflow == "error" and num_fixed + sentence <= context_length:
        hint += ", or use overflow='drop_oldest'"
    return hint


def _num_query_tokens(
    config: FlareConfig, prompt: Prompt, template: PromptTemplate, pieces: PieceEncoder
) -> int:
    """Tokens of a request for a query, what it asks about, and the query.

    An uncommonly long span may need more; without room for it there is no question about it.
    """
    piece = template.question_query if config.query == "question" else template.keyword_query
    asked = pieces.filled(piece, span="", sentence="", question="")
    turn = 0 if prompt.turn is None else prompt.turn.num_tokens
    return len(asked) + turn + 2 * config.max_query_tokens
