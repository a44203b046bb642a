// The one list that ties keys of the schema to members of Config and HardwareProfile: reading,
// writing and comparing all walk it. Defaults, ranges and words are the schema's.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "config/hardware.h"

namespace spillway {

// Members whose JSON differs from their type. T is const when a Config is written.
template <class T>
struct SizeField {  // bytes ↔ "512MiB"; `word` stands for the value `word_value`
  T& bytes;
  const char* word = nullptr;
  int64_t word_value = 0;
};
template <class T>
struct RateField {  // bytes per second ↔ "2GB/s"
  T& rate;
  const char* word = nullptr;  // stands for 0
};
template <class T>
struct WordOrInteger {  // `stands_for` ↔ `word`
  T& number;
  const char* word;
  int stands_for = 0;
};
template <class T>
struct PairField {  // ↔ [first, second]
  T &first, &second;
};
template <class D>
struct ValidationField {  // ↔ fraction or list of files
  D& data;
};
template <class T>
struct SharesField {  // ↔ [[64, 0.3], [256, 0.8]], ascending
  T& shares;
};
template <class T>
struct OpRatesField {  // ↔ [{"op": "gelu", "precision": "f32", "seconds": 1e-6, …}], sorted
  T& rates;
};
template <class P>
struct PlaceField {  // ↔ {"qkv": "host"}
  P& pins;
};

template <class C, class F>
void for_each_field(C& c, F&& f) {
  auto& model = c.model;
  f("model.family", model.family);
  f("model.layers", model.layers);
  f("model.hidden", model.hidden);
  f("model.heads", model.heads);
  f("model.kv_heads", model.kv_heads);
  f("model.head_dim", model.head_dim);
  f("model.ffn", model.ffn);
  f("model.context", model.context);
  f("model.vocab", model.vocab);
  f("model.tied_head", model.tied_head);
  f("model.qkv_bias", model.qkv_bias);
  f("model.qk_norm", model.qk_norm);
  f("model.norm_eps", model.norm_eps);
  f("model.init_std", model.init_std);
  f("model.rope.theta", model.rope.theta);
  f("model.rope.llama3_scaling", model.rope.llama3_scaling);
  f("model.rope.factor", model.rope.factor);
  f("model.rope.low_freq_factor", model.rope.low_freq_factor);
  f("model.rope.high_freq_factor", model.rope.high_freq_factor);
  f("model.rope.original_context", model.rope.original_context);
  f("data.train", c.data.train);
  f("data.tokenizer", c.data.tokenizer);
  f("data.validation", ValidationField<decltype((c.data))>{c.data});
  f("train.steps", c.train.steps);
  f("train.batch", c.train.batch);
  f("train.micro_batch", c.train.micro_batch);
  f("train.precision", c.train.precision);
  f("train.seed", c.train.seed);
  f("train.eval_every", c.train.eval_every);
  f("train.eval_batches", c.train.eval_batches);
  f("train.check_every", c.train.check_every);
  f("train.max_skipped", c.train.max_skipped);
  f("train.threads", c.train.threads);
  f("train.loss_chunk", c.train.loss_chunk);
  auto& optimizer = c.optimizer;
  f("optimizer.lr", optimizer.lr);
  f("optimizer.schedule", optimizer.schedule);
  f("optimizer.warmup", optimizer.warmup);
  f("optimizer.decay", optimizer.decay);
  f("optimizer.min_lr", optimizer.min_lr);
  f("optimizer.betas", PairField<decltype((optimizer.beta1))>{optimizer.beta1, optimizer.beta2});
  f("optimizer.eps", optimizer.eps);
  f("optimizer.weight_decay", optimizer.weight_decay);
  f("optimizer.clip", optimizer.clip);
  f("memory.device", SizeField<decltype((c.memory.device))>{c.memory.device, "auto", -1});
  f("memory.host", SizeField<decltype((c.memory.host))>{c.memory.host, "auto", -1});
  f("offload", c.offload);
  f("recompute", c.recompute);
  f("place", PlaceField<decltype((c.place))>{c.place});
  auto& parallel = c.parallel;
  f("parallel.zero", WordOrInteger<decltype((parallel.zero))>{parallel.zero, "auto", kAutoZero});
  f("parallel.reduce_every",
    WordOrInteger<decltype((parallel.reduce_every))>{parallel.reduce_every, "all"});
  f("parallel.tree", WordOrInteger<decltype((parallel.tree))>{parallel.tree, "auto"});
  auto& hardware = c.hardware;
  f("hardware.profile", hardware.profile);
  f("hardware.backend", hardware.backend);
  f("hardware.nodes", WordOrInteger<decltype((hardware.nodes))>{hardware.nodes, "auto"});
  f("hardware.devices_per_node",
    WordOrInteger<decltype((hardware.nodes))>{hardware.devices_per_node, "auto"});
  f("hardware.link", RateField<decltype((hardware.link))>{hardware.link, "unpaced"});
  f("checkpoint.every", c.checkpoint.every);
  f("checkpoint.keep", c.checkpoint.keep);
  f("checkpoint.keep_every", c.checkpoint.keep_every);
  f("checkpoint.copy", c.checkpoint.copy);
  f("output", c.output);
}

// A profile but for its further tiers: the JSON of each is {"value": …, "source": …}.
template <class P, class F>
void for_each_profile_field(P& p, F&& f) {
  f("kind", p.kind);
  f("device_bytes", SizeField<decltype((p.device_bytes))>{p.device_bytes, "auto", 0});
  f("reserve_bytes", SizeField<decltype((p.reserve_bytes))>{p.reserve_bytes, "none", 0});
  f("gemm_workspace", SizeField<decltype((p.gemm_workspace))>{p.gemm_workspace, "none", 0});
  f("peak_f32", p.peak_f32);
  f("peak_bf16", p.peak_bf16);
  f("gemm_fraction", p.gemm_fraction);
  f("gemm_f32_shares", SharesField<decltype((p.gemm_f32_shares))>{p.gemm_f32_shares});
  f("gemm_bf16_shares", SharesField<decltype((p.gemm_bf16_shares))>{p.gemm_bf16_shares});
  f("attention_fraction", p.attention_fraction);
  f("attention_backward_fraction", p.attention_backward_fraction);
  f("memory_bandwidth", RateField<decltype((p.memory_bandwidth))>{p.memory_bandwidth});
  f("memory_fraction", p.memory_fraction);
  f("launch_seconds", p.launch_seconds);
  f("op_rates", OpRatesField<decltype((p.op_rates))>{p.op_rates});
  f("h2d_bandwidth", RateField<decltype((p.h2d_bandwidth))>{p.h2d_bandwidth});
  f("d2h_bandwidth", RateField<decltype((p.d2h_bandwidth))>{p.d2h_bandwidth});
  f("h2d_alone_bandwidth", RateField<decltype((p.h2d_alone_bandwidth))>{p.h2d_alone_bandwidth});
  f("d2h_alone_bandwidth", RateField<decltype((p.d2h_alone_bandwidth))>{p.d2h_alone_bandwidth});
  f("both_ways_bandwidth", RateField<decltype((p.both_ways_bandwidth))>{p.both_ways_bandwidth});
  f("copy_seconds", p.copy_seconds);
  f("exchange_seconds", p.exchange_seconds);
  f("devices_per_node", p.devices_per_node);
  f("numa_nodes", p.numa_nodes);
  f("devices_per_uplink", p.devices_per_uplink);
  f("uplink_bandwidth", RateField<decltype((p.uplink_bandwidth))>{p.uplink_bandwidth});
  f("host_bytes", SizeField<decltype((p.host_bytes))>{p.host_bytes, "auto", 0});
  f("host_bandwidth", RateField<decltype((p.host_bandwidth))>{p.host_bandwidth});
  f("cpu_update_bandwidth", RateField<decltype((p.cpu_update_bandwidth))>{p.cpu_update_bandwidth});
  f("intra_node_bandwidth", RateField<decltype((p.intra_node_bandwidth))>{p.intra_node_bandwidth});
  f("network_bandwidth", RateField<decltype((p.network_bandwidth))>{p.network_bandwidth});
  f("intra_node_path", p.intra_node_path);
  f("network_path", p.network_path);
}

// Words of the enumerations, in the order of their values; the schema's `enum` is the same list.
template <class E>
const std::vector<std::string>& words_of();
template <>
inline const std::vector<std::string>& words_of<Family>() {
  static const std::vector<std::string> words = {"gpt2", "llama"};
  return words;
}
template <>
inline const std::vector<std::string>& words_of<Precision>() {
  static const std::vector<std::string> words = {"f32", "bf16"};
  return words;
}
template <>
inline const std::vector<std::string>& words_of<LrSchedule>() {
  static const std::vector<std::string> words = {"cosine", "linear", "constant", "wsd"};
  return words;
}
template <>
inline const std::vector<std::string>& words_of<Mode>() {
  static const std::vector<std::string> words = {"auto", "off"};
  return words;
}
template <>
inline const std::vector<std::string>& words_of<MessagePath>() {
  static const std::vector<std::string> words = {"own", "link", "host"};
  return words;
}
template <>
inline const std::vector<std::string>& words_of<Backend>() {
  static const std::vector<std::string> words = {"auto", "cpu", "cuda"};
  return words;
}

}  // namespace spillway
