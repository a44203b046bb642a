// The vector wrapper and AdamW on every instruction set of this machine.
// links: kernels_cpu
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/isa/probe.h"
#include "kernels/cpu/isa/variants.h"
#include "kernels/cpu/parallel.h"

namespace spillway::cpu {
namespace {

struct Variant {
  Isa isa;
  void (*exp)(const float*, float*, int64_t);
  void (*tanh)(const float*, float*, int64_t);
  void (*narrow)(const float*, uint16_t*, int64_t);
  void (*widen)(const uint16_t*, float*, int64_t);
  float (*sum)(const float*, int64_t);
  float (*maximum)(const float*, int64_t);
  Kernel adamw, gelu, rmsnorm, rank_sum;
};

void PrintTo(const Variant& v, std::ostream* out) { *out << name_of(v.isa); }

#define VARIANT_OF(isa)                                                                        \
  Variant {                                                                                    \
    Isa::isa, isa::probe_exp, isa::probe_tanh, isa::probe_narrow, isa::probe_widen,            \
        isa::probe_sum, isa::probe_maximum, isa::adamw, isa::gelu, isa::rmsnorm, isa::rank_sum \
  }

class Vec : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    if (!supported(GetParam().isa))
      GTEST_SKIP() << "this machine lacks " << name_of(GetParam().isa);
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, Vec, testing::Values(VARIANT_OF(avx2), VARIANT_OF(avx512)),
                         [](const auto& info) { return std::string(name_of(info.param.isa)); });

uint64_t seed() {
  static const uint64_t value = [] {
    const uint64_t s = std::random_device{}();
    printf("seed %llu\n", static_cast<unsigned long long>(s));
    return s;
  }();
  return value;
}

std::vector<float> uniform(int64_t n, float low, float high, uint64_t stream = 0) {
  std::mt19937_64 bits(seed() + stream);
  std::uniform_real_distribution<float> draw(low, high);
  std::vector<float> x(n);
  for (float& v : x) v = draw(bits);
  return x;
}

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

// Every 97th float between low and high, so that all exponents are seen.
std::vector<float> walk(float low, float high) {
  std::vector<float> x;
  for (float v = low; v <= high;) {
    x.push_back(v);
    const int32_t step = v < 0 ? -97 : 97;
    if (v < 0 && v > -1e-37f) {
      v = 0;
    } else {
      v = std::bit_cast<float>(std::bit_cast<int32_t>(v) + step);
    }
  }
  return x;
}

TEST_P(Vec, ExpIsAccurate) {
  const std::vector<float> x = walk(-87.3f, 88.7f);
  std::vector<float> y(x.size());
  GetParam().exp(x.data(), y.data(), x.size());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(double{x[i]});
    worst = std::max(worst, std::abs(y[i] - exact) / exact);
  }
  RecordProperty("worst", std::to_string(worst));
  EXPECT_LT(worst, 2e-7);
  EXPECT_GT(x.size(), 10'000'000u);
}

TEST_P(Vec, ExpAtTheEnds) {
  const float inf = std::numeric_limits<float>::infinity();
  const float lowest = -87.33f, below = std::nextafter(lowest, -inf);
  const std::vector<float> x = {0.0f, -0.0f,  88.8f, 1e30f,  inf,    below,
                                -inf, -1e30f, NAN,   -95.0f, lowest, 88.7228f};
  std::vector<float> y(x.size());
  GetParam().exp(x.data(), y.data(), x.size());
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], 1.0f);
  for (int i : {2, 3, 4}) EXPECT_EQ(y[i], inf) << x[i];
  for (int i : {5, 6, 7, 9}) EXPECT_EQ(bits_of(y[i]), 0u) << x[i];
  EXPECT_TRUE(std::isnan(y[8]));
  for (int i : {10, 11}) EXPECT_NEAR(y[i] / std::exp(double{x[i]}), 1, 2e-7) << x[i];
}

