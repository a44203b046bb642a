// What the tests of ops share: operands held in double, random inputs that fit together, and calls
// of the reference kernels.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "graph/op.h"
#include "kernels/reference/table.h"

namespace spillway::test {

// One operand. Which of the members holds its contents follows from the dtype.
struct Values {
  TensorType type;
  std::vector<double> real;      // f32, bf16, f64
  std::vector<int32_t> integer;  // i32
  StepScalars scalars;           // u8
};

inline bool is_real(Dtype t) { return t == Dtype::f32 || t == Dtype::bf16 || t == Dtype::f64; }

inline uint16_t bf16_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline float from_bf16(uint16_t narrow) {
  const uint32_t bits = static_cast<uint32_t>(narrow) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline double rounded(double x, Dtype t) {
  if (t == Dtype::f32) return static_cast<float>(x);
  if (t == Dtype::bf16) return from_bf16(bf16_bits(static_cast<float>(x)));
  return x;
}

inline Values blank(const TensorType& type, double fill = 0) {
  Values v;
  v.type = type;
  if (is_real(type.dtype)) v.real.assign(type.dims.count(), fill);
  if (type.dtype == Dtype::i32) v.integer.assign(type.dims.count(), 0);
  return v;
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

inline uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* set = std::getenv("SPILLWAY_TEST_SEED");
    const uint64_t value = set ? std::strtoull(set, nullptr, 10) : 20240611;
    std::cout << "seed " << value << " (SPILLWAY_TEST_SEED sets another)\n";
    return value;
  }();
  return seed;
}

using Rng = std::mt19937_64;

// A generator of its own for every case, so that one case can be rerun alone.
inline Rng rng_of(OpKind kind, const OpCase& c) {
  return Rng(test_seed() ^ (std::hash<std::string>{}(c.label) + static_cast<uint64_t>(kind)));
}

// A kernel's argument: f64 whatever the operand's own type, as the reference kernels want it.
inline TensorArg reference_arg(Values& v) {
  TensorArg arg;
  arg.dims = v.type.dims;
  arg.dtype = is_real(v.type.dtype) ? Dtype::f64 : v.type.dtype;
  if (is_real(v.type.dtype)) arg.data = v.real.data();
  if (v.type.dtype == Dtype::i32) arg.data = v.integer.data();
  if (v.type.dtype == Dtype::u8) arg.data = &v.scalars;
  return arg;
}

struct Call {
  bool accumulate = false;
  int32_t micro = 0;
};

// Runs the reference kernel on copies of `in`; `out` holds what was there before and gets the
// results. Outputs of `in_place` start as their inputs.
inline void run_reference(OpKind kind, const Attrs& attrs, std::vector<Values> in,
                          std::vector<Values>& out,
                          const std::vector<std::pair<int32_t, int32_t>>& in_place, Call call) {
  KernelArgs args;
  args.attrs = &attrs;
  args.accumulate = call.accumulate;
  args.micro = call.micro;
  args.in_count = static_cast<int32_t>(in.size());
  args.out_count = static_cast<int32_t>(out.size());
  for (const auto& [o, i] : in_place) out[o] = in[i];
  for (size_t i = 0; i < in.size(); ++i) args.in[i] = reference_arg(in[i]);
  for (size_t o = 0; o < out.size(); ++o) args.out[o] = reference_arg(out[o]);
  for (const auto& [o, i] : in_place) args.in[i] = args.out[o];
  reference::kernel(kind)(args);
}

inline void fill_normal(Values& v, Rng& rng, double mean, double deviation) {
  std::normal_distribution<double> normal(mean, deviation);
  for (double& x : v.real) x = rounded(normal(rng), v.type.dtype);
}

inline int64_t between(Rng& rng, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(rng);
}

// Outputs of the forward op of which an operand of a gradient is made.
inline std::vector<Values> forward_outputs(OpKind kind, const Attrs& attrs,
                                           const std::vector<Values>& in,
                                           const std::vector<TensorType>& types) {
  std::vector<Values> out;
  for (const TensorType& t : types) out.push_back(blank(t));
  run_reference(kind, attrs, in, out, {}, {});
  for (Values& v : out)
    for (double& x : v.real) x = rounded(x, v.type.dtype);
  return out;
}

inline void draw_integers(OpKind kind, const OpCase& c, std::vector<Values>& in, Rng& rng) {
  if (kind == OpKind::embedding)
    for (int32_t& token : in[1].integer)
      token = static_cast<int32_t>(between(rng, 0, in[0].type.dims[0] - 1));
  if (kind == OpKind::head_loss || kind == OpKind::head_loss_grad)
    for (int32_t& target : in[2].integer)
      target =
          static_cast<int32_t>(between(rng, 0, 5) == 0 ? -1 : between(rng, 0, c.attrs.vocab - 1));
  if (kind == OpKind::embedding_grad) {
    std::vector<int32_t>&order = in[1].integer, &tokens = in[2].integer;
    for (int32_t& token : tokens)
      token = static_cast<int32_t>(between(rng, 0, c.out[0].dims[0] - 1));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return tokens[a] < tokens[b]; });
  }
}

