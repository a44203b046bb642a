// Matrix products of the CPU backend: every engine this machine has, against sums in double.
// links: kernels_cpu spillway_graph
#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"
#include "graph/ops/gemm_workspace.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"

namespace spillway::cpu {
namespace {

constexpr Isa kIsas[] = {Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx};

float widened(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
uint16_t narrowed(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Random numbers of a dtype, as raw bytes and as the values they hold.
struct Values {
  std::vector<float> value;
  std::vector<char> raw;
  Values(int64_t count, Dtype dtype, std::mt19937& random) : value(count), raw(count * 4 + 64) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int64_t i = 0; i < count; ++i) {
      const float x = uniform(random);
      if (dtype == Dtype::f32) {
        value[i] = x;
        std::memcpy(raw.data() + 4 * i, &x, 4);
      } else {
        const uint16_t bits = narrowed(x);
        value[i] = widened(bits);
        std::memcpy(raw.data() + 2 * i, &bits, 2);
      }
    }
  }
};

struct Aligned {
  explicit Aligned(int64_t bytes)
      : data(static_cast<char*>(std::aligned_alloc(64, round_up(bytes + 64, 64)))) {
    std::memset(data, 0xff, bytes + 64);  // NaN: what is read must have been written
  }
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  char* data;
};

struct Problem {
  int64_t m, n, k, lda, ldb, ldc;
  Dtype dtype, c_dtype;
  bool a_transposed, b_transposed, bias, accumulate;
  Values a, b, c, biases;

  static Problem random(int64_t m, int64_t n, int64_t k, Dtype dtype, std::mt19937& r) {
    auto flip = [&] { return r() % 2 == 0; };
    const bool ta = flip(), tb = flip(), accumulate = flip(),
               narrow = dtype == Dtype::bf16 && flip();
    const int64_t lda = (ta ? m : k) + r() % 3, ldb = (tb ? k : n) + r() % 3, ldc = n + r() % 3;
    return {m,
            n,
            k,
            lda,
            ldb,
            ldc,
            dtype,
            narrow ? Dtype::bf16 : Dtype::f32,
            ta,
            tb,
            !accumulate && flip(),
            accumulate && !narrow,
            Values((ta ? k : m) * lda, dtype, r),
            Values((tb ? n : k) * ldb, dtype, r),
            Values(m * ldc, Dtype::f32, r),
            Values(n, Dtype::f32, r)};
  }
  Matrix a_matrix() const {
    return a_transposed ? Matrix{a.raw.data(), 1, lda} : Matrix{a.raw.data(), lda, 1};
  }
  Matrix b_matrix() const {
    return b_transposed ? Matrix{b.raw.data(), 1, ldb} : Matrix{b.raw.data(), ldb, 1};
  }
  double expected(int64_t i, int64_t j, double* magnitude) const {
    double sum = bias ? biases.value[j] : (accumulate ? c.value[i * ldc + j] : 0.0);
    *magnitude = std::abs(sum);
    for (int64_t p = 0; p < k; ++p) {
      const double x = a_transposed ? a.value[p * lda + i] : a.value[i * lda + p];
      const double y = b_transposed ? b.value[j * ldb + p] : b.value[p * ldb + j];
      sum += x * y;
      *magnitude += std::abs(x * y);
    }
    return sum;
  }
  std::string label() const {
    return fmt::format("m{} n{} k{} {}→{}{}{}{}{}", m, n, k, name_of(dtype), name_of(c_dtype),
                       a_transposed ? " aᵀ" : "", b_transposed ? " bᵀ" : "", bias ? " bias" : "",
                       accumulate ? " acc" : "");
  }