TEST_P(Vec, TanhIsAccurate) {
  const std::vector<float> x = walk(-12.0f, 12.0f);
  std::vector<float> y(x.size());
  GetParam().tanh(x.data(), y.data(), x.size());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::tanh(double{x[i]});
    if (exact != 0) worst = std::max(worst, std::abs(y[i] - exact) / std::abs(exact));
  }
  EXPECT_LT(worst, 2e-7);
  const std::vector<float> ends = {0.0f, -0.0f, 1e30f, -1e30f, NAN};
  GetParam().tanh(ends.data(), y.data(), ends.size());
  EXPECT_EQ(bits_of(y[0]), 0u);
  EXPECT_EQ(bits_of(y[1]), 0x80000000u);
  EXPECT_EQ(y[2], 1.0f);
  EXPECT_EQ(y[3], -1.0f);
  EXPECT_TRUE(std::isnan(y[4]));
}

// Both instruction sets run the same operations on each lane.
TEST(VecBoth, SameBits) {
  if (!supported(Isa::avx512)) GTEST_SKIP() << "this machine lacks avx512";
  const std::vector<float> x = uniform(100'003, -110, 95);
  std::vector<float> a(x.size()), b(x.size());
  avx2::probe_exp(x.data(), a.data(), x.size());
  avx512::probe_exp(x.data(), b.data(), x.size());
  EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * 4));
  avx2::probe_tanh(x.data(), a.data(), x.size());
  avx512::probe_tanh(x.data(), b.data(), x.size());
  EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * 4));
}

// Every length and offset gives each element the bits it has in the middle of a long array, and
// leaves the bytes around alone.
TEST_P(Vec, TailsAndOffsetsDoNotMatter) {
  const int64_t n = 100;
  const std::vector<float> x = uniform(n, -20, 20);
  for (auto f : {GetParam().exp, GetParam().tanh}) {
    std::vector<float> whole(n + 64), y(n + 64);
    std::vector<float> padded(n + 64);
    std::copy(x.begin(), x.end(), padded.begin());
    f(padded.data(), whole.data(), n + 64);
    for (int64_t begin = 0; begin < 20; ++begin)
      for (int64_t count = 0; begin + count <= n; ++count) {
        std::fill(y.begin(), y.end(), -7.0f);
        f(padded.data() + begin, y.data() + begin, count);
        for (int64_t i = 0; i < n; ++i) {
          const bool live = i >= begin && i < begin + count;
          ASSERT_EQ(bits_of(y[i]), bits_of(live ? whole[i] : -7.0f)) << begin << " " << count;
        }
      }
  }
  std::vector<uint16_t> halves(n), again(n);
  GetParam().narrow(x.data(), halves.data(), n);
  for (int64_t count = 0; count <= 40; ++count) {
    std::fill(again.begin(), again.end(), uint16_t{0xabcd});
    GetParam().narrow(x.data(), again.data(), count);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(again[i], i < count ? halves[i] : 0xabcd) << count;
    std::vector<float> back(n, -7.0f);
    GetParam().widen(halves.data(), back.data(), count);
    for (int64_t i = 0; i < n; ++i)
      ASSERT_EQ(bits_of(back[i]), i < count ? uint32_t{halves[i]} << 16 : bits_of(-7.0f)) << count;
  }
}

uint16_t bf16_by_definition(float x) {
  if (std::isnan(x)) return static_cast<uint16_t>((bits_of(x) >> 16) | 0x40);
  const uint32_t low = bits_of(x) & 0xffff, high = bits_of(x) >> 16;
  return static_cast<uint16_t>(high + (low > 0x8000 || (low == 0x8000 && (high & 1))));
}

