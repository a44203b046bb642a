// Writes a checkpoint so that it is seen whole or not at all:
//   1. rank 0 makes the folder <output>/checkpoints/.tmp_step_XXXXXXXX
//   2. every rank writes and syncs its shard in it
//   3. when all have: rank 0 writes and syncs the manifest and the folder, renames it to
//      step_XXXXXXXX and syncs the parent
// A crash at any point leaves the earlier checkpoints as they were. saving.h takes the steps while
// training goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/manifest.h"

namespace spillway {

// What one rank contributes of one global tensor. The slices of all ranks tile every tensor
// exactly: of a replicated tensor each element is written by one rank.
struct TensorSlice {
  std::string name;              // "<param>", "<param>.m", "<param>.v"
  Dims shape;                    // live shape of the whole tensor
  int64_t begin = 0, count = 0;  // elements, flat; count 0 contributes nothing
};

struct ShardReport {
  ShardFile file;
  std::vector<StoredTensor> tensors;  // with this shard's slices alone
};

// Step 1. Returns the folder; leftovers of the same name are removed first.
std::string begin_checkpoint(FileSystem& files, const std::string& output, uint64_t step);

// Step 2: writes this rank's shard, named by shard_name. Allocates no copy of a tensor.
class ShardWriter {
 public:
  // Creates the file and writes its header.
  ShardWriter(FileSystem& files, const std::string& folder, int32_t rank,
              const std::vector<TensorSlice>& slices);

  // The next bytes of all slices' elements, one slice after the other, as f32.
  void append(const void* data, int64_t bytes);

  // Syncs and closes the file. Throws Error(internal) if bytes are missing.
  ShardReport finish();

 private:
  std::string path_;
  std::unique_ptr<WritableFile> file_;
  ShardReport report_;
  size_t next_ = 0;               // the tensor after the one that the next byte belongs to
  int64_t left_ = 0;              // bytes of the tensor before `next_` that are still to come
  std::optional<Hasher> hasher_;  // of that tensor so far
};

// Step 3. `reports[i]` is rank i's. Replaces an earlier checkpoint of the same step. Returns the
// checkpoint's folder.
std::string publish_checkpoint(FileSystem& files, const std::string& output, const RunState& run,
                               const std::vector<ShardReport>& reports);

// What a failed save leaves behind goes; a checkpoint that was to be replaced comes back. Best
// effort: what cannot be removed now is invisible, and removed by the next save or start.
void abandon_checkpoint(FileSystem& files, const std::string& output, uint64_t step) noexcept;

}  // namespace spillway
