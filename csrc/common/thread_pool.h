// A fixed pool of worker threads for the forward pass.
#pragma once

#include <cstdint>
#include <memory>

namespace flarecore {

// Threads this process may really use: affinity and the cgroup CPU quota, at least 1.
int usable_num_threads();

// Runs index ranges in parallel. One run at a time: the caller takes part as thread 0 and returns
// when all tasks are done. Each thread begins with a share of neighbouring tasks and helps others
// when it is through, so which thread runs a task is not fixed: a task writes only what its index
// owns. Workers spin briefly, then sleep. A worker
// that a neighbour keeps from finishing its task does so on the caller's core. A pool made before
// fork() runs everything on the calling thread in the child. Tasks must not throw.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // >= 1, counts the caller
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;
  // The first task of a thread's share; that of `thread + 1` is its end. The lowest threads, of
  // which the caller begins at once, get what is left over.
  static int64_t share_begin(int64_t num_tasks, int thread, int num_threads) {
    return (num_tasks * thread + num_threads - 1) / num_threads;
  }
  // What `thread` asks memory for while it waits for its next task; it is never dereferenced. To be
  // called by a task on its own thread.
  void read_while_waiting(int thread, const uint8_t* begin, int64_t size_bytes);
  int64_t num_late() const;  // how often a worker was moved to the caller's core

  // Calls fn(context, task, thread) for each task in [0, num_tasks), thread in [0, num_threads).
  void run(int64_t num_tasks, void (*fn)(void* context, int64_t task, int thread), void* context);

  template <typename F>
  void parallel_for(int64_t num_tasks, F&& body) {  // body(task, thread)
    run(num_tasks,
        [](void* c, int64_t task, int thread) {
          (*static_cast<std::remove_reference_t<F>*>(c))(task, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace flarecore
