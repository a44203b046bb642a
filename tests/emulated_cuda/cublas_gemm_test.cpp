// The GEMM provider on the emulated cuBLASLt: products, the table of algorithms, and what the
// emulation says of calls that break the library's contracts.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/gemm.h"
#include "tests/emulated_cuda/report.h"

namespace spillway::cuda {
namespace {

constexpr int64_t kWorkspace = 1 << 20;
constexpr char kVersion[] = "SPILLWAY_EMULATED_CUBLASLT_VERSION";

uint64_t seed() {
  static const uint64_t value = [] {
    const char* set = std::getenv("SPILLWAY_TEST_SEED");
    const uint64_t drawn = set ? std::strtoull(set, nullptr, 10) : std::random_device{}();
    std::printf("seed %lu (SPILLWAY_TEST_SEED sets another)\n", static_cast<unsigned long>(drawn));
    return drawn;
  }();
  return value;
}

float rounded(float x, Dtype t) {
  if (t == Dtype::f32) return x;
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

// Values in device memory, `offset` elements behind a 256-byte border.
class DeviceMatrix {
 public:
  DeviceMatrix(Dtype t, int64_t count, int64_t offset = 0) : dtype_(t), count_(count) {
    void* all = nullptr;
    EXPECT_EQ(cudaMalloc(&all, static_cast<size_t>((count + offset) * size_of(t))), cudaSuccess);
    begin_ = static_cast<char*>(all);
    data_ = begin_ + offset * size_of(t);
  }
  ~DeviceMatrix() { cudaFree(begin_); }
  DeviceMatrix(const DeviceMatrix&) = delete;
  DeviceMatrix& operator=(const DeviceMatrix&) = delete;

  void* data() const { return data_; }
  void put(const std::vector<float>& values) {
    std::vector<char> bytes(values.size() * static_cast<size_t>(size_of(dtype_)));
    for (size_t i = 0; i < values.size(); ++i) {
      uint32_t bits;
      std::memcpy(&bits, &values[i], 4);
      if (dtype_ == Dtype::bf16) bits >>= 16;
      std::memcpy(bytes.data() + i * static_cast<size_t>(size_of(dtype_)), &bits,
                  static_cast<size_t>(size_of(dtype_)));
    }
    EXPECT_EQ(cudaMemcpy(data_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  std::vector<float> get() const {
    std::vector<char> bytes(static_cast<size_t>(count_ * size_of(dtype_)));
    EXPECT_EQ(cudaMemcpy(bytes.data(), data_, bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    std::vector<float> values(static_cast<size_t>(count_));
    for (size_t i = 0; i < values.size(); ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * static_cast<size_t>(size_of(dtype_)),
                  static_cast<size_t>(size_of(dtype_)));
      if (dtype_ == Dtype::bf16) bits <<= 16;
      std::memcpy(&values[i], &bits, 4);
    }
    return values;
  }

 private:
  Dtype dtype_;
  int64_t count_;
  char *begin_ = nullptr, *data_ = nullptr;
};

struct Product {
  GemmCall call;
  int64_t offset = 0;  // elements of a, b and c behind their borders
  bool bias = false;
};

std::vector<float> drawn(std::mt19937_64& rng, int64_t count, Dtype t) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = rounded(normal(rng), t);
  return values;
}

// Runs it and compares with a product in double; returns the result.
std::vector<float> checked(Gemm& gemm, const Product& product, uint64_t data_seed) {
  GemmCall call = product.call;
  const int64_t m = call.m, n = call.n, k = call.k;
  std::mt19937_64 rng(data_seed);
  const std::vector<float> a = drawn(rng, m * k, call.dtype), b = drawn(rng, k * n, call.dtype),
                           before = drawn(rng, m * n, call.c_dtype),
                           bias = drawn(rng, n, call.c_dtype);
  DeviceMatrix on_a(call.dtype, m * k, product.offset), on_b(call.dtype, k * n, product.offset),
      on_c(call.c_dtype, m * n, product.offset), on_bias(call.c_dtype, n),
      workspace(Dtype::u8, std::max<int64_t>(gemm.workspace_bytes(), 1));
  on_a.put(a);
  on_b.put(b);
  if (call.accumulate) on_c.put(before);
  if (product.bias) on_bias.put(bias);
  call.a = on_a.data();
  call.b = on_b.data();
  call.c = on_c.data();
  call.bias = product.bias ? on_bias.data() : nullptr;
  call.workspace = workspace.data();
  gemm.run(call, nullptr);
  const std::vector<float> c = on_c.get();
  double error = 0, norm = 0;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = call.accumulate ? before[static_cast<size_t>(i * n + j)] : 0.0;
      if (product.bias) sum += bias[static_cast<size_t>(j)];
      for (int64_t l = 0; l < k; ++l)
        sum +=
            static_cast<double>(a[static_cast<size_t>(call.a_transposed ? l * m + i : i * k + l)]) *
            b[static_cast<size_t>(call.b_transposed ? j * k + l : l * n + j)];
      const double off = c[static_cast<size_t>(i * n + j)] - sum;
      error += off * off;
      norm += sum * sum;
    }
  EXPECT_LE(std::sqrt(error), (call.c_dtype == Dtype::bf16 ? 5e-3 : 1e-5) * std::sqrt(norm))
      << m << "x" << n << "x" << k;
  return c;
}

Product product_of(int64_t m, int64_t n, int64_t k) {
  return {{.m = m, .n = n, .k = k, .b_transposed = true}};
}

std::string reported() {
  std::string all;
  for (const emulated::Report& r : emulated::take_reports()) all += r.kind + ": " + r.text + "\n";
  return all;
}

template <class F>
std::string error_of(ExitCode code, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code);
    return e.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(CublasGemm, ProductsOfEveryKind) {
  Gemm gemm(kWorkspace);
  std::mt19937_64 rng(seed());
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(rng() % bound); };
  for (int draw = 0; draw < 120; ++draw) {
    SCOPED_TRACE(draw);
    Product p = product_of(1 + below(70), 1 + below(70), 1 + below(300));
    p.call.a_transposed = below(2);
    p.call.b_transposed = below(2);
    p.call.dtype = below(2) ? Dtype::bf16 : Dtype::f32;
    p.call.c_dtype = p.call.dtype == Dtype::bf16 && below(2) ? Dtype::bf16 : Dtype::f32;
    p.call.accumulate = p.call.c_dtype == Dtype::f32 && below(2);
    p.bias = below(2);
    p.offset = below(3) == 0 ? 1 + below(127) : 0;
    const uint64_t data = rng();
    EXPECT_EQ(checked(gemm, p, data), checked(gemm, p, data));
  }
  EXPECT_EQ(reported(), "");
}

TEST(CublasGemm, NothingIsChosenOnceSealed) {
  Gemm gemm(kWorkspace);
  checked(gemm, product_of(8, 4, 16), 1);
  const std::string before = gemm.algorithms();
  gemm.seal();
  checked(gemm, product_of(8, 4, 16), 2);
  Product longer = product_of(8, 4, 17), moved = product_of(8, 4, 16), added = product_of(8, 4, 16);
  moved.offset = 1;
  added.call.accumulate = true;
  EXPECT_TRUE(has(error_of(ExitCode::internal, [&] { checked(gemm, longer, 1); }), "a[8,17]"));
  EXPECT_TRUE(
      has(error_of(ExitCode::internal, [&] { checked(gemm, moved, 1); }), "4-byte aligned"));
  EXPECT_EQ(error_of(ExitCode::internal, [&] { checked(gemm, added, 1); }), "");
  EXPECT_EQ(gemm.algorithms(), before);
}

// What was chosen decides over the bits, and the table carries it from run to run.
TEST(CublasGemm, TableKeepsTheBits) {
  const Product p = product_of(9, 5, 512);
  Gemm first(kWorkspace);
  const std::vector<float> bits = checked(first, p, 3);
  const std::string table = first.algorithms();

  Gemm second(kWorkspace);
  EXPECT_EQ(second.load_algorithms(table, "manifest.json"), "");
  EXPECT_EQ(checked(second, p, 3), bits);
  EXPECT_EQ(second.algorithms(), table);

  // Kept for runs to come, although this one has no use for it.
  Gemm third(kWorkspace);
  EXPECT_EQ(third.load_algorithms(table, "manifest.json"), "");
  checked(third, product_of(1, 2, 3), 1);
  EXPECT_TRUE(has(third.algorithms(), "\"k\":512"));
}

TEST(CublasGemm, TableOfAnotherLibraryIsChosenAnew) {
  const Product p = product_of(9, 5, 512);
  Gemm first(kWorkspace);
  const std::vector<float> bits = checked(first, p, 3);
  const uint64_t version = cublasLtGetVersion();
  ASSERT_EQ(setenv(kVersion, std::to_string(version + 1).c_str(), 1), 0);
  Gemm second(kWorkspace);
  const std::string warning = second.load_algorithms(first.algorithms(), "manifest.json");
  EXPECT_TRUE(has(warning, "manifest.json")) << warning;
  EXPECT_TRUE(has(warning, std::to_string(version))) << warning;
  EXPECT_TRUE(has(warning, std::to_string(version + 1))) << warning;
  EXPECT_NE(checked(second, p, 3), bits);
  EXPECT_NE(second.algorithms(), first.algorithms());
  ASSERT_EQ(unsetenv(kVersion), 0);
}

TEST(CublasGemm, TableOfAnotherDeviceOrWorkspaceIsChosenAnew) {
  Gemm first(kWorkspace), small(kWorkspace / 2);
  checked(first, product_of(9, 5, 512), 3);
  GemmTable table = parse_gemm_table(first.algorithms(), "here");
  table.device += " Ti";
  Gemm second(kWorkspace);
  EXPECT_TRUE(has(second.load_algorithms(to_json_text(table), "there"), table.device));
  EXPECT_FALSE(has(second.algorithms(), "512,"));
  EXPECT_TRUE(has(small.load_algorithms(first.algorithms(), "there"), "gemm_workspace"));
  // Without room for its parts the sum is not split.
  Gemm none(0);
  checked(none, product_of(9, 5, 512), 3);
  EXPECT_NE(parse_gemm_table(none.algorithms(), "").algorithms,
            parse_gemm_table(first.algorithms(), "").algorithms);
  EXPECT_EQ(reported(), "");
}

TEST(CublasGemm, StoredAlgorithmThatTheLibraryRefuses) {
  Gemm first(kWorkspace);
  checked(first, product_of(9, 5, 512), 3);
  GemmTable table = parse_gemm_table(first.algorithms(), "here");
  table.algorithms.begin()->second[0] ^= 1;
  Gemm second(kWorkspace);
  EXPECT_EQ(second.load_algorithms(to_json_text(table), "there"), "");
  EXPECT_TRUE(has(error_of(ExitCode::internal, [&] { checked(second, product_of(9, 5, 512), 3); }),
                  "refuses the stored algorithm of c[9,5]"));
}

TEST(GemmTable, GoesThroughTextUnchanged) {
  std::mt19937_64 rng(seed());
  GemmTable table{rng(), "NVIDIA \"X\" ☃", 123, {}};
  for (int i = 0; i < 50; ++i) {
    GemmKey key{.m = static_cast<int64_t>(rng() >> 1),
                .n = 1 + i,
                .k = 7,
                .a_transposed = rng() % 2 == 0,
                .b_transposed = rng() % 2 == 0,
                .bias = rng() % 2 == 0,
                .dtype = rng() % 2 ? Dtype::f32 : Dtype::bf16,
                .c_dtype = rng() % 2 ? Dtype::f32 : Dtype::bf16,
                .alignment = 2};
    for (uint64_t& word : table.algorithms[key]) word = rng();
  }
  const std::string text = to_json_text(table);
  const GemmTable again = parse_gemm_table(text, "here");
  EXPECT_EQ(again.algorithms, table.algorithms);
  EXPECT_EQ(why_not_usable(again, table), "");
  EXPECT_EQ(to_json_text(again), text);
  EXPECT_FALSE(has(text, "\n"));
}

TEST(GemmTable, DamageIsNamed) {
  GemmTable table{1, "d", 2, {}};
  table.algorithms[{.m = 3, .n = 4, .k = 5}] = {1, 2, 3};
  const std::string good = to_json_text(table);
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string bad = good;
    const size_t at = bad.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    bad.replace(at, from.size(), to);
    const std::string text =
        error_of(ExitCode::bad_input, [&] { parse_gemm_table(bad, "manifest.json"); });
    EXPECT_TRUE(has(text, "manifest.json")) << from << ": " << text;
    return text;
  };
  EXPECT_TRUE(has(error("\"library\":1,", ""), "library"));
  EXPECT_TRUE(has(error("\"m\":3", "\"m\":0"), "m is 0"));
  EXPECT_TRUE(has(error("\"in\":\"f32\"", "\"in\":\"f64\""), "f64"));
  EXPECT_TRUE(has(error("\"a\":\"n\"", "\"a\":\"c\""), "\"c\""));
  EXPECT_TRUE(has(error("0000000000000001", "000000000000001"), "127 hex digits"));
  EXPECT_TRUE(has(error("0000000000000001", "000000000000000g"), "hex digits"));
  EXPECT_TRUE(has(error("]}", "]"), "GEMM algorithms"));
  const size_t entry = good.find("{\"m\"");
  EXPECT_TRUE(has(error("[{", "[" + good.substr(entry, good.find('}') - entry + 1) + ",{"),
                  "is there twice"));
}

// What follows calls the library itself, or breaks its rules on purpose.

struct Raw {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulHeuristicResult_t chosen{};

  Raw(int64_t m, int64_t n, int64_t k) {
    cublasLtCreate(&handle);
    cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, m, k, m);
    cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, k, n, k);
    cublasLtMatrixLayoutCreate(&c, CUDA_R_32F, m, n, m);
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulPreferenceCreate(&preference);
    const uint64_t bytes = kWorkspace;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &bytes, sizeof bytes);
    int found = 0;
    EXPECT_EQ(
        cublasLtMatmulAlgoGetHeuristic(handle, op, a, b, c, c, preference, 1, &chosen, &found),
        CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(found, 1);
    cublasLtMatmulPreferenceDestroy(preference);
  }
  ~Raw() {
    cublasLtMatrixLayoutDestroy(c);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatmulDescDestroy(op);
    cublasLtDestroy(handle);
  }
  cublasStatus_t run(const float* from_a, const float* from_b, float* to, void* workspace,
                     size_t bytes, cudaStream_t stream = nullptr) {
    const float one = 1, zero = 0;
    return cublasLtMatmul(handle, op, &one, from_a, a, from_b, b, &zero, to, c, to, c, &chosen.algo,
                          workspace, bytes, stream);
  }
};

TEST(EmulatedCublasLt, BrokenContractsAreReported) {
  Raw raw(4, 4, 512);
  ASSERT_GT(raw.chosen.workspaceSize, 0u);
  DeviceMatrix a(Dtype::f32, 4 * 512 + 1), b(Dtype::f32, 4 * 512), c(Dtype::f32, 16),
      workspace(Dtype::u8, kWorkspace);
  const auto* on_a = static_cast<const float*>(a.data());
  const auto* on_b = static_cast<const float*>(b.data());
  auto* on_c = static_cast<float*>(c.data());
  const size_t needed = raw.chosen.workspaceSize;
  EXPECT_EQ(raw.run(on_a, on_b, on_c, workspace.data(), needed - 1), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_TRUE(has(reported(), "workspace is smaller"));
  EXPECT_EQ(raw.run(on_a, on_b, on_c, static_cast<char*>(workspace.data()) + 8, needed),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_TRUE(has(reported(), "workspace is not 16-byte aligned"));
  EXPECT_EQ(raw.run(on_a + 1, on_b, on_c, workspace.data(), needed), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_TRUE(has(reported(), "less aligned"));
  // Nothing wrote a and b, and a workspace that ends early is written behind its end.
  EXPECT_EQ(raw.run(on_a, on_b, on_c, workspace.data(), needed), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(has(reported(), "uninitialised"));
  DeviceMatrix few(Dtype::u8, static_cast<int64_t>(needed) - 16);
  EXPECT_EQ(raw.run(on_a, on_b, on_c, few.data(), needed), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(has(reported(), "out of bounds"));
}

TEST(EmulatedCublasLt, MissingWaitsAreRaces) {
  Raw raw(4, 4, 512);
  DeviceMatrix a(Dtype::f32, 4 * 512), b(Dtype::f32, 4 * 512), c(Dtype::f32, 16),
      other(Dtype::f32, 16), workspace(Dtype::u8, kWorkspace);
  a.put(std::vector<float>(4 * 512, 1));
  b.put(std::vector<float>(4 * 512, 1));
  cudaStream_t first = nullptr, second = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), cudaSuccess);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  const auto* on_a = static_cast<const float*>(a.data());
  const auto* on_b = static_cast<const float*>(b.data());
  const auto both = [&](void* second_result, bool waits) {
    raw.run(on_a, on_b, static_cast<float*>(c.data()), workspace.data(), kWorkspace, first);
    if (waits) {
      cudaEventRecord(event, first);
      cudaStreamWaitEvent(second, event, 0);
    }
    raw.run(on_a, on_b, static_cast<float*>(second_result), workspace.data(), kWorkspace, second);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return reported();
  };
  EXPECT_EQ(both(other.data(), true), "");
  // They share nothing but the workspace.
  EXPECT_TRUE(has(both(other.data(), false), "missing wait"));
  EXPECT_TRUE(has(both(c.data(), false), "missing wait"));
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(first), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(second), cudaSuccess);
}

}  // namespace
}  // namespace spillway::cuda
