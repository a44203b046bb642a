// Reads the goldens that generate.py writes and compares a backend's losses and gradients with
// them.
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/model.h"
#include "parallel/build.h"
#include "tests/golden/interpreter.h"

namespace spillway::golden {

struct Golden {
  ModelConfig model;
  int32_t batch = 0, micro_batches = 0;
  int32_t draws = 0;  // of weights and tokens that PyTorch's bf16 errors are over
  std::vector<int32_t> tokens, targets;  // [micro_batches, batch, context]
  std::vector<double> losses;            // of each micro-batch, f64
  // PyTorch's own, relative to f64: of this draw in f32, root mean square of all draws in bf16.
  double f32_loss_error = 0, bf16_loss_error = 0;
  struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<double> weight, gradient;
    double f32_error = 0, bf16_error = 0;  // PyTorch's own, of the gradient
  };
  std::vector<Parameter> parameters;
};

inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

inline Golden load_golden(const std::string& name) {
  const std::string base = std::string(SPILLWAY_SOURCE_DIR) + "/tests/golden/" + name;
  std::ifstream text(base + ".json");
  const nlohmann::json j = nlohmann::json::parse(text);
  std::ifstream binary(base + ".bin", std::ios::binary);
  const std::string blob(std::istreambuf_iterator<char>(binary), {});
  Golden g;
  const nlohmann::json& m = j.at("model");
  g.model.family = m.at("family") == "gpt2" ? Family::gpt2 : Family::llama;
  for (const auto& [key, field] :
       {std::pair{"layers", &g.model.layers}, std::pair{"hidden", &g.model.hidden},
        std::pair{"heads", &g.model.heads}, std::pair{"kv_heads", &g.model.kv_heads},
        std::pair{"ffn", &g.model.ffn}, std::pair{"context", &g.model.context},
        std::pair{"head_dim", &g.model.head_dim}, std::pair{"vocab", &g.model.vocab}})
    *field = m.at(key);
  g.model.tied_head = m.at("tied_head");
  g.model.qkv_bias = m.at("qkv_bias");
  g.model.qk_norm = m.at("qk_norm");
  g.model.norm_eps = m.at("norm_eps");
  if (m.contains("rope")) {
    const nlohmann::json& r = m["rope"];
    g.model.rope = {r.at("theta"),           r.at("llama3_scaling"),   r.at("factor"),
                    r.at("low_freq_factor"), r.at("high_freq_factor"), r.at("original_context")};
  }
  g.batch = j.at("batch");
  g.micro_batches = j.at("micro_batches");
  g.draws = j.at("draws");
  g.tokens = j.at("tokens").get<std::vector<int32_t>>();
  g.targets = j.at("targets").get<std::vector<int32_t>>();
  g.losses = j.at("losses").get<std::vector<double>>();
  g.f32_loss_error = j.at("f32_loss_error");
  g.bf16_loss_error = j.at("bf16_loss_error");
  const size_t elements = j.at("elements");
  if (blob.size() != elements * 12)
    internal_error("{}.bin has {} bytes, not {}", base, blob.size(), elements * 12);
  for (const nlohmann::json& p : j.at("parameters")) {
    Golden::Parameter parameter;
    parameter.name = p.at("name");
    parameter.f32_error = p.at("f32_error");
    parameter.bf16_error = p.at("bf16_error");
    parameter.shape = p.at("shape").get<std::vector<int64_t>>();
    size_t count = 1;
    for (int64_t d : parameter.shape) count *= d;
    std::vector<float> weight(count);
    parameter.gradient.resize(count);
    const size_t begin = p.at("begin");
    std::memcpy(weight.data(), blob.data() + begin * 4, count * 4);
    std::memcpy(parameter.gradient.data(), blob.data() + elements * 4 + begin * 8, count * 8);
    parameter.weight.assign(weight.begin(), weight.end());
    g.parameters.push_back(std::move(parameter));
  }
  return g;
}

// Fills tokens, targets and token_order of one micro-batch.
inline void load_batch(Interpreter& run, const int32_t* tokens, const int32_t* targets,
                       int64_t rows) {
  std::vector<int32_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return tokens[a] < tokens[b]; });
  std::copy_n(tokens, rows, run.data<int32_t>("tokens"));
  std::copy_n(targets, rows, run.data<int32_t>("targets"));
  std::copy_n(order.data(), rows, run.data<int32_t>("token_order"));
}

// Fills every element of a parameter's state: live elements from `values`, padding with a number
// that would be noticed; masters likewise, moments with zeros.
inline void load_parameter(Interpreter& run, const Param& param,
                           const std::vector<double>& values) {
  const Graph& g = run.schedule().graph;
  const int64_t total = g.tensors[param.param].dims.count();
  std::vector<double> padded(values);
  padded.resize(total, 0.5);
  if (param.shard == kNone) run.set(g.tensors[param.param].name, padded);
  for (TensorId id : {param.shard, param.master, param.moment1, param.moment2}) {
    if (id == kNone) continue;
    std::vector<Range> held = param.own;
    if (held.empty()) held = {{0, total}};
    std::vector<double> state;
    for (const Range& r : held)
      state.insert(state.end(), padded.begin() + r.begin, padded.begin() + r.begin + r.count);
    if (id != param.master && id != param.shard) std::fill(state.begin(), state.end(), 0.0);
    run.set(g.tensors[id].name, state);
  }
}

