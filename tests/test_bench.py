"""The benchmarks' statistics, yardsticks and sizes. Nothing is timed."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import TinyLlama, random_ids, tiny_llama_path
from helpers_bench import Q4, make_runner

from flarecore import _C, Engine
from flarecore.bench import decode, prefill, quality, sampling
from flarecore.bench.busy import Neighbour
from flarecore.bench.harness import Case, Quantiles, ratios, run_rounds
from flarecore.bench.runner import file_format, file_step_bytes
from flarecore.bench.session import memory_case
from flarecore.bench.texts import context_ids
from flarecore.errors import ConfigError
from flarecore.model import Model


def test_quantiles_interpolate():
    assert Quantiles.of([5, 1, 4, 2, 3]) == Quantiles(3.0, 1.8, 4.2)
    assert Quantiles.of([2.0]) == Quantiles(2.0, 2.0, 2.0)
    assert Quantiles.of([1, 3]).scaled(10).median == 20.0
    with pytest.raises(ConfigError, match="at least one value"):
        Quantiles.of([])


def test_a_ratio_is_taken_round_by_round():
    # The peer takes twice as long in every round, while the machine slows down by 10.
    seconds = {"own": [1.0, 2.0, 10.0], "peer": [2.0, 4.0, 20.0]}
    assert ratios(seconds, "own", "peer") == Quantiles(2.0, 2.0, 2.0)
    assert ratios(seconds, "own", "peer", 4).median == 8.0
    uneven = {"own": [1.0, 1.0, 10.0], "peer": [3.0, 1.0, 10.0]}
    assert ratios(uneven, "own", "peer").median == 1.0
    with pytest.raises(ValueError):
        ratios({"own": [1.0], "peer": [1.0, 2.0]}, "own", "peer")


def test_rounds_interleave_and_leave_the_warm_up_out():
    calls = []

    def case(name, value):
        return Case(name, lambda: calls.append(name) or value, lambda: calls.append(f"({name})"))

    told = []
    seconds = run_rounds([case("a", 1.0), case("b", 2.0)], 2, warmup=1, settle_s=0,
                         progress=lambda stage, done, total: told.append((done, total)))
    assert seconds == {"a": (1.0, 1.0), "b": (2.0, 2.0)}
    assert calls == ["(b)", "b", "(a)", "a", "(a)", "a", "(b)", "b", "(b)", "b", "(a)", "a"]
    assert told == [(i, 6) for i in range(1, 7)]


def test_a_case_that_measures_nothing_itself_is_timed_without_its_preparation():
    case = Case("slow to prepare", lambda: None, lambda: time.sleep(0.05))
    (elapsed,) = run_rounds([case], 1, warmup=0, settle_s=0)["slow to prepare"]
    assert 0 < elapsed < 0.05


@pytest.mark.parametrize("names, rounds", [((), 1), (("a", "a"), 1), (("a",), 0)])
def test_senseless_rounds_are_refused(names, rounds):
    with pytest.raises(ConfigError):
        run_rounds([Case(name, lambda: 1.0) for name in names], rounds, settle_s=0)


def test_memory_reader_reads_everything_and_refuses_nonsense():
    reader = _C.testing.MemoryReader(1_000_000, 2)
    assert reader.size_bytes == 4 << 18
    assert reader.read_once() > 0
    assert _C.memory_read_bandwidth(1 << 20, 1, passes=3) > 0
    with pytest.raises(ConfigError, match="size_bytes"):
        _C.memory_read_bandwidth(0, 1)
    with pytest.raises(ConfigError, match="threads"):
        _C.memory_read_bandwidth(1 << 20, 0)


def test_the_memory_yardstick_forgives_an_interruption(monkeypatch):
    """A pass that was interrupted, or that found the cache cold, is not the bound."""
    passes = iter([9.0, *[50.0] * 10, 1.0, *[50.0] * 4])

    class Reader:
        size_bytes = 200

        def __init__(self, size_bytes, threads):
            assert (size_bytes, threads) == (100, 2)

        def read_once(self):
            return next(passes)

    monkeypatch.setattr(_C.testing, "MemoryReader", Reader)
    assert memory_case(100, 2).run() == 0.5


def test_step_costs_count_what_a_step_reads():
    spec = TinyLlama()
    model = Model.load(str(tiny_llama_path(spec)), threads=1)
    costs = _C.testing.step_costs(model._native, False, 10)
    kv = spec.num_kv_heads * spec.head_dim
    matrices = 2 * spec.hidden_size * (spec.num_heads * spec.head_dim + kv) + \
        3 * spec.hidden_size * spec.ffn_size
    head = spec.vocab_size * spec.hidden_size
    assert costs["layer_multiply_adds"] == spec.num_layers * matrices
    assert costs["head_multiply_adds"] == head
    assert costs["kv_values"] == spec.num_layers * 10 * 2 * kv
    assert costs["kv_bytes"] == spec.num_layers * 10 * 2 * kv * 4
    norms = (2 * spec.num_layers + 1) * spec.hidden_size
    exact = 4 * (spec.num_layers * matrices + head + norms)
    # The last tile of a matrix is padded, and the embedding is not part of it: the head is.
    assert exact <= costs["weight_bytes"] < 1.1 * exact
    engine = Engine(model, compute="int8", kv_cache_bytes=1 << 22)
    block = engine.stats().block_size_bytes  # of 32 tokens, scales included
    assert _C.testing.step_costs(model._native, True, 10)["kv_bytes"] == block * 10 // 32


def test_file_bytes_leave_out_an_embedding_that_is_only_looked_up():
    untied, tied = (str(tiny_llama_path(TinyLlama(tied=tied))) for tied in (False, True))
    assert file_step_bytes(untied) == file_step_bytes(tied)
    assert file_format(str(tiny_llama_path(Q4))) == "Q4_1"


@pytest.mark.parametrize("isa", _C.available_isas())
def test_yardsticks_of_every_level(isa):
    """In a process of its own: the level is chosen once."""
    code = (
        "import numpy as np; from flarecore import _C; from flarecore.model import Model\n"
        f"model = Model.load({str(tiny_llama_path(Q4))!r}, threads=1)\n"
        "for size in (271, 1024, 5000):\n"
        "    logits = np.random.default_rng(size).standard_normal(size).astype(np.float32)\n"
        "    probe = _C.testing.SamplingProbe(model._native, logits, 2)\n"
        "    ids = [0, 270, 31, 32, 33]\n"
        "    assert probe.run(ids)['token_ids'] == ids == probe.run(ids, {})['token_ids']\n"
        "_C.testing.MemoryReader(1 << 20, 2).read_once()\n"
        "print(_C.cpu_isa())\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "FLARECORE_CPU_ISA": isa,
                               "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.stdout.strip() == isa


def test_windows_do_not_overlap_and_are_whole():
    assert quality.windows(range(9), 4) == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]]
    assert quality.windows(range(7), 4, head=[99]) == [
        [99, 0, 1, 2], [99, 2, 3, 4], [99, 4, 5, 6]]
    for head in ([], [99]):  # every token behind the first half window is scored once
        scored = [t for part in quality.windows(range(40), 7, head) for t in part[7 // 2:]]
        assert scored == list(range(3 - len(head), scored[-1] + 1))
    assert quality.windows(range(3), 4) == []


def test_loss_of_perplexity_by_hand():
    exact = [np.log([0.5, 0.25]), np.log([0.5, 0.25])]
    worse = [np.log([0.25, 0.25]), np.log([0.5, 0.25])]
    found = quality.loss(worse, exact)
    assert found["perplexity"] == pytest.approx(math.exp(-np.log([0.25, 0.25, 0.5, 0.25]).mean()))
    assert found["loss"] == pytest.approx(2 ** 0.25 - 1)
    # Windows differ by ln 2 / 2 and 0.
    assert found["loss_error"] == pytest.approx(math.log(2) / 2 / math.sqrt(2) / math.sqrt(2))
    assert found["mean_probability_difference"] == pytest.approx(0.25 / 4)
    assert found["log_deviation"] == pytest.approx(math.log(2) / 2), "one of four, root of 1 / 4"
    assert quality.loss(exact, exact)["loss"] == 0.0


def test_agreement_counts_tokens():
    exact, fast = make_runner(compute="float32"), make_runner()
    prompts = [random_ids(20, seed=n) for n in range(4)]
    tokens = []
    for prompt in prompts:
        exact.set_contexts([prompt])
        tokens += exact.decode(12)
    assert quality.agreement(exact, prompts, tokens) == quality.Agreement(1.0, 1.0)
    found = quality.agreement(fast, prompts, tokens)
    assert 0.2 < found.equal_free <= found.equal_given <= 1.0
    spoilt = [[*t[:6], (t[6] + 1) % 256, *t[7:]] for t in tokens]
    found = quality.agreement(exact, prompts, spoilt)
    assert found.equal_free == 0.5 and found.equal_given < 1.0


def test_contexts_have_exactly_the_tokens_asked_for():
    tokenizer = Model.load(str(tiny_llama_path(Q4)), threads=1).tokenizer
    ids = [context_ids(tokenizer, list(range(50)), 120, n) for n in (0, 1)]
    assert [len(i) for i in ids] == [120, 120] and ids[0] != ids[1]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_neighbour_rests_spins_and_ends():
    def state(pid):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    def wait_for(states):
        for _ in range(500):
            if state(pid) in states:
                return True
            time.sleep(0.01)
        return False

    with Neighbour() as neighbour:
        pid = neighbour._process.pid
        assert wait_for("T")
        neighbour.spin()
        assert wait_for("RSD")
        neighbour.rest()
        assert wait_for("T")
    assert neighbour._process.returncode == -signal.SIGKILL


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs PR_SET_PDEATHSIG")
def test_the_neighbour_does_not_outlive_its_parent():
    code = ("import os, signal; from flarecore.bench.busy import Neighbour\n"
            "print(Neighbour()._process.pid, flush=True)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == -signal.SIGKILL
    proc = Path(f"/proc/{int(done.stdout)}/stat")

    def is_gone():
        try:
            return proc.read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True

    for _ in range(500):
        if is_gone():
            return
        time.sleep(0.01)
    pytest.fail("the neighbour is still there")


@pytest.mark.parametrize("make", [
    lambda: decode.DecodeOptions(contexts=(1,)), lambda: decode.DecodeOptions(rows=()),
    lambda: decode.DecodeOptions(num_tokens=0), lambda: prefill.PrefillOptions(sizes=(1,)),
    lambda: quality.QualityOptions(window=3), lambda: quality.QualityOptions(prompts=21),
    lambda: sampling.SamplingOptions(vocab_sizes=(1,)),
])
def test_sizes_out_of_range_are_refused(make):
    with pytest.raises(ConfigError):
        make()
