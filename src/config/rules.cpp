#include "config/rules.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"

namespace spillway {
namespace {

constexpr int64_t kByteVocabulary = 257;  // 256 bytes and end of text
constexpr int64_t kGpt2Vocabulary = 50257;
constexpr int64_t kMaxMicroBatchTokens = int64_t{1} << 27;  // byte counts stay far below 2^63

// The divisor of `n` nearest to `x`.
int64_t nearest_divisor(int64_t n, int64_t x) {
  int64_t best = 1;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    for (const int64_t candidate : {d, n / d})
      if (std::llabs(candidate - x) < std::llabs(best - x)) best = candidate;
  }
  return best;
}

// A key of the llama family that a gpt2 model sets to anything but "off".
void check_gpt2(const ModelConfig& model, const Json& json, const std::string& origin) {
  const auto reject = [&](const char* key, const char* feature) {
    bad_input("{}: model.{}: {} does not apply to model.family \"gpt2\", only to \"llama\"", origin,
              key, feature);
  };
  if (json.contains("rope")) reject("rope", "rotary positions");
  if (model.qk_norm) reject("qk_norm", "a norm of Q and K heads");
  if (model.qkv_bias) reject("qkv_bias", "a choice of biases (gpt2 always has them)");
  if (model.kv_heads != model.heads) reject("kv_heads", "grouped KV heads");
  if (model.head_dim * model.heads != model.hidden) reject("head_dim", "a head size of its own");
}

void check_model(const ModelConfig& model, const Json& json, const std::string& origin) {
  if (model.heads % model.kv_heads != 0) {
    bad_input("{}: model.kv_heads: {} does not divide model.heads {}; the nearest that does is {}",
              origin, model.kv_heads, model.heads, nearest_divisor(model.heads, model.kv_heads));
  }
  if (model.head_dim % 2 != 0) {
    bad_input("{}: model.head_dim: expected an even number, found {}{}", origin, model.head_dim,
              json.contains("head_dim") ? "" : " (model.hidden / model.heads)");
  }
  if (model.family == Family::gpt2) check_gpt2(model, json, origin);
  const RopeConfig& rope = model.rope;
  if (!rope.llama3_scaling && json.contains("rope")) {
    for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_context"}) {
      if (json["rope"].contains(key)) {
        bad_input("{}: model.rope.{} acts only with model.rope.llama3_scaling true", origin, key);
      }
    }
  }
  if (rope.llama3_scaling && rope.high_freq_factor <= rope.low_freq_factor) {
    bad_input("{}: model.rope.high_freq_factor: expected more than low_freq_factor {}, found {}",
              origin, rope.low_freq_factor, rope.high_freq_factor);
  }
}

void check_data(const Config& config, const std::string& origin) {
  const auto check_files = [&](const std::vector<std::string>& files, const char* key) {
    for (const std::string& file : files) {
      if (file.size() > 4 && file.compare(file.size() - 4, 4, ".idx") == 0) {
        bad_input("{}: not supported yet: Megatron token files ({} has {})", origin, key,
                  in_quotes(file));
      }
    }
  };
  check_files(config.data.train, "data.train");
  check_files(config.data.validation_files, "data.validation");
  if (config.data.tokenizer == "bytes" && config.model.vocab < kByteVocabulary) {
    bad_input("{}: model.vocab: {} is smaller than the {} tokens of data.tokenizer \"bytes\"",
              origin, config.model.vocab, kByteVocabulary);
  }
  const bool held_out = config.data.validation > 0 || !config.data.validation_files.empty();
  if (config.train.eval_every > 0 && !held_out) {
    bad_input("{}: train.eval_every is {}, but data.validation holds nothing out to evaluate",
              origin, config.train.eval_every);
  }
}

void check_train(const Config& config, const std::string& origin) {
  const TrainConfig& train = config.train;
  if (train.batch % train.micro_batch != 0) {
    bad_input(
        "{}: train.micro_batch: {} does not divide train.batch {}; the nearest that does is {}",
        origin, train.micro_batch, train.batch, nearest_divisor(train.batch, train.micro_batch));
  }
  if (train.micro_batch * config.model.context > kMaxMicroBatchTokens) {
    bad_input("{}: train.micro_batch x model.context: {} tokens, more than {}", origin,
              train.micro_batch * config.model.context, kMaxMicroBatchTokens);
  }
  const int64_t micro_batches = train.batch / train.micro_batch;
  const int64_t reduce_every = config.parallel.reduce_every;
  if (reduce_every > 0 && micro_batches % reduce_every != 0) {
    bad_input(
        "{}: parallel.reduce_every: {} does not divide the {} micro-batches of a step "
        "(train.batch / train.micro_batch); the nearest that does is {}",
        origin, reduce_every, micro_batches, nearest_divisor(micro_batches, reduce_every));
  }
}

