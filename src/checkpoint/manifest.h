// What a checkpoint holds and where: the types of manifest.json.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace spillway {

// Everything about the run that is not a tensor.
struct RunState {
  uint64_t step = 0;            // training steps done, skipped ones included
  uint64_t data_position = 0;   // sequences of the global stream read so far
  uint64_t updates = 0;         // updates applied: Adam's t
  uint64_t skipped = 0;         // steps skipped for a loss or norm that was not finite, in all
  uint64_t skipped_in_row = 0;  // … and directly before this checkpoint
  int32_t ranks = 1;
  int32_t tree = 1;  // inner width of the reduction tree
  uint64_t numerics_hash = 0;
  std::map<std::string, std::string> fingerprint;  // ISA, library versions
  std::string config;                              // resolved config, JSON text
  std::string gemm_algorithms;  // JSON text of the device's choices; "": it makes none
};

// Elements [begin, begin + count) of a tensor, flat in row-major order, and the entry of a shard
// that holds them as little-endian f32.
struct StoredSlice {
  int32_t shard = 0;
  std::string entry;
  int64_t begin = 0, count = 0;
  uint64_t hash = 0;  // XXH3 of the entry's bytes
};

struct StoredTensor {
  std::string name;
  Dims shape;                       // live: without vocabulary padding
  std::vector<StoredSlice> slices;  // ascending; they tile [0, shape.count()) exactly
};

struct ShardFile {
  int64_t bytes = 0;
  uint64_t header_hash = 0;  // XXH3 of length word and JSON header
};

struct Manifest {
  RunState run;
  std::vector<ShardFile> shards;      // shard i is the file shard_name(i)
  std::vector<StoredTensor> tensors;  // ascending names, each once
};

std::string shard_name(int32_t shard);   // "rank_00003.safetensors"
std::string step_folder(uint64_t step);  // "step_00001000"
constexpr const char* kManifestName = "manifest.json";

// Puts the slices of every rank together and proves that they tile every tensor; throws
// Error(internal) otherwise. Slices and tensors may come in any order.
void sort_and_check(Manifest& manifest);

std::string to_text(const Manifest& manifest);

// Throws Error(bad_input) that starts with `origin` if the text is not a manifest of this format
// and version, fails its checksum, or breaks any rule above.
Manifest parse_manifest(std::string_view text, const std::string& origin);

// A tensor is optimizer state if it is named "<another tensor>.m" or "<another tensor>.v".
bool is_moment(const Manifest& manifest, const std::string& name);
const StoredTensor* find_tensor(const Manifest& manifest, const std::string& name);

}  // namespace spillway
