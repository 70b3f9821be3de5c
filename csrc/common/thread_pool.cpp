#include "common/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "common/check.h"
#include "common/cores.h"
#include "common/start_thread.h"

#ifdef __linux__
#include <pthread.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flarecore {
namespace {

// Long enough to bridge the gap between two steps of a forward pass, short enough not to matter
// where a core is shared.
constexpr auto kSpinTime = std::chrono::microseconds(40);

// A wait of this much behind the others is no noise, where it is also longer than their own work.
constexpr auto kLateAfter = std::chrono::microseconds(100);

using Clock = std::chrono::steady_clock;

void cpu_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until done() or the time is up; returns done(). meanwhile() has up to a pause's time.
template <typename Done, typename Meanwhile>
bool spin_until(bool allowed, const Done& done, const Meanwhile& meanwhile) {
  if (done()) return true;
  if (!allowed) return false;
  const auto end = Clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 16; ++i) {
      meanwhile();
      if (done()) return true;
    }
  } while (Clock::now() < end);
  return false;
}

// Forks so far in this process's ancestry: a pool made under another count has no workers here.
std::atomic<uint64_t> fork_count{0};

void watch_forks() {
#ifdef __linux__
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    fork_count.fetch_add(1, std::memory_order_relaxed);
  });
  (void)registered;
#endif
}

}  // namespace

// A neighbour that shares a core with a thread takes it away for whole slices of the scheduler,
// some milliseconds, while a decode step meets some 200 times in 2.5. Two things keep its pace:
// - A worker that is late inside a task is moved to the caller's core, which has nothing to do but
//   wait for it, and finishes there at once.
// - A worker that finds itself on the caller's core leaves it. The scheduler sees no reason to: the
//   two on one core and the neighbour on the other are as even as it gets.
//
// Each thread has its share of the tasks, one after the other, so that it reads weights in one
// stream and takes its tasks from a cache line that nobody else wants; one that is through with its
// own takes from the end of another's. A share is one atomic word. A task is taken by a
// compare-exchange, and the job read only after that: the job is written only while no task is
// outstanding, so what is read belongs to the task, even if a worker woke late for an earlier run.
struct ThreadPool::State {
  using TaskFn = void (*)(void*, int64_t, int);

  // Tasks [begin, end) that nobody has taken yet.
  struct Share {
    uint32_t begin, end;
    bool empty() const { return begin >= end; }
  };

  alignas(64) TaskFn fn = nullptr;
  void* context = nullptr;
  std::atomic<int> caller_core{-1};
  std::atomic<bool> stop{false};