struct Result {
  std::vector<double> losses;
  double norm = 0;                             // of all gradients
  std::vector<std::vector<double>> gradients;  // by parameter of the golden, live elements
  double padding = 0;                          // largest gradient of a padded element: must be 0
};

// One training step with learning rate 0 on one rank.
inline Result run_golden(const Golden& golden, Precision precision, Interpreter::KernelTable table,
                         bool all_f64, int threads = 1) {
  GraphShape shape;
  shape.batch = golden.batch;
  shape.tokens = golden.model.context;
  shape.micro_batches = golden.micro_batches;
  shape.loss_tokens = static_cast<int64_t>(golden.tokens.size());
  ParallelSpec spec;
  spec.micro_batches = spec.reduce_every = golden.micro_batches;
  const int64_t chunk = 13;  // the last chunk of logits is shorter
  const Graph forward = build_model(golden.model, precision, chunk, shape, GraphMode::train);
  const Schedule schedule = build_train_schedule(forward, OptimizerConfig{}, spec, {0});
  std::vector<Interpreter> run;
  run.emplace_back(schedule, table, all_f64, threads);
  for (const Param& param : schedule.graph.params) {
    const std::string& name = schedule.graph.tensors[param.param].name;
    const auto found = std::find_if(golden.parameters.begin(), golden.parameters.end(),
                                    [&](const Golden::Parameter& p) { return p.name == name; });
    if (found == golden.parameters.end()) internal_error("the golden has no {}", name);
    load_parameter(run[0], param, found->weight);
  }
  StepScalars scalars;
  scalars.step = 1;
  *run[0].data<StepScalars>("scalars") = scalars;
  const int64_t rows = shape.batch * shape.tokens;
  run_step(run, [&](int, int32_t micro) {
    load_batch(run[0], golden.tokens.data() + micro * rows, golden.targets.data() + micro * rows,
               rows);
  });
  Result result;
  result.losses = run[0].get("losses");
  result.norm = run[0].data<StepScalars>("scalars")->norm;
  for (const Golden::Parameter& p : golden.parameters) {
    std::vector<double> gradient = run[0].get(p.name + ".grad");
    for (size_t i = p.weight.size(); i < gradient.size(); ++i)
      result.padding = std::max(result.padding, std::abs(gradient[i]));
    gradient.resize(p.weight.size());
    result.gradients.push_back(std::move(gradient));
  }
  return result;
}

struct Errors {  // relative
  double loss = 0, norm = 0;
  std::vector<double> gradients;  // by parameter
  double padding = 0;
};

inline Errors compare(const Golden& golden, const Result& result) {
  Errors errors;
  errors.loss = relative_error(result.losses, golden.losses);
  double squares = 0;
  for (size_t i = 0; i < golden.parameters.size(); ++i) {
    const Golden::Parameter& p = golden.parameters[i];
    errors.gradients.push_back(relative_error(result.gradients[i], p.gradient));
    for (double x : p.gradient) squares += x * x;
  }
  errors.norm = std::abs(result.norm / std::sqrt(squares) - 1);
  errors.padding = result.padding;
  return errors;
}

// Another draw of weights and tokens from the distributions of generate.py, with losses and
// gradients of the reference kernels `truth`.
inline Golden redraw(Golden golden, uint64_t seed, Interpreter::KernelTable truth) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  for (Golden::Parameter& p : golden.parameters) {
    const bool norm = p.name.ends_with("norm.weight"),
               embedding = p.name.find("embed") != std::string::npos;
    const double columns = static_cast<double>(p.shape.back());
    const double scale = norm                  ? 0.2
                         : p.shape.size() == 1 ? 0.1
                         : embedding           ? 1.0
                                               : 1 / std::sqrt(columns);
    for (double& w : p.weight)
      w = bf16_to_float(float_to_bf16(static_cast<float>((norm ? 1 : 0) + scale * normal(random))));
  }
  for (int32_t& t : golden.tokens) t = static_cast<int32_t>(random() % golden.model.vocab);
  for (int32_t& t : golden.targets)
    if (t >= 0) t = static_cast<int32_t>(random() % golden.model.vocab);
  Result result = run_golden(golden, Precision::f32, truth, true);
  golden.losses = std::move(result.losses);
  for (size_t i = 0; i < golden.parameters.size(); ++i)
    golden.parameters[i].gradient = std::move(result.gradients[i]);
  return golden;
}

}  // namespace spillway::golden
