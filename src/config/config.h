// The typed configuration of a run. Every key of the JSON file is checked against
// configs/schema.json; unknown keys are errors that name the nearest valid one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway {

enum class Family : uint8_t { gpt2, llama };
enum class Precision : uint8_t { f32, bf16 };
enum class LrSchedule : uint8_t { cosine, linear, constant, wsd };  // wsd: warm-up, stable, decay
enum class Mode : uint8_t { automatic, off };
enum class Backend : uint8_t { automatic, cpu, cuda };

struct RopeConfig {
  double theta = 10000.0;
  bool llama3_scaling = false;  // the four fields below, as in Llama 3.1's config
  double factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  int64_t original_context = 8192;
  bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
  Family family = Family::llama;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, context = 0;
  int64_t head_dim = 0;    // default hidden / heads
  int64_t vocab = 0;       // default: the tokenizer's
  bool tied_head = false;  // default: gpt2 true, llama false
  bool qkv_bias = false;   // llama family only (Qwen2)
  bool qk_norm = false;    // llama family only (Qwen3)
  double norm_eps = 1e-5;
  double init_std = 0.02;
  RopeConfig rope;  // llama family only
  int64_t padded_vocab() const { return (vocab + 127) / 128 * 128; }
  bool operator==(const ModelConfig&) const = default;
};

struct DataConfig {
  std::vector<std::string> train;   // files, in order
  std::string tokenizer = "bytes";  // "bytes" (text), "gpt2.bin" (llm.c), "uint16", "uint32"
  double validation = 0.0;          // fraction of the tail of every file, or
  std::vector<std::string> validation_files;  // files of their own
  bool operator==(const DataConfig&) const = default;
};

struct TrainConfig {
  int64_t steps = 1000, batch = 8, micro_batch = 1;  // batch: sequences a step over all ranks
  Precision precision = Precision::f32;
  uint64_t seed = 1;
  int64_t eval_every = 0;      // 0: never
  int64_t eval_batches = 0;    // micro-batches a rank evaluates; 0: the whole validation part
  int64_t check_every = 1000;  // 0: never
  int64_t max_skipped = 10;
  int64_t threads = 0;  // compute threads a rank; 0: the cores of the node shared among its ranks
  int64_t loss_chunk = 0;  // tokens whose logits are alive at once; 0: a function of the vocabulary
  bool operator==(const TrainConfig&) const = default;
};

struct OptimizerConfig {
  double lr = 1e-3, min_lr = 0.0;
  LrSchedule schedule = LrSchedule::cosine;
  int64_t warmup = 0;
  int64_t decay = 0;  // wsd only: steps of the final decay
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double clip = 1.0;  // 0: no clipping
  bool operator==(const OptimizerConfig&) const = default;
};

// Bytes of one tier, or "auto": the profile's capacity (device), physical memory or the cgroup
// limit (host).
struct MemoryConfig {
  int64_t device = -1, host = -1;  // -1: auto
  bool operator==(const MemoryConfig&) const = default;
};

constexpr int kAutoZero = -1;

struct ParallelConfig {
  int zero = 1;              // 0 … 3; kAutoZero: the planner chooses
  int64_t reduce_every = 0;  // micro-batches summed on a rank before ranks are; 0: all
  int64_t tree = 0;          // inner width of the reduction tree; 0: auto
  bool operator==(const ParallelConfig&) const = default;
};

struct HardwareConfig {
  std::string profile = "auto";
  Backend backend = Backend::automatic;
  int64_t nodes = 0, devices_per_node = 0;  // 0: auto
  double link = 0.0;                        // bytes per second each way; 0: unpaced
  bool operator==(const HardwareConfig&) const = default;
};

struct CheckpointConfig {
  int64_t every = 0;  // 0: only the final one
  int64_t keep = 3;
  int64_t keep_every = 0;       // steps that are multiples of it stay for good; 0: none
  Mode copy = Mode::automatic;  // may a save copy the states to host memory first
  bool operator==(const CheckpointConfig&) const = default;
};

struct Config {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  MemoryConfig memory;
  Mode offload = Mode::automatic, recompute = Mode::automatic;
  // "moments@0-3,5" → "device"; in file order. Syntax and layers are checked by
  // parse_config, names by whoever knows the graph.
  std::vector<std::pair<std::string, std::string>> place;
  ParallelConfig parallel;
  HardwareConfig hardware;
  CheckpointConfig checkpoint;
  std::string output = "runs/default";
  bool operator==(const Config&) const = default;
};

// Reads `path` (at most 16 MiB, strict JSON, no duplicate keys), applies each "key=value" of
// `overrides` in order, fills defaults and checks every rule that needs no other file. A model may
// be given by name: {"model": "llama3-8b"} reads configs/models/llama3-8b.json beside the binary's
// source or installation, or {"model": {"preset": "llama3-8b", "context": 4096}}.
// Relative data files that the current folder does not have, but config_root() has, get its path.
// Throws Error(bad_input) naming file, key, what was found, what is expected, and the nearest key.
Config load_config(const std::string& path, const std::vector<std::string>& overrides);
Config parse_config(std::string_view text, const std::string& origin,
                    const std::vector<std::string>& overrides);

// The resolved configuration as JSON text that `parse_config` reads back to the same Config.
std::string to_json_text(const Config& config);

// Bytes of "64MiB", "1.5 GB", "300B"; throws bad_input naming `key`. Rates: "2GB/s".
int64_t parse_bytes(std::string_view text, const std::string& key);
double parse_rate(std::string_view text, const std::string& key);
std::string format_bytes(int64_t bytes);  // "1.50 GiB"
// The smallest size in hundredths of a mebibyte that is at least `bytes`, as a config spells it.
std::string size_at_least(int64_t bytes);

// A key of `place`: "qkv" (all layers), "qkv@0-3,5", "moments@embed", "parameters@head,0". Layers
// as in graph::Tensor: 0 the embedding, 1…`layers` the blocks (config block k is layer k + 1),
// `layers` + 1 the head; ascending. Throws bad_input.
std::pair<std::string, std::vector<int32_t>> parse_place_key(std::string_view key, int64_t layers);

// What pins of that name may say: for "update", in the order of UpdatePosition, where updates
// stand; else, in the order of Where, where tensors do.
const std::vector<std::string>& pin_values(std::string_view name);

// The candidate nearest to `word` by edit distance, for messages.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// Keys whose values differ between two resolved configs ("train.seed"), with both values printed,
// leaving out those a resumed run may change. "parallel.tree" is among them: whether the rank count
// changed, which permits it, is the caller's to know. Data files are the same if their full paths
// are. Throws bad_input if `saved_json` is no config.
struct KeyChange {
  std::string key, before, after;
};
std::vector<KeyChange> changes_that_forbid_resume(const std::string& saved_json, const Config& now);

// A hash over everything that can change a bit of the result for a given rank count (NumericsSpec).
// Data files count by name and order, not by folder. Set parallel.tree to the width in use before,
// if it is auto.
uint64_t numerics_hash(const Config& config, int ranks);

// Keys with their values as JSON text, in a fixed order.
using KeyValues = std::vector<std::pair<std::string, std::string>>;
// What numerics_hash is a hash of, "ranks" first.
KeyValues numerics_values(const Config& config, int ranks);

}  // namespace spillway
