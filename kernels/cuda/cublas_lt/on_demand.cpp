// cuBLASLt, loaded when it is first called. Linked the usual way, the library costs every process
// about 50 ms at its start, most of it relocations: also those that only plan, or run on the CPU.
// The functions here have its names and hand over to it. A call throws bad_input where the library
// cannot be loaded.
#include <cublasLt.h>
#include <dlfcn.h>

#include <initializer_list>
#include <string>

#include "base/error.h"

namespace spillway::cuda {
namespace {

std::string library_name() { return "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR); }

// The dynamic linker's own search first (LD_LIBRARY_PATH, the executable's run path), then the
// toolkit that this was built with.
void* load() {
  const std::string name = library_name();
  std::string why;
  for (const std::string& path : {name, std::string(SPILLWAY_CUDA_LIBRARIES "/") + name}) {
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    why += std::string(why.empty() ? "" : "; ") + dlerror();
  }
  bad_input(
      "cuBLASLt cannot be loaded: {}; install the CUDA {} libraries, or name their folder in "
      "LD_LIBRARY_PATH",
      why, CUBLAS_VER_MAJOR);
}

template <class Function>
Function* find(const char* name) {
  static void* const library = load();
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) bad_input("{} has no function {}: {}", library_name(), name, dlerror());
  return reinterpret_cast<Function*>(symbol);
}

}  // namespace
}  // namespace spillway::cuda

// One function of the library: `parameters` and the same as `arguments`.
#define HAND_OVER(result, name, parameters, arguments)                         \
  result name parameters {                                                     \
    static auto* const function = spillway::cuda::find<decltype(name)>(#name); \
    return function arguments;                                                 \
  }

extern "C" {

HAND_OVER(size_t, cublasLtGetVersion, (), ())
HAND_OVER(const char*, cublasLtGetStatusName, (cublasStatus_t status), (status))
HAND_OVER(const char*, cublasLtGetStatusString, (cublasStatus_t status), (status))
HAND_OVER(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
HAND_OVER(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle))
HAND_OVER(cublasStatus_t, cublasLtMatmulDescCreate,
          (cublasLtMatmulDesc_t * made, cublasComputeType_t compute, cudaDataType_t scale),
          (made, compute, scale))
HAND_OVER(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc), (desc))
HAND_OVER(cublasStatus_t, cublasLtMatmulDescSetAttribute,
          (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value,
           size_t bytes),
          (desc, attribute, value, bytes))
HAND_OVER(cublasStatus_t, cublasLtMatrixLayoutCreate,
          (cublasLtMatrixLayout_t * made, cudaDataType type, uint64_t rows, uint64_t columns,
           int64_t ld),
          (made, type, rows, columns, ld))
HAND_OVER(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))
HAND_OVER(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * made),
          (made))
HAND_OVER(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference),
          (preference))
HAND_OVER(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
          (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
           const void* value, size_t bytes),
          (preference, attribute, value, bytes))
HAND_OVER(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
          (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
           cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
           cublasLtMatmulPreference_t preference, int requested,
           cublasLtMatmulHeuristicResult_t results[], int* found),
          (handle, desc, a, b, c, d, preference, requested, results, found))
HAND_OVER(cublasStatus_t, cublasLtMatmulAlgoCheck,
          (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
           cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
           const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result),
          (handle, desc, a, b, c, d, algorithm, result))
HAND_OVER(cublasStatus_t, cublasLtMatmul,
          (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
           cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
           const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
           cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
           size_t workspace_bytes, cudaStream_t stream),
          (handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm,
           workspace, workspace_bytes, stream))
}  // extern "C"
