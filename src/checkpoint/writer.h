// Writes a checkpoint so that it is seen whole or not at all:
//   1. rank 0 makes the folder <output>/checkpoints/.tmp_step_XXXXXXXX
//   2. every rank writes and syncs its shard in it
//   3. when all have: rank 0 writes and syncs the manifest and the folder, renames it to
//      step_XXXXXXXX and syncs the parent
// A crash at any point leaves the earlier checkpoints as they were.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/manifest.h"
#include "runtime/device.h"

namespace spillway {

// What one rank contributes of one global tensor. The slices of all ranks tile every tensor
// exactly: of a replicated tensor each element is written by one rank.
struct TensorSlice {
  std::string name;              // "<param>", "<param>.m", "<param>.v"
  Dims shape;                    // live shape of the whole tensor
  int64_t begin = 0, count = 0;  // elements, flat; count 0 contributes nothing
  // Copies `bytes` bytes from `offset` bytes after the slice's first element to `out`, as f32.
  std::function<void(int64_t offset, void* out, int64_t bytes)> read;
};

struct ShardReport {
  ShardFile file;
  std::vector<StoredTensor> tensors;  // with this shard's slices alone
};

// Step 1. Returns the folder; leftovers of the same name are removed first.
std::string begin_checkpoint(FileSystem& files, const std::string& output, uint64_t step);

// Step 2: <folder>/rank_XXXXX.safetensors. Data passes through `staging` (at least 4 bytes), in
// pieces of its size; nothing else of a tensor's size is allocated.
ShardReport write_shard(FileSystem& files, const std::string& folder, int32_t rank,
                        const std::vector<TensorSlice>& slices, std::span<std::byte> staging);

// Step 3. `reports[i]` is rank i's. Replaces an earlier checkpoint of the same step. Returns the
// checkpoint's folder.
std::string publish_checkpoint(FileSystem& files, const std::string& output, const RunState& run,
                               const std::vector<ShardReport>& reports);

struct SaveOutcome {
  std::string path;                  // on every rank
  std::vector<std::string> removed;  // by retention; rank 0 only
  std::string warning;               // retention failed, the checkpoint is good; rank 0 only
};

// All three steps and apply_retention (see store.h), called by all ranks at the same time. A
// failure of any rank is thrown as the same Error on all of them, after the temporary folder is
// removed.
SaveOutcome save_checkpoint(FileSystem& files, Communicator& communicator,
                            const std::string& output, const RunState& run,
                            const std::vector<TensorSlice>& slices, std::span<std::byte> staging,
                            int64_t keep);

}  // namespace spillway
