// Prepares the next step's batch on a thread of its own while the current one runs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "data/dataset.h"

namespace spillway {

// What one rank reads in one step: M micro-batches of T rows, in order.
struct StepBatch {
  uint64_t step = 0;
  std::span<const int32_t> tokens, targets, token_order;  // i32[M][T]
  std::span<const uint64_t> hashes;                       // u64[M][micro_batch], see token_hash
};

// Allocates in the constructor and nothing afterwards. `get` is called by one thread; the dataset
// outlives the prefetcher.
class Prefetcher {
 public:
  // Starts to prepare `first_step` (from 1) at once.
  Prefetcher(const Dataset& dataset, const BatchShape& shape, uint64_t first_step);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // The batch of `step`; blocks until it is ready and starts on step + 1. What an earlier call
  // returned is overwritten from now on. Any order of steps is right, ascending is fast.
  const StepBatch& get(uint64_t step);

 private:
  struct Slot {
    std::vector<int32_t> tokens, targets, token_order;
    std::vector<uint64_t> hashes;
    StepBatch batch;  // step 0: not ready
  };
  void work();
  void fill(uint64_t step, Slot& slot);

  BatchReader reader_;  // used by the thread alone
  Slot slots_[2];       // step s stands in slot s mod 2
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0;     // step to prepare; 0: none
  uint64_t filling_ = 0;  // step being prepared; 0: none
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace spillway
