// The emulated cuBLASLt: descriptors, a heuristic with the limits of the real one (workspace,
// alignment, combinations of types), and a plain product that sums in f32 in the order its
// algorithm says. Its result depends on the algorithm, as the real one's does: the number of parts
// that a sum is split into follows from shape and workspace, their order from the version.
#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "report.h"
#include "runtime.h"

struct cublasLtContext {
  bool live = true;
};

namespace {

using namespace spillway::emulated;

constexpr uint64_t kMagic = 0x5370696c6c4c7401;  // in the first word of an algorithm
constexpr size_t kWorkspaceAlign = 16;
constexpr int64_t kLeastPart = 64;  // of k, of one part of a split sum

struct Layout {
  cudaDataType_t type{};
  int64_t rows = 0, columns = 0, ld = 0;  // column by column
};

struct Operation {
  cublasComputeType_t compute{};
  cudaDataType_t scale{};
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;
};

struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};  // a, b, c, d
};

struct Algorithm {
  uint64_t magic = kMagic, version = 0, parts = 1, descending = 0, alignment = 0, workspace = 0,
           unused[2] = {};
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

struct Problem {
  Operation op;
  Layout a, b, c, d;
  int64_t m() const { return d.rows; }
  int64_t n() const { return d.columns; }
  int64_t k() const { return op.a == CUBLAS_OP_N ? a.columns : a.rows; }
};

size_t version() {
  const char* set = std::getenv("SPILLWAY_EMULATED_CUBLASLT_VERSION");
  return set ? std::strtoull(set, nullptr, 10)
             : CUBLAS_VER_MAJOR * 10000 + CUBLAS_VER_MINOR * 100 + CUBLAS_VER_PATCH;
}

size_t size_of(cudaDataType_t type) { return type == CUDA_R_16BF ? 2 : 4; }
bool known(cudaDataType_t type) { return type == CUDA_R_16BF || type == CUDA_R_32F; }

template <class T>
const T& seen(const void* handle) {
  return *static_cast<const T*>(handle);
}

Problem problem(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  return {seen<Operation>(op), seen<Layout>(a), seen<Layout>(b), seen<Layout>(c), seen<Layout>(d)};
}

// What the library checks before it looks at addresses.
cublasStatus_t judged(const Problem& p) {
  const auto sound = [](const Layout& l) { return l.rows > 0 && l.columns > 0 && l.ld >= l.rows; };
  if (!sound(p.a) || !sound(p.b) || !sound(p.c) || !sound(p.d)) return CUBLAS_STATUS_INVALID_VALUE;
  const int64_t m = p.op.a == CUBLAS_OP_N ? p.a.rows : p.a.columns;
  const int64_t k = p.op.b == CUBLAS_OP_N ? p.b.rows : p.b.columns;
  const int64_t n = p.op.b == CUBLAS_OP_N ? p.b.columns : p.b.rows;
  if (m != p.m() || n != p.n() || k != p.k() || p.c.rows != m || p.c.columns != n)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!known(p.a.type) || p.a.type != p.b.type || !known(p.d.type) || p.c.type != p.d.type ||
      (p.a.type == CUDA_R_32F && p.d.type != CUDA_R_32F) || p.op.compute != CUBLAS_COMPUTE_32F ||
      p.op.scale != CUDA_R_32F)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.op.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
  // A bias has the type of the result.
  return p.op.epilogue == CUBLASLT_EPILOGUE_BIAS &&
                 (p.op.bias_type == -1 || p.op.bias_type == p.d.type)
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_NOT_SUPPORTED;
}

uint64_t workspace_of(const Problem& p, uint64_t parts) {
  return parts == 1 ? 0 : parts * static_cast<uint64_t>(p.m() * p.n()) * sizeof(float);
}

std::vector<float> as_floats(const void* data, const Layout& l) {
  std::vector<float> values(static_cast<size_t>(l.rows * l.columns));
  const char* from = static_cast<const char*>(view_of(data));
  for (int64_t j = 0; j < l.columns; ++j)
    for (int64_t i = 0; i < l.rows; ++i) {
      float& to = values[static_cast<size_t>(j * l.rows + i)];
      if (l.type == CUDA_R_32F) {
        std::memcpy(&to, from + (j * l.ld + i) * 4, 4);
      } else {
        uint16_t upper;
        std::memcpy(&upper, from + (j * l.ld + i) * 2, 2);
        const uint32_t bits = uint32_t{upper} << 16;
        std::memcpy(&to, &bits, 4);
      }
    }
  return values;
}