TEST_P(Vec, Bf16RoundsToNearestEven) {
  std::vector<float> x;
  // Around every boundary of every bf16 value: exact, below half, half, above half.
  for (uint32_t high = 0; high < 0x10000; ++high)
    for (uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      x.push_back(std::bit_cast<float>(high << 16 | low));
  std::vector<uint16_t> y(x.size());
  GetParam().narrow(x.data(), y.data(), x.size());
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_EQ(y[i], bf16_by_definition(x[i])) << std::hex << bits_of(x[i]);
  std::vector<float> back(y.size());
  GetParam().widen(y.data(), back.data(), y.size());
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(bits_of(back[i]), uint32_t{y[i]} << 16);
}

TEST_P(Vec, Reductions) {
  for (int64_t n : {1, 7, 8, 15, 16, 17, 63, 64, 65, 128, 1000}) {
    std::vector<float> x = uniform(n, -1, 1, n);
    double exact = 0, size = 0;
    for (float v : x) exact += v, size += std::abs(v);
    EXPECT_NEAR(GetParam().sum(x.data(), n), exact, 1e-6 * size) << n;
    // The same bits at another address.
    std::vector<float> moved(n + 3);
    std::copy(x.begin(), x.end(), moved.begin() + 3);
    EXPECT_EQ(bits_of(GetParam().sum(moved.data() + 3, n)), bits_of(GetParam().sum(x.data(), n)));
  }
  std::vector<float> x = uniform(64, -1, 1);
  for (int64_t at = 0; at < 64; ++at) {
    x[at] += 4;
    EXPECT_EQ(GetParam().maximum(x.data(), 64), x[at]);
    x[at] -= 4;
  }
}

TensorArg arg(void* data, Dims dims, Dtype dtype = Dtype::f32) {
  TensorArg t;
  t.data = data, t.dtype = dtype, t.dims = dims;
  return t;
}

struct AdamW {
  std::vector<float> grad, state, m, v;
  std::vector<uint16_t> param;
  StepScalars scalars;
  Attrs attrs;
  explicit AdamW(int64_t n)
      : grad(uniform(n, -2, 2, 1)),
        state(uniform(n, -1, 1, 2)),
        m(uniform(n, -1, 1, 3)),
        v(uniform(n, 0, 1, 4)),
        param(n, 0xabcd) {
    scalars.lr = 3e-4f, scalars.beta1_correction = 0.271f, scalars.beta2_correction = 0.142625f;
    scalars.clip_scale = 0.37f;
    attrs.beta1 = 0.9f, attrs.beta2 = 0.95f, attrs.weight_decay = 0.1f, attrs.eps = 1e-8f;
  }
  KernelArgs args() {
    const Dims n(static_cast<int64_t>(grad.size()));
    KernelArgs a;
    a.attrs = &attrs;
    a.in_count = 5, a.out_count = 4;
    a.in[0] = arg(grad.data(), n);
    a.in[1] = arg(&scalars, Dims(int64_t{sizeof scalars}), Dtype::u8);
    a.in[2] = a.out[0] = arg(state.data(), n);
    a.in[3] = a.out[1] = arg(m.data(), n);
    a.in[4] = a.out[2] = arg(v.data(), n);
    a.out[3] = arg(param.data(), n, Dtype::bf16);
    return a;
  }
  void by_definition() {
    for (size_t i = 0; i < grad.size(); ++i) {
      const float g = grad[i] * scalars.clip_scale;
      m[i] = std::fmaf(attrs.beta1, m[i], (1.0f - attrs.beta1) * g);
      v[i] = std::fmaf(attrs.beta2, v[i], (1.0f - attrs.beta2) * (g * g));
      const float u = (m[i] / scalars.beta1_correction) /
                      (std::sqrt(v[i] / scalars.beta2_correction) + attrs.eps);
      state[i] = std::fmaf(-scalars.lr, std::fmaf(attrs.weight_decay, state[i], u), state[i]);
      param[i] = bf16_by_definition(state[i]);
    }
  }
};

TEST_P(Vec, AdamWHasTheBitsOfAScalarLoop) {
  for (int64_t n : {0, 1, 5, 16, 31, 16384, 50'001}) {
    AdamW ours(n), scalar(n);
    for (int step = 0; step < 3; ++step) {
      GetParam().adamw(ours.args());
      scalar.by_definition();
    }
    EXPECT_EQ(ours.state, scalar.state) << n;
    EXPECT_EQ(ours.m, scalar.m) << n;
    EXPECT_EQ(ours.v, scalar.v) << n;
    EXPECT_EQ(ours.param, scalar.param) << n;
  }
}

TEST_P(Vec, AdamWSkips) {
  AdamW ours(100), before(100);
  ours.scalars.skip_update = 1;
  ours.grad.assign(100, NAN);
  GetParam().adamw(ours.args());
  EXPECT_EQ(ours.state, before.state);
  EXPECT_EQ(ours.m, before.m);
  EXPECT_EQ(ours.v, before.v);
  EXPECT_EQ(ours.param, before.param);
}

// A tree of groups of `inner` in rank order, against the same tree in scalar f32.
TEST_P(Vec, RankSumKeepsItsTree) {
  const int64_t count = 1003, capacity = 1100;
  for (int ranks : {1, 2, 3, 5, 8})
    for (int inner : {1, 2, 3, 8})
      for (int rank : {0, ranks / 2, ranks - 1}) {
        std::vector<float> pieces = uniform(ranks * capacity, -1, 1, ranks * 100 + inner);
        std::vector<float> own(pieces.begin() + rank * capacity,
                               pieces.begin() + rank * capacity + count);
        std::vector<float> staging;
        for (int p = 0; p < ranks; ++p)
          if (p != rank)
            staging.insert(staging.end(), pieces.begin() + p * capacity,
                           pieces.begin() + (p + 1) * capacity);
        std::vector<float> out = uniform(count, -1, 1, 99), expected = out;
        for (int64_t i = 0; i < count; ++i) {
          float total = 0;
          for (int g = 0; g < ranks; g += inner) {
            float group = pieces[g * capacity + i];
            for (int p = g + 1; p < std::min(ranks, g + inner); ++p)
              group += pieces[p * capacity + i];
            total = g == 0 ? group : total + group;
          }
          expected[i] += total;
        }
        Attrs attrs;
        attrs.ranks = ranks, attrs.rank = rank, attrs.inner = inner;
        KernelArgs a;
        a.attrs = &attrs, a.accumulate = true;
        a.in_count = ranks > 1 ? 2 : 1, a.out_count = 1;
        a.in[0] = arg(own.data(), Dims(count));
        a.in[1] = arg(staging.data(), Dims(static_cast<int64_t>(staging.size())));
        a.out[0] = arg(out.data(), Dims(count));
        GetParam().rank_sum(a);
        ASSERT_EQ(0, std::memcmp(out.data(), expected.data(), count * 4)) << ranks << " " << inner;
      }
}

// Any number of threads, and rows in any company, give the same bits.
TEST_P(Vec, ThreadsAndNeighboursDoNotMatter) {
  const int64_t rows = 500, width = 203;
  std::vector<float> x = uniform(rows * width, -3, 3, 5), w = uniform(width, 0, 2, 6);
  auto run = [&](int count, int64_t first, int64_t live) {
    set_threads(count);
    std::vector<float> y(live * width), stats(live), activated(live * width);
    Attrs attrs;
    attrs.eps = 1e-6f;
    KernelArgs a;
    a.attrs = &attrs;
    a.in_count = 2, a.out_count = 2;
    a.in[0] = arg(x.data() + first * width, Dims(live, width));
    a.in[1] = arg(w.data(), Dims(width));
    a.out[0] = arg(y.data(), Dims(live, width));
    a.out[1] = arg(stats.data(), Dims(live));
    GetParam().rmsnorm(a);
    a.in_count = a.out_count = 1;
    a.out[0] = arg(activated.data(), Dims(live, width));
    GetParam().gelu(a);
    y.insert(y.end(), stats.begin(), stats.end());
    y.insert(y.end(), activated.begin(), activated.end());
    set_threads(1);
    return y;
  };
  const std::vector<float> one = run(1, 0, rows);
  for (int count : {2, 3, 7}) EXPECT_EQ(one, run(count, 0, rows)) << count;
  const std::vector<float> part = run(2, 123, 77);
  EXPECT_EQ(0, std::memcmp(part.data(), one.data() + 123 * width, 77 * width * 4));
  EXPECT_EQ(0, std::memcmp(part.data() + 77 * width, one.data() + rows * width + 123, 77 * 4));
}

TEST(Parallel, EveryQuantumOnceAndNestedRunsSerially) {
  for (int count : {1, 2, 5}) {
    set_threads(count);
    EXPECT_EQ(threads(), count);
    for (Schedule schedule : {Schedule::even, Schedule::dynamic})
      for (int64_t quanta : {0, 1, 2, 3, 1000}) {
        std::vector<int> seen(quanta * 3, 0);
        for_quanta(
            quanta,
            [&](int64_t q) { for_quanta(3, [&](int64_t inner) { ++seen[q * 3 + inner]; }); },
            schedule);
        EXPECT_EQ(seen, std::vector<int>(quanta * 3, 1)) << count << " " << quanta;
      }
  }
  set_threads(0);
  EXPECT_EQ(threads(), 1);
}

}  // namespace
}  // namespace spillway::cpu
