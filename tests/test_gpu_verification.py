"""Verification passes in graphs: padded to one of a few sizes, with the bits of a direct launch."""

from types import SimpleNamespace

import pytest
from helpers import random_ids, result_bits
from helpers_gpu import (
    MARKS,
    SAMPLED,
    core_of,
    gpu_engine,
    gpu_model,
    record_graphs,
    runner_of,
    verification_of,
)
from helpers_passages import PASSAGES, open_with
from test_gpu_operations import Gate
from triton_env import DEVICE, bits, torch

from flarecore.errors import FlarecoreError
from flarecore.gpu.mirrored import Mirrored
from flarecore.gpu.pass_rows import padded_size
from flarecore.gpu.passages import PassageView
from flarecore.sampling import SamplingParams

pytestmark = MARKS
IDS = random_ids(9)


@pytest.fixture(scope="module")
def model():
    return gpu_model()


# ---- one pass ----

# (segments, unread rows, views); a segment begins at a position and writes where its blocks say.
WIDE = ([(0, random_ids(7), [0]), (30, random_ids(5, seed=1), [1, 2]), (64, [3, 4, 5], [3, 4, 5])],
        [2, 0, 3], [None] * 3)  # fmt: skip
SMALLER = ([(31, random_ids(2, seed=2), [6, 1]), (5, [9], [2])], [0, 0], [None] * 2)
FULL = ([(200, random_ids(16, seed=3), range(7))], [0], [None])
ONE_ROW = ([(33, [8], [5, 2])], [0], [None])
UNREAD = ([(33, [8, 9], [5, 2])], [2], [None])
SEEING = ([(33, [8, 9], [5, 2]), (3, [1], [6])], [1, 0],
          [PassageView(3, 64, 10, ((1, 0, 20), (0, 0, 32))), None])  # fmt: skip


