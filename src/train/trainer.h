// The training loop: plans, verifies, restores, steps, evaluates, saves.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "config/config.h"
#include "runtime/device.h"

namespace spillway {

struct TrainOptions {
  std::string resume;     // "latest", a checkpoint's folder, or "" for a fresh run
  std::string plan_file;  // run this plan instead of making one
  int64_t stop_at = 0;    // checkpoint after this step and end with resume_me; 0: never
  // For tests of the promises: poison freed bytes, delay copy lanes at random.
  bool poison = false;
  uint64_t chaos_seed = 0;
  int chaos_us = 0;
  FileSystem* files = nullptr;  // where checkpoints are; nullptr: posix_file_system()
  // Appends the batch of every step to this file, for comparisons with other trainers: i32 tokens
  // [batch, context], then i32 targets (-1: ignored). One rank only.
  std::string dump_batches;
};

// Runs to the end or to a requested stop. Called on every rank; Errors are thrown on all ranks that
// see them.
ExitCode train(const Config& config, const TrainOptions& options, Communicator& communicator);

}  // namespace spillway
