// Reads any slice of any tensor of a checkpoint, whatever ranks wrote it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace spillway {

// Open for its lifetime; all members are const and may be called by any number of threads. Every
// error is Error(bad_input) that names file and tensor, unless the system failed.
class CheckpointReader {
 public:
  // Checks the manifest, and size and header of every shard: the checkpoint is complete.
  CheckpointReader(FileSystem& files, const std::string& path);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  // Reads everything and compares every hash.
  void verify() const;

  // Elements [begin, begin + count) of a tensor, flat, to `out`. Hashes of entries that are read
  // whole are compared; call `verify` on one rank before, for the others.
  void read(const std::string& name, int64_t begin, int64_t count, float* out) const;

 private:
  const SafetensorsEntry& entry_of(const StoredTensor& tensor, const StoredSlice& slice) const;
  [[noreturn]] void damaged(const StoredTensor& tensor, const StoredSlice& slice,
                            uint64_t found) const;

  std::string path_;
  Manifest manifest_;
  std::vector<std::unique_ptr<ReadableFile>> shards_;
  std::vector<std::map<std::string, SafetensorsEntry>> entries_;  // by shard
};

// Hashes over names, live shapes and elements of the global tensors in name order, so that they do
// not depend on ranks and placement.
struct StateHashes {
  uint64_t state = 0;    // everything
  uint64_t weights = 0;  // without optimizer moments
};
StateHashes hash_state(const CheckpointReader& reader);

}  // namespace spillway