  alignas(64) std::atomic<int64_t> num_done{0};  // tasks that workers have reported
  alignas(64) std::atomic<int> num_sleeping{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<int64_t> num_late{0};

  struct alignas(64) Thread {
    std::atomic<uint64_t> share{0};  // alone in its cache line
    alignas(64) std::atomic<bool> in_task{false};
    std::atomic<int64_t> thread_id{0};
    // Its own: cache lines that it asks for while it waits.
    const uint8_t* ahead = nullptr;
    const uint8_t* ahead_end = nullptr;
    // The caller's.
    bool moved = false;
    AllowedCores cores_before;

    void read_ahead() {
      constexpr int kLines = 4;
      if (ahead >= ahead_end) return cpu_pause();
      for (int i = 0; i < kLines; ++i) __builtin_prefetch(ahead + 64 * i, 0, 2);
      ahead += 64 * kLines;
    }

    Share load_share() const {
      const uint64_t word = share.load(std::memory_order_acquire);
      return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
    }
    static uint64_t word_of(Share s) { return s.begin | uint64_t{s.end} << 32; }
  };
  std::vector<Thread> shares;  // of each thread, the caller's first; never resized

  std::mutex mutex;
  std::condition_variable work_ready, run_done;
  std::vector<std::thread> threads;
  bool may_spin = true;
  uint64_t fork_count_at_start = 0;

  int num_threads() const { return static_cast<int>(shares.size()); }

  // Half of what is left of a share, from its end if it is another's; empty if there is nothing. To
  // take is a full barrier, which waits for the outputs of the task before to reach the cache, so
  // it should not happen for every task.
  static Share take(Thread* from, bool is_own) {
    Share left = from->load_share();
    while (!left.empty()) {
      uint64_t expected = Thread::word_of(left);
      const uint32_t count = (left.end - left.begin + 1) / 2;
      const uint32_t cut = is_own ? left.begin + count : left.end - count;
      const Share first = {left.begin, cut}, second = {cut, left.end};
      if (from->share.compare_exchange_weak(expected, Thread::word_of(is_own ? second : first),
                                            std::memory_order_acq_rel)) {
        return is_own ? first : second;
      }
      left = from->load_share();
    }
    return left;
  }

  // Runs tasks until none is left to take, its own first; returns how many. Nothing of the job may
  // be read once a worker has reported them.
  int64_t drain(int thread) {
    int64_t count = 0;
    for (int step = 0; step < num_threads(); ++step) {
      Thread& from = shares[static_cast<size_t>((thread + step) % num_threads())];
      for (Share tasks; !(tasks = take(&from, step == 0)).empty();) {
        for (uint32_t task = tasks.begin; task < tasks.end; ++task) fn(context, task, thread);
        count += tasks.end - tasks.begin;
      }
    }
    return count;
  }

  // Sequentially consistent with caller_sleeps: either this sees the caller asleep, or the caller
  // sees these tasks done.
  void report(int64_t count) {
    num_done.fetch_add(count);
    if (caller_sleeps.load()) {
      std::lock_guard<std::mutex> lock(mutex);
      run_done.notify_one();
    }
  }

  void work(int thread) {
    Thread& self = shares[static_cast<size_t>(thread)];
    self.thread_id.store(current_thread_id());
    const auto wanted = [this, &self] {
      return !self.load_share().empty() || stop.load(std::memory_order_relaxed);
    };
    while (!stop.load(std::memory_order_relaxed)) {
      if (!spin_until(may_spin, wanted, [&self] { self.read_ahead(); })) {
        std::unique_lock<std::mutex> lock(mutex);
        num_sleeping.fetch_add(1);
        // With the fence of publish(): either this sees its share, or publish() sees it asleep.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        work_ready.wait(lock, wanted);
        num_sleeping.fetch_sub(1);
      }
      if (self.load_share().empty()) continue;
      leave_core(caller_core.load(std::memory_order_relaxed));
      self.in_task.store(true, std::memory_order_release);
      if (const int64_t count = drain(thread)) report(count);
      self.in_task.store(false, std::memory_order_release);
    }
  }

  void publish(int64_t count, TaskFn task_fn, void* task_context) {
    fn = task_fn;
    context = task_context;
    caller_core.store(current_core(), std::memory_order_relaxed);
    num_done.store(0, std::memory_order_relaxed);
    for (int t = num_threads() - 1; t >= 0; --t) {
      const Share share = {static_cast<uint32_t>(share_begin(count, t, num_threads())),
                           static_cast<uint32_t>(share_begin(count, t + 1, num_threads()))};
      shares[static_cast<size_t>(t)].share.store(Thread::word_of(share),
                                                 std::memory_order_release);
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (num_sleeping.load(std::memory_order_relaxed) > 0) {
      { std::lock_guard<std::mutex> lock(mutex); }
      work_ready.notify_all();
    }
  }

  // Until the workers, who may still be inside their last task, have reported `count` tasks.
  void wait_done(int64_t count, Clock::time_point begin) {
    const auto finished = [this, count] {
      return num_done.load(std::memory_order_acquire) == count;
    };
    if (finished()) return;
    const auto drained = Clock::now();
    if (spin_until(may_spin, finished, cpu_pause)) return;
    const auto patience = std::max<Clock::duration>(2 * (drained - begin), kLateAfter);
    caller_sleeps.store(true);
    {
      const auto done = [this, count] { return num_done.load() == count; };
      std::unique_lock<std::mutex> lock(mutex);
      if (!run_done.wait_until(lock, drained + patience, done)) {
        move_late_workers();
        run_done.wait(lock, done);
        release_late_workers();
      }
    }
    caller_sleeps.store(false, std::memory_order_relaxed);
  }

  void move_late_workers() {
    const int core = current_core();
    for (Thread& worker : shares) {
      if (!worker.in_task.load()) continue;
      worker.moved = move_thread(worker.thread_id.load(), core, &worker.cores_before);
      if (worker.moved) num_late.fetch_add(1, std::memory_order_relaxed);
    }
  }

  void release_late_workers() {
    for (Thread& worker : shares) {
      if (worker.moved) allow_cores(worker.thread_id.load(), worker.cores_before);
      worker.moved = false;
    }
  }

  void stop_workers() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      stop.store(true);
    }
    work_ready.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  bool is_forked_child() const {
    return fork_count.load(std::memory_order_relaxed) != fork_count_at_start;
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  check(num_threads >= 1 && num_threads <= 1024, ErrorKind::kConfig,
        "threads must be between 1 and 1024, got ", num_threads);
  watch_forks();
  // More threads than cores: a spinning thread would hold up the one that it waits for.
  state_->may_spin = num_threads <= usable_num_threads();
  state_->fork_count_at_start = fork_count.load(std::memory_order_relaxed);
  state_->shares = std::vector<State::Thread>(static_cast<size_t>(num_threads));
  state_->threads.reserve(static_cast<size_t>(num_threads - 1));
  State* state = state_.get();
  try {
    for (int t = 1; t < num_threads; ++t) {
      state_->threads.push_back(start_thread([state, t] { state->work(t); }));
    }
  } catch (...) {
    state_->stop_workers();  // those that run would end the process with their handles
    throw;
  }
}

ThreadPool::~ThreadPool() {
  if (state_->is_forked_child()) {
    // The workers stayed in the parent, perhaps holding the mutex: there is nothing to join, and
    // destroying their handles would end the process.
    (void)state_.release();
    return;
  }
  state_->stop_workers();
}

int ThreadPool::num_threads() const { return state_->num_threads(); }

void ThreadPool::read_while_waiting(int thread, const uint8_t* begin, int64_t size_bytes) {
  State::Thread& self = state_->shares[static_cast<size_t>(thread)];
  self.ahead = begin;
  self.ahead_end = begin + size_bytes;
}

int64_t ThreadPool::num_late() const { return state_->num_late.load(std::memory_order_relaxed); }

void ThreadPool::run(int64_t num_tasks, void (*fn)(void* context, int64_t task, int thread),
                     void* context) {
  if (num_tasks <= 0) return;
  check(num_tasks <= UINT32_MAX, ErrorKind::kUnsupported, "a run has at most ", UINT32_MAX,
        " tasks, got ", num_tasks, "; make its tasks larger");
  if (num_tasks == 1 || state_->num_threads() == 1 || state_->is_forked_child()) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(context, task, 0);
    return;
  }
  const auto begin = Clock::now();
  state_->publish(num_tasks, fn, context);
  const int64_t count = state_->drain(0);
  state_->wait_done(num_tasks - count, begin);
}

}  // namespace flarecore