std::vector<float> transposed(const std::vector<float>& from, int64_t rows, int64_t columns) {
  std::vector<float> to(from.size());
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t i = 0; i < rows; ++i)
      to[static_cast<size_t>(i * columns + j)] = from[static_cast<size_t>(j * rows + i)];
  return to;
}

void put(void* to, cudaDataType_t type, float value) {
  if (type == CUDA_R_32F) {
    std::memcpy(to, &value, 4);
    return;
  }
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  // To the nearest, ties to even.
  const auto rounded =
      static_cast<uint16_t>(nan ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  std::memcpy(to, &rounded, 2);
}

struct Operands {
  float alpha = 0, beta = 0;
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void *d = nullptr, *workspace = nullptr;
};

void declare_reads(const void* data, const Layout& l) {
  reads(data, static_cast<size_t>(l.rows) * size_of(l.type), static_cast<size_t>(l.columns),
        static_cast<size_t>(l.ld) * size_of(l.type));
}

// One part's sums: sums[m,n] over [begin, end) of k, column by column.
void multiply(const std::vector<float>& a, const std::vector<float>& b, int64_t m, int64_t n,
              int64_t k, int64_t begin, int64_t end, float* sums) {
  std::fill_n(sums, m * n, 0.0f);
  for (int64_t j = 0; j < n; ++j) {
    float* column = sums + j * m;
    for (int64_t l = begin; l < end; ++l) {
      const float factor = b[static_cast<size_t>(j * k + l)];
      const float* from = a.data() + l * m;
      for (int64_t i = 0; i < m; ++i) column[i] += factor * from[i];
    }
  }
}

void run(const Problem& p, const Operands& o, const Algorithm& algorithm) {
  const int64_t m = p.m(), n = p.n(), k = p.k();
  declare_reads(o.a, p.a);
  declare_reads(o.b, p.b);
  if (o.beta != 0) declare_reads(o.c, p.c);
  const bool biased = p.op.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (biased) reads(p.op.bias, static_cast<size_t>(m) * size_of(p.d.type));

  std::vector<float> a = as_floats(o.a, p.a), b = as_floats(o.b, p.b);
  if (p.op.a == CUBLAS_OP_T) a = transposed(a, p.a.rows, p.a.columns);
  if (p.op.b == CUBLAS_OP_T) b = transposed(b, p.b.rows, p.b.columns);

  const auto parts = static_cast<int64_t>(algorithm.parts);
  const auto size = static_cast<size_t>(m * n);
  std::vector<float> own, sums(size);
  float* partial = sums.data();
  if (parts > 1) {
    writes(o.workspace, algorithm.workspace);
    partial = static_cast<float*>(view_of(o.workspace));
  }
  const int64_t step = (k + parts - 1) / parts;
  for (int64_t s = 0; s < parts; ++s)
    multiply(a, b, m, n, k, s * step, std::min(k, (s + 1) * step), partial + s * m * n);
  if (parts > 1) {
    reads(o.workspace, algorithm.workspace);
    for (int64_t s = 0; s < parts; ++s) {
      const float* part = partial + (algorithm.descending ? parts - 1 - s : s) * m * n;
      for (size_t i = 0; i < size; ++i) sums[i] = s == 0 ? part[i] : sums[i] + part[i];
    }
  }

  std::vector<float> before, bias;
  if (o.beta != 0) before = as_floats(o.c, p.c);
  if (biased) bias = as_floats(p.op.bias, {p.d.type, m, 1, m});
  writes(o.d, static_cast<size_t>(m) * size_of(p.d.type), static_cast<size_t>(n),
         static_cast<size_t>(p.d.ld) * size_of(p.d.type));
  char* to = static_cast<char*>(view_of(o.d));
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < m; ++i) {
      const auto at = static_cast<size_t>(j * m + i);
      float value = o.alpha * sums[at];
      if (o.beta != 0) value += o.beta * before[at];
      if (biased) value += bias[static_cast<size_t>(i)];
      put(to + static_cast<size_t>(j * p.d.ld + i) * size_of(p.d.type), p.d.type, value);
    }
}

bool aligned(const void* p, uint64_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; }

