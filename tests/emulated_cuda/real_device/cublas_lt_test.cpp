// The functions of kernels/cuda/cublas_lt hand over to the real library with their arguments in
// order, as far as that shows without a device: what they set can be read back.
#include <cublasLt.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

namespace {

// What reads back is not among the functions that the backend needs.
template <class Function>
Function* of_library(const char* name) {
  void* library = dlopen(("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR)).c_str(),
                         RTLD_NOW | RTLD_NOLOAD);
  return library ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
}

bool loaded() { return of_library<size_t()>("cublasLtGetVersion") != nullptr; }

TEST(CublasLt, IsLoadedByTheFirstCall) {
  EXPECT_FALSE(loaded());
  const size_t version = cublasLtGetVersion();
  EXPECT_EQ(version / 10000, size_t{CUBLAS_VER_MAJOR}) << version;
  EXPECT_TRUE(loaded());
}

TEST(CublasLt, StatusNames) {
  EXPECT_STREQ(cublasLtGetStatusName(CUBLAS_STATUS_INVALID_VALUE), "CUBLAS_STATUS_INVALID_VALUE");
  EXPECT_NE(std::string(cublasLtGetStatusString(CUBLAS_STATUS_INVALID_VALUE)), "");
}

TEST(CublasLt, DescriptorsHoldWhatWasSet) {
  cublasLtMatmulDesc_t desc = nullptr;
  ASSERT_EQ(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  ASSERT_EQ(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &transposed,
                                           sizeof transposed),
            CUBLAS_STATUS_SUCCESS);
  cublasOperation_t read = CUBLAS_OP_N;
  size_t written = 0;
  const auto get =
      of_library<decltype(cublasLtMatmulDescGetAttribute)>("cublasLtMatmulDescGetAttribute");
  ASSERT_NE(get, nullptr);
  EXPECT_EQ(get(desc, CUBLASLT_MATMUL_DESC_TRANSB, &read, sizeof read, &written),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(read, CUBLAS_OP_T);
  EXPECT_EQ(cublasLtMatmulDescDestroy(desc), CUBLAS_STATUS_SUCCESS);
}

TEST(CublasLt, LayoutsHoldWhatWasSet) {
  cublasLtMatrixLayout_t layout = nullptr;
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, 3, 5, 8), CUBLAS_STATUS_SUCCESS);
  const auto get =
      of_library<decltype(cublasLtMatrixLayoutGetAttribute)>("cublasLtMatrixLayoutGetAttribute");
  ASSERT_NE(get, nullptr);
  const auto value = [&](cublasLtMatrixLayoutAttribute_t attribute) {
    uint64_t read = 0;
    size_t written = 0;
    EXPECT_EQ(get(layout, attribute, &read, sizeof read, &written), CUBLAS_STATUS_SUCCESS);
    return read;
  };
  EXPECT_EQ(value(CUBLASLT_MATRIX_LAYOUT_ROWS), 3u);
  EXPECT_EQ(value(CUBLASLT_MATRIX_LAYOUT_COLS), 5u);
  EXPECT_EQ(value(CUBLASLT_MATRIX_LAYOUT_LD), 8u);
  EXPECT_EQ(cublasLtMatrixLayoutDestroy(layout), CUBLAS_STATUS_SUCCESS);
}

TEST(CublasLt, PreferencesHoldWhatWasSet) {
  cublasLtMatmulPreference_t preference = nullptr;
  ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
  const uint64_t bytes = 4321;
  ASSERT_EQ(cublasLtMatmulPreferenceSetAttribute(
                preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
            CUBLAS_STATUS_SUCCESS);
  const auto get = of_library<decltype(cublasLtMatmulPreferenceGetAttribute)>(
      "cublasLtMatmulPreferenceGetAttribute");
  ASSERT_NE(get, nullptr);
  uint64_t read = 0;
  size_t written = 0;
  EXPECT_EQ(get(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &read, sizeof read, &written),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(read, bytes);
  EXPECT_EQ(cublasLtMatmulPreferenceDestroy(preference), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
