// Row-major products through a column-major library: cᵀ = op(b)ᵀ·op(a)ᵀ, where the bytes of a
// row-major matrix are its transpose in column-major order, so that b is the library's first factor
// and a its second. The library's rows of its result are then c's columns, over which it adds the
// bias.
#include "kernels/cuda/gemm.h"

#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"

namespace spillway::cuda {
namespace {

constexpr uintptr_t kAlign = 256, kVector = 16;

void require(cublasStatus_t status, const char* call, const GemmKey& key) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  internal_error("{} of {} failed: {} ({})", call, describe(key), cublasLtGetStatusString(status),
                 cublasLtGetStatusName(status));
}

cudaDataType_t type_of(Dtype t) { return t == Dtype::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

GemmKey key_of(const GemmCall& c) {
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(c.a) | reinterpret_cast<uintptr_t>(c.b) |
                              reinterpret_cast<uintptr_t>(c.c);
  const int64_t element = std::min(size_of(c.dtype), size_of(c.c_dtype));
  return {.m = c.m,
          .n = c.n,
          .k = c.k,
          .a_transposed = c.a_transposed,
          .b_transposed = c.b_transposed,
          .bias = c.bias != nullptr,
          .dtype = c.dtype,
          .c_dtype = c.c_dtype,
          .alignment = static_cast<int32_t>(addresses % kAlign == 0    ? kAlign
                                            : addresses % kVector == 0 ? kVector
                                                                       : element)};
}

template <auto kDestroy>
struct Destroy {
  template <class T>
  void operator()(T* resource) const {
    kDestroy(resource);
  }
};
template <class Handle, auto kDestroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<kDestroy>>;

// The library's descriptors of one kind, created once.
class Descriptors {
 public:
  explicit Descriptors(const GemmKey& key) : key_(key) {
    cublasLtMatmulDesc_t operation = nullptr;
    require(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            "cublasLtMatmulDescCreate", key);
    operation_.reset(operation);
    set(CUBLASLT_MATMUL_DESC_TRANSA, key.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, key.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (key.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(type_of(key.c_dtype)));
    }
    a_ = layout(key.dtype, key.m, key.k, key.a_transposed);
    b_ = layout(key.dtype, key.k, key.n, key.b_transposed);
    c_ = layout(key.c_dtype, key.m, key.n, false);
  }

  void set_bias(const void* bias) const {
    if (bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }

  cublasLtMatmulAlgo_t choose(cublasLtHandle_t handle, int64_t workspace) const {
    cublasLtMatmulPreference_t preference = nullptr;
    require(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate", key_);
    const Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> owner(preference);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      require(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
              "cublasLtMatmulPreferenceSetAttribute", key_);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace));
    // Parts of a sum split over k are kept in f32 and added in order, never rounded in between.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(attribute, static_cast<uint32_t>(key_.alignment));

    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, operation_.get(), b_.get(), a_.get(), c_.get(),
                                       c_.get(), preference, 1, &result, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
        (status == CUBLAS_STATUS_SUCCESS && (found == 0 || result.state != CUBLAS_STATUS_SUCCESS)))
      internal_error("cuBLASLt has no algorithm for {} within {} bytes of workspace",
                     describe(key_), workspace);
    require(status, "cublasLtMatmulAlgoGetHeuristic", key_);
    return result.algo;
  }

  // Whether an algorithm of an earlier run can still be used.
  bool accepts(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
               int64_t workspace) const {
    cublasLtMatmulHeuristicResult_t result{};
    return cublasLtMatmulAlgoCheck(handle, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(),
                                   &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= static_cast<size_t>(workspace);
  }

  void run(cublasLtHandle_t handle, const GemmCall& call, const cublasLtMatmulAlgo_t& algorithm,
           int64_t workspace, cudaStream_t stream) const {
    set_bias(call.bias);
    const float one = 1, beta = call.accumulate ? 1 : 0;
    require(cublasLtMatmul(handle, operation_.get(), &one, call.b, b_.get(), call.a, a_.get(),
                           &beta, call.c, c_.get(), call.c, c_.get(), &algorithm, call.workspace,
                           static_cast<size_t>(workspace), stream),
            "cublasLtMatmul", key_);
  }

 private:
  using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

  // Of op(matrix)[rows,columns]: what lies in memory row by row are the library's columns.
  Layout layout(Dtype t, int64_t rows, int64_t columns, bool transposed) const {
    if (transposed) std::swap(rows, columns);
    cublasLtMatrixLayout_t made = nullptr;
    require(cublasLtMatrixLayoutCreate(&made, type_of(t), static_cast<uint64_t>(columns),
                                       static_cast<uint64_t>(rows), columns),
            "cublasLtMatrixLayoutCreate", key_);
    return Layout(made);
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) const {
    require(cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof value),
            "cublasLtMatmulDescSetAttribute", key_);
  }

  GemmKey key_;
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation_;
  Layout a_, b_, c_;
};

cublasLtMatmulAlgo_t to_library(const GemmAlgorithm& words) {
  cublasLtMatmulAlgo_t algorithm;
  std::copy(words.begin(), words.end(), algorithm.data);
  return algorithm;
}

GemmAlgorithm from_library(const cublasLtMatmulAlgo_t& algorithm) {
  GemmAlgorithm words;
  std::copy_n(algorithm.data, words.size(), words.begin());
  return words;
}

}  // namespace