template <class T>
cublasStatus_t set(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return version(); }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}

const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  const Call call("cublasLtCreate");
  if (call.fails()) return CUBLAS_STATUS_ALLOC_FAILED;
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  Operation* op = new Operation;
  op->compute = compute;
  op->scale = scale;
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(op);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t op) {
  delete reinterpret_cast<Operation*>(op);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  Operation& op = *reinterpret_cast<Operation*>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(op.a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(op.b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(op.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(op.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(op.bias_type, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  Preference& preference = *reinterpret_cast<Preference*>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(preference.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(preference.alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(preference.alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(preference.alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(preference.alignment[3], value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t handle_of_preference,
                                              int wanted, cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  const Call call("cublasLtMatmulAlgoGetHeuristic");
  if (call.fails()) return CUBLAS_STATUS_INTERNAL_ERROR;
  *found = 0;
  if (!handle || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const Problem p = problem(op, a, b, c, d);
  if (const cublasStatus_t status = judged(p); status != CUBLAS_STATUS_SUCCESS) return status;
  const Preference& preference = seen<Preference>(handle_of_preference);
  Algorithm algorithm;
  algorithm.version = version();
  algorithm.descending = version() % 2;
  algorithm.alignment = *std::min_element(preference.alignment, preference.alignment + 4);
  if (algorithm.alignment < std::min(size_of(p.a.type), size_of(p.d.type)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  // Long sums of few elements keep a device busy only if they are split.
  if (preference.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
    for (const uint64_t parts : {4, 3, 2})
      if (p.k() >= static_cast<int64_t>(parts) * kLeastPart &&
          workspace_of(p, parts) <= preference.workspace) {
        algorithm.parts = parts;
        break;
      }
  algorithm.workspace = workspace_of(p, algorithm.parts);
  results[0] = {};
  results[0].algo = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
  results[0].workspaceSize = algorithm.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t op,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const Problem p = problem(op, a, b, c, d);
  const auto algorithm = std::bit_cast<Algorithm>(*algo);
  if (algorithm.magic != kMagic || algorithm.version != version() || algorithm.parts < 1 ||
      algorithm.workspace != workspace_of(p, algorithm.parts))
    return CUBLAS_STATUS_INVALID_VALUE;
  *result = {};
  result->workspaceSize = algorithm.workspace;
  result->state = judged(p);
  return result->state;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  const Call call("cublasLtMatmul");
  if (call.fails()) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (!handle || !algo) return CUBLAS_STATUS_INVALID_VALUE;
  const Problem p = problem(op, a_layout, b_layout, c_layout, d_layout);
  if (const cublasStatus_t status = judged(p); status != CUBLAS_STATUS_SUCCESS) return status;
  const auto algorithm = std::bit_cast<Algorithm>(*algo);
  const auto broken = [&](const std::string& what) {
    report("cublasLt", nullptr, "cublasLtMatmul of {}x{}x{}: {}", p.m(), p.n(), p.k(), what);
    return CUBLAS_STATUS_INVALID_VALUE;
  };
  if (algorithm.magic != kMagic || algorithm.version != version())
    return broken("the algorithm is not one of this library");
  if (workspace_bytes < algorithm.workspace || (algorithm.workspace > 0 && !workspace))
    return broken("the workspace is smaller than the algorithm needs");
  if (!aligned(workspace, kWorkspaceAlign)) return broken("the workspace is not 16-byte aligned");
  for (const void* p : {a, b, c, static_cast<const void*>(d)})
    if (!aligned(p, algorithm.alignment))
      return broken("an operand is less aligned than the algorithm was chosen for");
  if (p.op.epilogue == CUBLASLT_EPILOGUE_BIAS && (!p.op.bias || !aligned(p.op.bias, 16)))
    return broken("the bias is not 16-byte aligned");
  if (c == d && (p.c.ld != p.d.ld)) return CUBLAS_STATUS_INVALID_VALUE;
  Operands o = {.a = a, .b = b, .c = c, .d = d, .workspace = workspace};
  std::memcpy(&o.alpha, alpha, sizeof o.alpha);
  std::memcpy(&o.beta, beta, sizeof o.beta);
  Work work;
  work.name = "cublasLtMatmul";
  work.run = [p, o, algorithm] { run(p, o, algorithm); };
  enqueue(stream, std::move(work));
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