void check_optimizer(const Config& config, const std::string& origin) {
  const OptimizerConfig& optimizer = config.optimizer;
  if (optimizer.warmup > config.train.steps) {
    bad_input("{}: optimizer.warmup: {} steps are more than the run has (train.steps {})", origin,
              optimizer.warmup, config.train.steps);
  }
  if (optimizer.schedule != LrSchedule::wsd && optimizer.decay != 0) {
    bad_input("{}: optimizer.decay acts only with optimizer.schedule \"wsd\"", origin);
  }
  if (optimizer.schedule == LrSchedule::wsd) {
    if (optimizer.decay == 0) {
      bad_input(
          "{}: optimizer.decay is missing: optimizer.schedule \"wsd\" needs the steps of its "
          "final decay, at least 1",
          origin);
    }
    if (optimizer.warmup + optimizer.decay > config.train.steps) {
      bad_input(
          "{}: optimizer.decay: {} steps and optimizer.warmup {} are more than the run has "
          "(train.steps {})",
          origin, optimizer.decay, optimizer.warmup, config.train.steps);
    }
  }
  if (optimizer.min_lr > optimizer.lr) {
    bad_input("{}: optimizer.min_lr: expected at most optimizer.lr {}, found {}", origin,
              optimizer.lr, optimizer.min_lr);
  }
}

void check_place(const Config& config, const std::string& origin) {
  for (const auto& [key, where] : config.place) {
    std::string name;
    try {
      name = parse_place_key(key, config.model.layers).first;
    } catch (const Error& error) {
      bad_input("{}: {}", origin, error.what());
    }
    const std::vector<std::string> states = {"moments", "master", "gradients", "parameters"};
    const bool state = std::find(states.begin(), states.end(), name) != states.end();
    std::vector<std::string> allowed = pin_values(name);
    const bool known = std::find(allowed.begin(), allowed.end(), where) != allowed.end();
    if (known && !(state && where == "recompute")) continue;
    if (state) std::erase(allowed, "recompute");
    bad_input("{}: place.{}: {}; expected {}", origin, in_quotes(key),
              known ? name + " cannot be recomputed" : "found " + in_quotes(where),
              alternatives(allowed));
  }
}

}  // namespace

void fill_model(Config& config, const Json& root, const std::string& origin) {
  ModelConfig& model = config.model;
  const Json& json = root.at("model");
  if (!json.contains("kv_heads")) model.kv_heads = model.heads;
  if (!json.contains("head_dim")) {
    if (model.hidden % model.heads != 0) {
      bad_input(
          "{}: model.heads: {} does not divide model.hidden {}; the nearest that does is {} "
          "(or give model.head_dim)",
          origin, model.heads, model.hidden, nearest_divisor(model.hidden, model.heads));
    }
    model.head_dim = model.hidden / model.heads;
    if (model.head_dim > 1024) {
      bad_input("{}: model.heads: {} make heads of {}, more than 1024", origin, model.heads,
                model.head_dim);
    }
  }
  if (!json.contains("tied_head")) model.tied_head = model.family == Family::gpt2;
  if (!json.contains("vocab")) {
    const std::string& tokenizer = config.data.tokenizer;
    if (tokenizer != "bytes" && tokenizer != "gpt2.bin") {
      bad_input(
          "{}: model.vocab is missing: data.tokenizer \"{}\" does not say how many tokens there "
          "are",
          origin, tokenizer);
    }
    model.vocab = tokenizer == "bytes" ? kByteVocabulary : kGpt2Vocabulary;
  }
}

void check_rules(const Config& config, const Json& root, const std::string& origin) {
  check_model(config.model, root.at("model"), origin);
  check_data(config, origin);
  check_train(config, origin);
  check_optimizer(config, origin);
  check_place(config, origin);
}

}  // namespace spillway
