#include "train/sample.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "base/file.h"
#include "base/philox.h"
#include "checkpoint/reader.h"
#include "config/config.h"
#include "data/token_file.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"
#include "model/model.h"
#include "parallel/build.h"
#include "runtime/cpu/cpu_device.h"
#include "runtime/executor.h"
#include "runtime/launch.h"
#include "runtime/local_communicator.h"
#include "train/state.h"

namespace spillway {
namespace {

constexpr int64_t kPrefillTokens = 64;  // rows of one prefill call

std::vector<int32_t> encode(const std::string& prompt, bool bytes, int64_t vocab) {
  std::vector<int32_t> tokens;
  if (bytes) {
    for (const char c : prompt) tokens.push_back(static_cast<unsigned char>(c));
    if (tokens.empty()) tokens.push_back(kEndOfText);
    return tokens;
  }
  for (size_t at = 0; at < prompt.size();) {
    const size_t end = std::min(prompt.find(' ', at), prompt.size());
    int32_t id = -1;
    const auto [last, error] = std::from_chars(prompt.data() + at, prompt.data() + end, id);
    if (end > at) {
      if (error != std::errc() || last != prompt.data() + end || id < 0 || id >= vocab)
        bad_input(
            "--prompt: \"{}\" at offset {} is no token id below {}; this model's tokenizer "
            "is not \"bytes\", so the prompt is token ids separated by spaces",
            prompt.substr(at, end - at), at, vocab);
      tokens.push_back(id);
    }
    at = end + 1;
  }
  if (tokens.empty()) bad_input("--prompt: expected at least one token id");
  return tokens;
}

class Sampler {
 public:
  Sampler(const Config& config, const CheckpointReader& reader) : model_(config.model) {
    GraphShape shape;
    const ParallelSpec spec;
    prefill_rows_ = std::min(kPrefillTokens, model_.context);
    shape.tokens = prefill_rows_;
    const auto build = [&](GraphMode mode) {
      return build_model(model_, config.train.precision, 0, shape, mode);
    };
    prefill_ = build_forward_schedule("prefill", build(GraphMode::prefill), spec);
    shape.tokens = 1;
    decode_ = build_forward_schedule("decode", build(GraphMode::decode), spec);
    const int threads = claim_cores(static_cast<int>(config.train.threads), communicator_).threads;
    lowered_ = lower({&prefill_, &decode_}, {}, {.threads = threads}, 0);
    layout_ = pack(lowered_.set);
    synchronise(lowered_.set, layout_);
    CpuDeviceOptions options;
    options.compute_thread_start = [threads] { cpu::set_threads(threads); };
    device_ = std::make_unique<CpuDevice>(cpu::kernel, &communicator_, options);
    executor_ = std::make_unique<Executor>(lowered_.set, layout_, *device_);
    restore_state(prefill_, lowered_.homes, *executor_, reader);
  }

  // Feeds tokens; afterwards logits() are those of the token after the last one.
  void feed(const std::vector<int32_t>& tokens) {
    for (size_t at = 0; at < tokens.size();) {
      const bool one = tokens.size() - at == 1;
      const int64_t rows = one ? 1 : prefill_rows_;
      const int64_t count = std::min<int64_t>(
          {rows, static_cast<int64_t>(tokens.size() - at), model_.context - position_});
      run(one ? 1 : 0, tokens.data() + at, rows, count);
      at += static_cast<size_t>(count);
    }
  }

  void reset() { position_ = 0; }
  int64_t position() const { return position_; }
  const float* logits() const { return logits_; }

 private:
  void run(int program, const int32_t* tokens, int64_t rows, int64_t count) {
    const std::string name = program == 0 ? "prefill" : "decode";
    const auto io = [&](const char* what) {
      return executor_->address(lowered_.io.at(name + what));
    };
    int32_t* out = static_cast<int32_t*>(io(".tokens"));
    std::fill_n(out, rows, 0);
    std::copy_n(tokens, count, out);
    StepScalars scalars;
    scalars.position = static_cast<int32_t>(position_);
    scalars.count = static_cast<int32_t>(count);
    std::memcpy(io(".scalars"), &scalars, sizeof scalars);
    executor_->run(program);
    executor_->finish();
    position_ += count;
    logits_ = static_cast<const float*>(io(".logits"));
  }

  ModelConfig model_;
  LocalCommunicator communicator_;
  Schedule prefill_, decode_;
  Lowered lowered_;
  ArenaLayout layout_;
  std::unique_ptr<CpuDevice> device_;
  std::unique_ptr<Executor> executor_;
  int64_t position_ = 0, prefill_rows_ = 0;
  const float* logits_ = nullptr;
};

int32_t draw(const float* logits, int64_t vocab, double temperature, uint64_t seed,
             uint64_t index) {
  const int64_t best = std::max_element(logits, logits + vocab) - logits;
  if (temperature == 0) return static_cast<int32_t>(best);
  std::vector<double> weight(static_cast<size_t>(vocab));
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i)
    sum += weight[i] = std::exp((logits[i] - logits[best]) / temperature);
  double left = uniform_open(philox(seed, index, 0)[0]) * sum;
  for (int64_t i = 0; i < vocab; ++i)
    if ((left -= weight[i]) <= 0) return static_cast<int32_t>(i);
  return static_cast<int32_t>(best);
}

}  // namespace

ExitCode sample_command(const SampleOptions& options) {
  const CheckpointReader reader(posix_file_system(), options.checkpoint);
  reader.verify();
  const Config config = parse_config(reader.manifest().run.config, options.checkpoint, {});
  const bool bytes = config.data.tokenizer == "bytes";
  std::vector<int32_t> history = encode(options.prompt, bytes, config.model.vocab);
  Sampler sampler(config, reader);

  const auto print = [&](int32_t token) {
    if (!bytes)
      std::printf("%d ", token);
    else if (token != kEndOfText)
      std::putchar(token);
  };
  const int64_t half = std::max<int64_t>(1, config.model.context / 2);
  const auto newest = [&](int64_t count) {
    return std::vector<int32_t>(
        history.end() - std::min(count, static_cast<int64_t>(history.size())), history.end());
  };
  for (const int32_t token : history) print(token);
  sampler.feed(newest(config.model.context));
  for (int64_t i = 0; i < options.tokens; ++i) {
    const int32_t token = draw(sampler.logits(), config.model.vocab, options.temperature,
                               options.seed, static_cast<uint64_t>(i));
    if (bytes && token == kEndOfText) break;
    print(token);
    history.push_back(token);
    if (i + 1 == options.tokens) break;
    if (sampler.position() == config.model.context) {
      sampler.reset();
      sampler.feed(newest(half));
    } else {
      sampler.feed({token});
    }
  }
  std::putchar('\n');
  return ExitCode::done;
}

}  // namespace spillway