  // C as raw bytes; elements beyond n keep what was there.
  std::vector<char> run(int64_t workspace) const {
    std::vector<char> out(m * ldc * 4 + 64);
    std::memcpy(out.data(), c.raw.data(), m * ldc * 4);
    Aligned memory(workspace);
    Scratch scratch("test", memory.data, workspace);
    gemm({.m = m,
          .n = n,
          .k = k,
          .dtype = dtype,
          .a = a_matrix(),
          .b = b_matrix(),
          .c = out.data(),
          .c_dtype = c_dtype,
          .ldc = ldc,
          .bias = bias ? biases.value.data() : nullptr,
          .accumulate = accumulate},
         scratch);
    for (int i = 0; i < 64; ++i) EXPECT_EQ(memory.data[workspace + i], '\xff') << label();
    return out;
  }
  int64_t bound(int threads) const {
    return gemm_workspace(m, n, k, dtype, dtype, c_dtype, threads);
  }
};

void check(const Problem& p, const std::vector<char>& out, std::mt19937& random) {
  const int64_t samples = std::min<int64_t>(p.m * p.n, 400);
  for (int64_t s = 0; s < samples; ++s) {
    const int64_t e = p.m * p.n <= 400 ? s : static_cast<int64_t>(random() % (p.m * p.n));
    const int64_t i = e / p.n, j = e % p.n, at = i * p.ldc + j;
    double magnitude = 0, found = 0;
    const double want = p.expected(i, j, &magnitude);
    if (p.c_dtype == Dtype::f32) {
      float x;
      std::memcpy(&x, out.data() + 4 * at, 4);
      found = x;
    } else {
      uint16_t x;
      std::memcpy(&x, out.data() + 2 * at, 2);
      found = widened(x);
    }
    const double rounding = p.c_dtype == Dtype::f32 ? 0 : std::abs(want) / 256;
    ASSERT_NEAR(found, want, 4e-6 * magnitude + rounding) << p.label() << " at " << i << "," << j;
  }
  const int64_t size = size_of(p.c_dtype);
  for (int64_t i = 0; i + 1 < p.m && p.c_dtype == Dtype::f32; ++i)
    ASSERT_EQ(std::memcmp(out.data() + (i * p.ldc + p.n) * size,
                          p.c.raw.data() + (i * p.ldc + p.n) * size, (p.ldc - p.n) * size),
              0)
        << p.label() << " wrote between its rows";
}

TEST(Gemm, AgreesWithDoubleOnRandomShapes) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u, isa %s\n", seed, isa_name());
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    auto size = [&](int64_t most) {
      return 1 + static_cast<int64_t>(random() % (random() % 4 ? 70 : most));
    };
    const Dtype dtype = random() % 2 ? Dtype::f32 : Dtype::bf16;
    const Problem p = Problem::random(size(600), size(1200), size(2500), dtype, random);
    const int count = 1 + static_cast<int>(random() % 3);
    set_threads(count);
    check(p, p.run(p.bound(count)), random);
    if (HasFatalFailure()) return;
  }
}

TEST(Gemm, ThreadsDoNotChangeABit) {
  std::mt19937 random(7);
  const Dims shapes[] = {Dims(64, 96, 50304),  Dims(400, 768, 1024), Dims(200, 768, 3072),
                         Dims(130, 2304, 768), Dims(100, 5000, 200), Dims(1, 768, 768),
                         Dims(130, 70, 2049)};
  for (const Dims& s : shapes)
    for (Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      const Problem p = Problem::random(s[0], s[1], s[2], dtype, random);
      set_threads(1);
      const std::vector<char> one = p.run(p.bound(1));
      for (int count : {2, 3, 5}) {
        set_threads(count);
        ASSERT_EQ(one, p.run(p.bound(count))) << p.label() << " on " << count << " threads";
      }
    }
}

TEST(Gemm, TooSmallAWorkspaceIsAnErrorThatNamesTheOp) {
  std::mt19937 random(1);
  set_threads(1);
  const Problem p = Problem::random(40, 40, 40, Dtype::f32, random);
  try {
    p.run(4096);
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::internal);
    EXPECT_NE(std::string(e.what()).find("test"), std::string::npos) << e.what();
  }
}

// Each engine by itself, whichever the process has chosen.
TEST(Gemm, EveryEngineAgreesWithDouble) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (Isa isa : kIsas) {
    if (!supported(isa)) continue;
    std::printf("engine %s\n", name_of(isa));
    for (int round = 0; round < 60; ++round) {
      const Dtype dtype = random() % 2 ? Dtype::f32 : Dtype::bf16;
      const GemmEngine& e = gemm_engine(dtype, isa);
      Problem p =
          Problem::random(1 + random() % 90, 1 + random() % 90, 1 + random() % 200, dtype, random);
      p.c_dtype = Dtype::f32, p.bias = false;
      Aligned a(packed_a_bytes(e, p.m, p.k)), b(packed_b_bytes(e, p.k, p.n));
      const Matrix from = p.a_matrix(), with = p.b_matrix();
      e.pack_a(from.data, from.row, from.column, p.m, p.k, a.data);
      e.pack_b(with.data, with.row, with.column, p.k, p.n, b.data, panel_bytes(e, p.k));
      EXPECT_EQ(a.data[packed_a_bytes(e, p.m, p.k)], '\xff') << p.label();
      EXPECT_EQ(b.data[packed_b_bytes(e, p.k, p.n)], '\xff') << p.label();
      std::vector<char> out = p.c.raw;
      e.multiply(p.m, p.n, p.k, a.data, b.data, panel_bytes(e, p.k),
                 reinterpret_cast<float*>(out.data()), p.ldc, p.accumulate);
      check(p, out, random);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace spillway::cpu
