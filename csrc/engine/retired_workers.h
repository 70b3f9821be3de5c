// Workers that cannot be waited for by whoever ended their engine, since that was a callback on
// themselves.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

namespace flarecore {

// Takes over a worker that is about to end; `ended` is true once it touches nothing any more.
void retire_worker(std::thread worker, std::shared_ptr<std::atomic<bool>> ended);

// Waits for all of them. To be called before what their callbacks need is torn down: a thread that
// asks for Python's lock after that is ended inside a destructor, and the process with it.
void join_retired_workers();

}  // namespace flarecore
