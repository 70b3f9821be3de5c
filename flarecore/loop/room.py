"""Whether an answer fits into the model's context, before any work (design 3.5)."""

from __future__ import annotations

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
        hint = "shorten the prompt or lower these options" + (
            ", or use overflow='drop_oldest'" if config.overflow == "error" else "")
        raise ContextOverflowError(
            f"the model's context holds {context_length} tokens, but the answer may need "
            f"{total} ({shown}); {hint}")


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
