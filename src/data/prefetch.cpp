#include "data/prefetch.h"

#include <csignal>

namespace spillway {

Prefetcher::Prefetcher(const Dataset& dataset, const BatchShape& shape, uint64_t first_step)
    : reader_(dataset, shape), next_(first_step) {
  const int64_t micro_batches = shape.micro_batches();
  const int64_t rows = micro_batches * reader_.rows();
  for (Slot& slot : slots_) {
    slot.tokens.resize(rows);
    slot.targets.resize(rows);
    slot.token_order.resize(rows);
    slot.hashes.resize(micro_batches * shape.micro_batch);
    slot.batch = {0, slot.tokens, slot.targets, slot.token_order, slot.hashes};
  }
  // Signals are for the main thread, whose handlers ask for a checkpoint.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { work(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Prefetcher::~Prefetcher() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

const StepBatch& Prefetcher::get(uint64_t step) {
  Slot& slot = slots_[step % 2];
  std::unique_lock lock(mutex_);
  // Whatever was asked for before is dropped: it might be prepared into the slot that is returned.
  if (slot.batch.step != step) {
    next_ = filling_ == step ? 0 : step;
    changed_.notify_all();
    changed_.wait(lock, [&] { return slot.batch.step == step; });
  }
  const uint64_t after = step + 1;
  next_ = slots_[after % 2].batch.step == after || filling_ == after ? 0 : after;
  changed_.notify_all();
  return slot.batch;
}

void Prefetcher::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || next_ != 0; });
    if (stop_) return;
    const uint64_t step = filling_ = next_;
    next_ = 0;
    Slot& slot = slots_[step % 2];
    slot.batch.step = 0;
    lock.unlock();
    fill(step, slot);
    lock.lock();
    slot.batch.step = step;
    filling_ = 0;
    changed_.notify_all();
  }
}

void Prefetcher::fill(uint64_t step, Slot& slot) {
  const int64_t rows = reader_.rows(), sequences = reader_.shape().micro_batch;
  for (int64_t micro = 0; micro < reader_.shape().micro_batches(); ++micro) {
    reader_.fill(step, micro,
                 {std::span(slot.tokens).subspan(micro * rows, rows),
                  std::span(slot.targets).subspan(micro * rows, rows),
                  std::span(slot.token_order).subspan(micro * rows, rows),
                  std::span(slot.hashes).subspan(micro * sequences, sequences)});
  }
}

}  // namespace spillway
