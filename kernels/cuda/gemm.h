// Matrix products on CUDA devices: cuBLASLt, with everything it decides decided once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/gemm_table.h"

namespace spillway::cuda {

// c = op(a)·op(b), + bias over the columns, + c itself if `accumulate`; all dense and row-major in
// device memory, summed in f32 (f32 factors never as TF32).
struct GemmCall {
  int64_t m = 0, n = 0, k = 0;
  Dtype dtype = Dtype::f32;  // of a and b: f32 or bf16
  const void* a = nullptr;   // [m,k], or [k,m] if transposed
  bool a_transposed = false;
  const void* b = nullptr;  // [k,n], or [n,k] if transposed
  bool b_transposed = false;
  void* c = nullptr;  // [m,n]
  Dtype c_dtype = Dtype::f32;
  bool accumulate = false;
  const void* bias = nullptr;  // [n] in c's dtype, 16-byte aligned; or none
  void* workspace = nullptr;   // Gemm::workspace_bytes() of them, 256-byte aligned
};

// Until `seal`, the first call of a kind (GemmKey) chooses its algorithm through the library's
// heuristic. Afterwards a kind that was not seen is an Error(internal) that names it, so that
// nothing is chosen or allocated within a step. One thread calls.
class Gemm {
 public:
  // For the current device. `workspace_bytes`: the constant size that calls bring, of the hardware
  // profile; a part of the numerics, since algorithms that need more are never chosen.
  explicit Gemm(int64_t workspace_bytes);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  int64_t workspace_bytes() const;

  // Enqueues on `stream`. Throws Error(internal) naming the kind where the library has no
  // algorithm for it or refuses the call.
  void run(const GemmCall& call, cudaStream_t stream);
  void seal();

  // Algorithms in use and those that were loaded, as JSON text (gemm_table.h).
  std::string algorithms() const;
  // Takes over what `algorithms` gave an earlier run; before the first call. Returns "" or a
  // warning for the user: algorithms of another library, device or workspace are chosen anew, so
  // bits may change. Throws Error(bad_input) naming `origin` where the text is damaged.
  [[nodiscard]] std::string load_algorithms(const std::string& text, const std::string& origin);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway::cuda
