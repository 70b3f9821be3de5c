#include "bench/memory_reader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>

#include "common/check.h"
#include "common/huge_pages.h"
#include "cpu/cpu_isa.h"

namespace flarecore {
namespace {

constexpr int64_t kChunk = int64_t{256} << 10;
constexpr int64_t kChunkWords = kChunk / int64_t{sizeof(uint64_t)};
constexpr int64_t kLargest = int64_t{1} << 40;

}  // namespace

MemoryReader::MemoryReader(int64_t size_bytes, int num_threads) : size_bytes_(0) {
  check(size_bytes >= 1 && size_bytes <= kLargest, ErrorKind::kConfig,
        "size_bytes must be between 1 and 2^40, got ", size_bytes);
  threads_ = std::make_unique<ThreadPool>(num_threads);
  size_bytes_ = (size_bytes + kChunk - 1) / kChunk * kChunk;
  size_t memory_size = static_cast<size_t>(size_bytes_);
  words_ = reinterpret_cast<uint64_t*>(allocate_huge_pages(&memory_size));
  check(words_ != nullptr, ErrorKind::kUnsupported, "no memory for a buffer of ", size_bytes_,
        " bytes; measure with a smaller one");
  // Untouched memory is one page of zeros mapped many times, which would be read from the cache.
  threads_->parallel_for(size_bytes_ / kChunk, [this](int64_t chunk, int) {
    std::fill_n(words_ + chunk * kChunkWords, kChunkWords, uint64_t{1});
  });
}

MemoryReader::~MemoryReader() { std::free(words_); }

double MemoryReader::read_once() {
  std::atomic<uint64_t> total{0};
  const auto start = std::chrono::steady_clock::now();
  threads_->parallel_for(size_bytes_ / kChunk, [&](int64_t chunk, int) {
    const uint64_t sum = kernels().sum_words(words_ + chunk * kChunkWords, kChunkWords);
    total.fetch_add(sum, std::memory_order_relaxed);
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  check(total.load() == uint64_t(size_bytes_) / sizeof(uint64_t), ErrorKind::kInternal,
        "the read of ", size_bytes_, " bytes missed some");
  return seconds;
}

}  // namespace flarecore
