"""The thread pool: every task once, in every situation a host process may bring about."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from flarecore import _C
from flarecore.errors import ConfigError

ThreadPool = _C.testing.ThreadPool


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
def test_every_task_runs_once(num_threads):
    pool = ThreadPool(num_threads)
    assert pool.num_threads == num_threads
    for num_tasks in (0, 1, 2, 7, 1000):
        assert pool.count_tasks(num_tasks) == [1] * num_tasks
    assert pool.count_tasks(3, runs=2000) == [2000] * 3


def test_workers_that_slept_take_part_again():
    pool = ThreadPool(2)
    for _ in range(3):
        assert pool.count_tasks(64) == [1] * 64
        threading.Event().wait(0.002)  # far longer than a worker spins


def test_a_thread_keeps_to_its_share_and_helps_when_it_is_through():
    pool = ThreadPool(2)
    # The worker takes half of its share, 8 to 15, and sleeps: nobody waits for it with the rest.
    assert pool.task_threads(16, 30) == [0] * 8 + [1] * 4 + [0] * 4
    for num_threads in (2, 3, 5):
        threads = ThreadPool(num_threads).task_threads(100, 1)
        assert set(threads) <= set(range(num_threads))
        assert num_threads - 1 in threads


def test_pools_side_by_side():
    """More threads than cores, several pools at once: nothing is lost, nothing hangs."""
    counts = []

    def use_pool():
        counts.append(ThreadPool(4).count_tasks(50, runs=200))

    threads = [threading.Thread(target=use_pool) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert counts == [[200] * 50] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_child_runs_serially_and_parent_goes_on():
    code = """
import os, sys
from flarecore import _C
pool = _C.testing.ThreadPool(4)
assert pool.count_tasks(100, runs=50) == [50] * 100
pid = os.fork()
if pid == 0:
    ok = pool.count_tasks(100, runs=50) == [50] * 100
    ok = ok and _C.testing.ThreadPool(2).count_tasks(10) == [1] * 10
    del pool
    os._exit(0 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert pool.count_tasks(100, runs=50) == [50] * 100
print("done")
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert out.stdout.strip() == "done", out.stderr


def affinities() -> list[set[int]]:
    """The cores that each thread of this process may use."""
    return [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux moves threads")
def test_late_workers_finish_on_the_callers_core_and_may_go_back():
    before = os.sched_getaffinity(0)
    pool = ThreadPool(3)
    assert pool.num_late == 0
    pool.sleep_in_workers(30)  # far longer than any run has patience
    assert pool.num_late == 2
    assert all(cores == before for cores in affinities())
    assert pool.count_tasks(3, runs=2000) == [2000] * 3


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_two_threads_on_the_only_core_they_may_use():
    code = """
import os
from flarecore import _C
pool = _C.testing.ThreadPool(2)
one = {min(os.sched_getaffinity(0))}
for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), one)
assert pool.count_tasks(20, runs=200) == [200] * 20
pool.sleep_in_workers(20)
assert all(os.sched_getaffinity(int(t)) == one for t in os.listdir("/proc/self/task"))
print("done")
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert out.stdout.strip() == "done", out.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_a_thread_leaves_a_core_unless_it_has_no_other():
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    moved = []

    def leave():
        os.sched_setaffinity(0, {core})
        assert _C.testing.current_core() == core
        assert not _C.testing.leave_core(core)
        os.sched_setaffinity(0, allowed)
        assert _C.testing.leave_core(core)
        moved.append(_C.testing.current_core() != core)
        assert os.sched_getaffinity(0) == allowed

    for _ in range(20):  # the scheduler may have moved it back in between
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert len(moved) == 20
    assert any(moved) == (len(allowed) > 1)


def test_thread_count_is_checked():
    for bad in (0, -1, 5000):
        with pytest.raises(ConfigError, match=str(bad)):
            ThreadPool(bad)


def test_usable_threads_respect_affinity():
    assert _C.usable_num_threads() >= 1
    if hasattr(os, "sched_getaffinity"):
        assert _C.usable_num_threads() <= len(os.sched_getaffinity(0))
        one = min(os.sched_getaffinity(0))
        code = (
            f"import os; os.sched_setaffinity(0, {{{one}}}); from flarecore import _C; "
            "print(_C.usable_num_threads())"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert out.stdout.strip() == "1"