struct Gemm::State {
  struct Kind {
    explicit Kind(const GemmKey& key) : descriptors(key) {}
    Descriptors descriptors;
    cublasLtMatmulAlgo_t algorithm{};
  };

  Owned<cublasLtHandle_t, cublasLtDestroy> handle;  // destroyed last
  GemmTable table;
  std::map<GemmKey, std::unique_ptr<Kind>> kinds;
  bool sealed = false;

  const Kind& kind(const GemmKey& key, const void* bias) {
    if (const auto found = kinds.find(key); found != kinds.end()) return *found->second;
    if (sealed)
      internal_error(
          "a step has a GEMM that was not warmed up: {}; its operands lie elsewhere, or its kernel "
          "took another path",
          describe(key));
    auto made = std::make_unique<Kind>(key);
    made->descriptors.set_bias(bias);
    const auto stored = table.algorithms.find(key);
    if (stored == table.algorithms.end()) {
      made->algorithm = made->descriptors.choose(handle.get(), table.workspace);
      table.algorithms[key] = from_library(made->algorithm);
    } else {
      made->algorithm = to_library(stored->second);
      if (!made->descriptors.accepts(handle.get(), made->algorithm, table.workspace))
        internal_error(
            "cuBLASLt refuses the stored algorithm of {}, although it comes from the same version "
            "and device; remove the table of GEMM algorithms from the checkpoint's manifest",
            describe(key));
    }
    return *(kinds[key] = std::move(made));
  }
};

Gemm::Gemm(int64_t workspace_bytes) : state_(std::make_unique<State>()) {
  cublasLtHandle_t handle = nullptr;
  if (const cublasStatus_t status = cublasLtCreate(&handle); status != CUBLAS_STATUS_SUCCESS)
    internal_error("cublasLtCreate failed: {} ({})", cublasLtGetStatusString(status),
                   cublasLtGetStatusName(status));
  state_->handle.reset(handle);
  int device = 0;
  cudaDeviceProp properties{};
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess)
    internal_error("cudaGetDeviceProperties failed: {} ({})", cudaGetErrorString(error),
                   cudaGetErrorName(error));
  state_->table.library = cublasLtGetVersion();
  state_->table.device = properties.name;
  state_->table.workspace = workspace_bytes;
}

Gemm::~Gemm() = default;

int64_t Gemm::workspace_bytes() const { return state_->table.workspace; }

void Gemm::run(const GemmCall& call, cudaStream_t stream) {
  const GemmKey key = key_of(call);
  if (reinterpret_cast<uintptr_t>(call.workspace) % kAlign != 0)
    internal_error("the workspace of {} is not {}-byte aligned", describe(key), kAlign);
  if (call.bias && reinterpret_cast<uintptr_t>(call.bias) % kVector != 0)
    internal_error("the bias of {} is not {}-byte aligned", describe(key), kVector);
  const State::Kind& kind = state_->kind(key, call.bias);
  kind.descriptors.run(state_->handle.get(), call, kind.algorithm, state_->table.workspace, stream);
}

void Gemm::seal() { state_->sealed = true; }

std::string Gemm::algorithms() const { return to_json_text(state_->table); }

std::string Gemm::load_algorithms(const std::string& text, const std::string& origin) {
  GemmTable stored = parse_gemm_table(text, origin);
  if (const std::string why = why_not_usable(stored, state_->table); !why.empty())
    return fmt::format(
        "{}: its GEMM algorithms are not used: {}; they are chosen anew, so losses may differ in "
        "their last bits from those of the run that never stopped",
        origin, why);
  state_->table.algorithms = std::move(stored.algorithms);
  return "";
}

}  // namespace spillway::cuda
