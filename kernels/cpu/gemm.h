// Matrix products of the CPU backend: cut into tasks, spread over the caller's threads, with all
// scratch in the caller's workspace. Results are the same bits whatever the number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu/gemm_engine.h"
#include "kernels/cpu/parallel.h"

namespace spillway::cpu {

// A workspace handed out piece by piece, each 64-byte aligned. Throws Error(internal) naming the op
// when it is too small.
class Scratch {
 public:
  Scratch(const char* op, void* data, int64_t bytes)
      : op_(op), data_(static_cast<char*>(data)), bytes_(bytes) {}
  void* take(int64_t bytes);
  template <class T>
  T* take_array(int64_t count) {
    return static_cast<T*>(take(count * static_cast<int64_t>(sizeof(T))));
  }
  int64_t mark() const { return used_; }
  void release(int64_t mark) { used_ = mark; }

 private:
  const char* op_;
  char* data_;
  int64_t bytes_, used_ = 0;
};

// Element (i, j) at data + i·row + j·column elements; row or column is 1.
struct Matrix {
  const void* data = nullptr;
  int64_t row = 0, column = 1;
};

struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  Dtype dtype = Dtype::f32;        // of a and b: f32 or bf16
  Matrix a;                        // [m, k]
  Matrix b;                        // [k, n]; unused if packed_b is set
  const void* packed_b = nullptr;  // by gemm_pack with the same dtype, k and n
  void* c = nullptr;               // [m, n], rows ldc elements apart
  Dtype c_dtype = Dtype::f32;      // f32, or bf16 if dtype is
  int64_t ldc = 0;
  const float* bias = nullptr;  // f32[n], added to every row
  bool accumulate = false;      // C += A·B; f32 only
};

// C = A·B (+ bias), or C += A·B. Sums are f32.
void gemm(const Gemm& g, Scratch& scratch);

int64_t gemm_packed_bytes(Dtype dtype, int64_t k, int64_t n);
void gemm_pack(Dtype dtype, const Matrix& b, int64_t k, int64_t n, void* packed);

// Calls task(index, slot) for every index in [0, count), in any order, on threads() threads; slot
// (0 … threads() − 1) is the same for all tasks of a thread and names its part of a workspace.
template <class Task>
void for_tasks(int64_t count, const Task& task) {
  std::atomic<int64_t> next{0};
  for_quanta(std::min<int64_t>(count, threads()), [&](int64_t slot) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(i, slot);
  });
}

}  // namespace spillway::cpu
