"""Scripted runs of decode steps on the GPU engine."""

from helpers import result_bits
from helpers_gpu import core_of, gpu_engine
from triton_env import torch

PROMPT = list(b"Q")
PAIRS = {b" A": 256, b". ": 257, b"\n\n": 258, b'."': 259}  # of the tiny vocabulary


def script(engine, ids):
    """Makes the model say `ids` behind the prompt. Its layers, which would not show, are left out.
    """
    first = len(PROMPT)
    forward = core_of(engine)._setup.stepper.forward
    said = torch.full((forward.shape.context_length + 1,), ord("x"), device=forward.device)
    said[first : first + len(ids)] = torch.as_tensor(list(ids), device=forward.device)

    def decode(rows, *, with_logits=True):
        read = rows.positions if rows.logit_rows is None else rows.positions[rows.logit_rows]
        logits = forward._logits[: read.shape[0] * with_logits]
        at = said[read.clamp(min=0).long() + 1]
        return logits.fill_(-2.0).scatter_(1, at[: logits.shape[0], None], 9.0)

    forward.decode = decode


def waits(engine):
    return core_of(engine)._setup.stepper.num_waits


def decodes(model, ids, num_decodes, *, gpu=None, count=waits, **options):
    """(results, state of the sequence, growth of `count` in each decode)."""
    results, counts = [], []
    with gpu_engine(model, gpu=gpu) as engine, engine.sequence(PROMPT) as sequence:
        script(engine, ids)
        for _ in range(num_decodes):
            before = count(engine)
            results.append(sequence.decode(**options))
            counts.append(count(engine) - before)
        engine.check_integrity()
        return results, sequence.token_ids, counts


def check_twin(model, ids, num_decodes, **options):
    """Equality with one step at a time; the results and how often the host waited for each."""
    ours, tokens, counts = decodes(model, ids, num_decodes, **options)
    twin, twin_tokens, twin_counts = decodes(
        model, ids, num_decodes, **{**options, "gpu": {"steps_per_run": 1}})
    assert [result_bits(out) for out in ours] == [result_bits(out) for out in twin]
    assert [out.stop_reason for out in ours] == [out.stop_reason for out in twin]
    assert tokens == twin_tokens
    assert sum(twin_counts) >= sum(len(out.token_ids) for out in twin), "the twin took runs"
    return ours, counts