// Random operands of a case, rounded to their types, and such that belong together: statistics are
// those of their rows, token_order is sorted, positions lie in the context.
inline std::vector<Values> draw_inputs(OpKind kind, const OpCase& c, Rng& rng) {
  std::vector<Values> in;
  for (const TensorType& type : c.in) {
    Values v = blank(type);
    fill_normal(v, rng, 0, 1);
    if (type.dtype == Dtype::u8) {
      const int64_t rows =
          c.in[0].dims[0] > 0 && kind == OpKind::embedding ? c.in[1].dims.count() : c.in[0].dims[0];
      v.scalars.step = 1;
      v.scalars.lr = 0.01f;
      v.scalars.clip_scale = 0.7f;
      v.scalars.beta1_correction = 0.1f;
      v.scalars.beta2_correction = 0.05f;
      v.scalars.position =
          static_cast<int32_t>(between(rng, 0, std::max<int64_t>(0, c.attrs.context - rows)));
      v.scalars.count = static_cast<int32_t>(between(rng, 1, rows));
    }
    in.push_back(std::move(v));
  }
  draw_integers(kind, c, in, rng);
  switch (kind) {
    case OpKind::rmsnorm:
    case OpKind::layernorm:
      fill_normal(in[c.attrs.residual ? 2 : 1], rng, 1, 0.3);
      break;
    case OpKind::rmsnorm_grad: {
      Attrs attrs = c.attrs;
      attrs.residual = false;
      fill_normal(in[2], rng, 1, 0.3);
      in[1] = forward_outputs(OpKind::rmsnorm, attrs, {in[0], in[2]}, {c.in[0], c.in[1]})[1];
      break;
    }
    case OpKind::layernorm_grad: {
      Attrs attrs = c.attrs;
      attrs.residual = false;
      fill_normal(in[2], rng, 1, 0.3);
      in[1] =
          forward_outputs(OpKind::layernorm, attrs, {in[0], in[2], in[2]}, {c.in[0], c.in[1]})[1];
      break;
    }
    case OpKind::attention_grad: {
      const auto out = forward_outputs(OpKind::attention, c.attrs, {in[0]}, {c.in[1], c.in[2]});
      in[1] = out[0];
      in[2] = out[1];
      break;
    }
    case OpKind::adamw:
      for (double& v : in[4].real) v = std::abs(v);
      break;
    case OpKind::norm_finish:
      for (double& partial : in[0].real) partial = std::abs(partial);
      break;
    default:
      break;
  }
  return in;
}

// Micro-batch that a loss case writes: the last.
inline Call call_of(const OpCase& c, bool accumulate) {
  return {accumulate, c.attrs.micro_batches - 1};
}

inline std::vector<OpKind> all_ops() {
  std::vector<OpKind> all;
  for (int i = 0; i < kOpCount; ++i) all.push_back(static_cast<OpKind>(i));
  return all;
}

inline bool contains(const std::vector<int32_t>& list, size_t value) {
  return std::find(list.begin(), list.end(), static_cast<int32_t>(value)) != list.end();
}

// ‖a − b‖ / ‖b‖ ≤ tolerance over what the reference defines (its NaNs are untouched bytes).
inline void expect_close(const Values& measured, const Values& expected, double tolerance) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.real.size(); ++i) {
    if (std::isnan(expected.real[i])) {
      EXPECT_TRUE(std::isnan(measured.real[i])) << "writes element " << i;
      continue;
    }
    ASSERT_TRUE(std::isfinite(measured.real[i])) << "element " << i << " is not finite";
    difference += (measured.real[i] - expected.real[i]) * (measured.real[i] - expected.real[i]);
    norm += expected.real[i] * expected.real[i];
  }
  EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm) + 1e-30);
}

inline void expect_same_scalars(const StepScalars& got, const StepScalars& want) {
  EXPECT_DOUBLE_EQ(got.norm, want.norm);
  EXPECT_DOUBLE_EQ(got.loss, want.loss);
  EXPECT_FLOAT_EQ(got.clip_scale, want.clip_scale);
  EXPECT_EQ(got.skip_update, want.skip_update);
  EXPECT_EQ(got.lr, want.lr);
  EXPECT_EQ(got.position, want.position);
}

}  // namespace spillway::test