def written_slots(segments):
    return {(blocks[p // 32], p % 32) for position, ids, blocks in segments
            for p in range(position, position + len(ids))}  # fmt: skip


def test_a_padded_pass_stores_and_gives_what_a_direct_one_does(model, monkeypatch):
    """Keys and values of the whole cache, and no others than the rows' own; one after the other, so
    that rows of the pass before would show.
    """
    with gpu_engine(model) as engine, torch.inference_mode():
        forward = core_of(engine)._setup.stepper.forward
        kv, passes = forward.kv.all, verification_of(engine)
        torch.manual_seed(3)
        noise = torch.randn(kv.shape).to(kv)

        def launched(segments, num_unread, views):
            kv.copy_(noise)
            logits = passes.launch(segments, num_unread, views)
            assert logits.shape[0] == sum(len(s[1]) for s in segments) - sum(num_unread)
            assert bool(logits.isfinite().all())
            changed = (kv != noise).any(dim=-1).any(dim=(0, 1, 3)).nonzero().tolist()
            assert {tuple(slot) for slot in changed} == written_slots(segments)
            return bits(logits), bits(kv)

        cases = (WIDE, SMALLER, FULL, ONE_ROW, UNREAD, SEEING)
        wanted = [launched(*case) for case in cases]
        assert passes.num_replays == 0
        record_graphs(engine, monkeypatch)
        for case, expected in zip(cases, wanted, strict=True):
            kv.copy_(noise)
            assert launched(*case) == expected
        assert passes.num_replays == 6 and passes.num_captures == 3
        assert len(set(wanted)) == 6
        kv.zero_()


def test_a_capture_leaves_no_trace(model, monkeypatch):
    with gpu_engine(model) as engine, torch.inference_mode():
        kv, passes = core_of(engine)._setup.stepper.forward.kv.all, verification_of(engine)
        record_graphs(engine, monkeypatch)
        kv.fill_(0.25)
        passes._capture(padded_size(WIDE[0], passes._forward))
        assert bool((kv == 0.25).all())
        kv.zero_()


def test_sizes_are_few():
    """A graph for each, so that a dozen serve every batch of one context."""
    forward = SimpleNamespace(context_bucket=lambda num_tokens: 256 if num_tokens <= 256 else 1024)
    batches = [[n] * m for n in range(1, 17) for m in range(1, 64 // n + 1)]
    batches += [[1] * m + [16] * n for n in range(4) for m in range(1, 65 - 16 * n)]
    sizes = set()
    for counts in batches:
        size = padded_size([(239 - n, [1] * n, [0] * 8) for n in counts], forward)
        assert sum(counts) <= size.num_rows <= 64 and max(counts) <= size.query_rows <= 16
        assert len(counts) <= size.num_sequences <= size.num_rows
        assert size.num_rows - sum(counts) < 16, "a tile of padding"
        assert size.table_width == 8 and size.context == 256
        sizes.add(size)
    assert len(sizes) == 12
    assert padded_size([(0, [1], [0])], forward).num_sequences == 1
    assert padded_size([(256, [1], [0] * 9)], forward).table_width == 32


# ---- through the engine ----

SAMPLINGS = [SamplingParams(), SamplingParams(temperature=1.2, seed=11),
             SamplingParams(temperature=1.1, top_k=20, seed=2),
             SamplingParams(temperature=0.9, seed=3, repetition_penalty=1.4,
                            logit_bias={5: 3.0})]  # fmt: skip


def story(engine):
    """Scores, and right and wrong proposals: alone, with others at once, and behind passages."""
    found = []
    with engine.sequence(IDS) as sequence:
        found.append(sequence.fork().score(random_ids(20, seed=2)).probs.tobytes())
        plain = [sequence.fork().decode(6, **{**SAMPLED, "sampling": s}) for s in SAMPLINGS]
        found += map(result_bits, plain)
        calls = []
        for sampling, out in zip(SAMPLINGS, plain, strict=True):
            half = [*out.token_ids[:3], (out.token_ids[3] + 1) % 200, *out.token_ids[4:]]
            options = {**SAMPLED, "sampling": sampling, "proposal": half}
            found.append(result_bits(sequence.fork().decode(6, **options)))
            calls.append(lambda o=options: sequence.fork().decode_async(6, **o))
        calls.append(lambda: sequence.fork().score_async([1, 2, 3]))
        with Gate(engine) as gate:  # one of them alone, then the others at once
            operations = [calls[0]()]
            assert gate.reached.wait(60)
            operations += [call() for call in calls[1:]]
            gate.opened.set()
            results = [operation.result() for operation in operations]
        found += map(result_bits, results[:-1])
        found.append(results[-1].probs.tobytes())
        assert found[5:9] == found[9:13] == found[1:5]
    with open_with(engine, random_ids(5, seed=5), IDS, PASSAGES[:2]) as sequence:
        out = sequence.fork().decode(5, **SAMPLED)
        found.append(result_bits(out))
        found.append(result_bits(sequence.decode(5, proposal=out.token_ids, **SAMPLED)))
        assert found[-1] == found[-2]
    engine.check_integrity()
    return found


@pytest.fixture(scope="module")
def wanted(model):
    with gpu_engine(model) as engine:
        found = story(engine)
        assert verification_of(engine).num_replays == 0
    return found


def test_graphs_change_nothing(model, wanted, monkeypatch):
    """Nor is memory of the host filled again while its copy to the device may be under way."""
    pending, upload = [], Mirrored.upload

    def noted(self):
        assert not any(self is other for other in pending)
        pending.append(self)
        upload(self)

    with gpu_engine(model) as engine:
        passes, stepper = verification_of(engine), core_of(engine)._setup.stepper
        record_graphs(engine, monkeypatch)
        wait, synchronize = stepper._wait, torch.cuda.synchronize
        monkeypatch.setattr(Mirrored, "upload", noted)
        monkeypatch.setattr(stepper, "_wait", lambda: (wait(), pending.clear()))
        monkeypatch.setattr(torch.cuda, "synchronize",
                            lambda *args: (synchronize(*args), pending.clear()))  # fmt: skip
        assert story(engine) == wanted
        assert passes.num_replays >= 8
        assert {size.passage_width for size in passes._passes} == {0, 32}
        assert {size.num_sequences for size in passes._passes} == {1, 4}
        num_captures = passes.num_captures, runner_of(engine).num_captures
        assert num_captures[0] == len(passes._passes)
        assert story(engine) == wanted
        assert (passes.num_captures, runner_of(engine).num_captures) == num_captures


@pytest.mark.skipif(DEVICE != "cpu", reason="the captures are made up")
def test_a_capture_that_fails_is_made_again(model, monkeypatch):
    with gpu_engine(model) as engine, engine.sequence(IDS) as sequence:
        probs = sequence.score([1, 2]).probs.tobytes()
        record_graphs(engine, monkeypatch)
        passes = verification_of(engine)
        with monkeypatch.context() as patch:
            patch.setattr(passes._captures, "capture", lambda *args: 1 / 0)
            with pytest.raises(FlarecoreError, match="division by zero"):
                sequence.score([1, 2])
        assert not passes._passes
        assert sequence.score([1, 2]).probs.tobytes() == probs and passes.num_captures == 1
        engine.check_integrity()
