// The checkpoints of an output folder: which are there, which to resume from, which to keep.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/reader.h"

namespace spillway {

struct CheckpointFolder {
  uint64_t step = 0;
  std::string path;
};

std::string checkpoints_folder(const std::string& output);  // <output>/checkpoints

// Every step_XXXXXXXX, newest first, complete or not. An absent folder has none.
std::vector<CheckpointFolder> list_checkpoints(FileSystem& files, const std::string& output);

struct SkippedCheckpoint {
  std::string path, reason;
};
struct ResumeChoice {
  std::string path;
  uint64_t step = 0;
  std::vector<SkippedCheckpoint> skipped;  // newer ones that are not valid
};

// `request` is "latest" (the newest complete checkpoint whose hashes all match) or a checkpoint's
// folder. First finishes or undoes a replacement that a crash interrupted, so one rank calls this
// and tells the others. nullopt: "latest" and there is no checkpoint at all. Throws
// Error(bad_input) if there are some but none is valid, or the one named is not.
std::optional<ResumeChoice> find_resume(FileSystem& files, const std::string& output,
                                        const std::string& request);

struct Retention {
  int64_t keep = 3;        // newest complete ones that stay; at least 1
  int64_t keep_every = 0;  // steps that are multiples of this stay for good; 0: none
};

// Removes leftovers of interrupted saves, and checkpoints that `retention` does not keep. What is
// complete by manifest, sizes and headers counts, so the last good one always stays; `just_written`
// stays too, and so do incomplete ones that are newer than a kept one. Returns the checkpoints
// removed. Rank 0 only, while no other rank reads or saves.
std::vector<std::string> apply_retention(FileSystem& files, const std::string& output,
                                         const Retention& retention, uint64_t just_written);

// Undoes or finishes publish_checkpoint's replacement of a checkpoint of the same step.
void recover_replaced(FileSystem& files, const std::string& output);

// The checks of find_resume, then one line a tensor, then "state_hash HEX" and "weights_hash HEX".
std::string inspect_checkpoint(FileSystem& files, const std::string& path);

}  // namespace spillway
