// What nvcc supplies without a header, for g++.
#pragma once

#include <vector_types.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "tests/emulated_cuda/block.h"

// One block runs at a time, on one OS thread: its static shared memory is that thread's local
// storage, where the checker knows it.
#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __constant__
#define __constant__
#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __host__
#define __host__
#undef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))

#define threadIdx (::spillway::emulated::thread_index())
#define blockIdx (::spillway::emulated::block_index())
#define blockDim (::spillway::emulated::block_size())
#define gridDim (::spillway::emulated::grid_size())
static constexpr int warpSize = 32;

namespace spillway::emulated {
// The address of the kernel's code that executes this: used by functions that are inlined into it.
__attribute__((noinline)) inline const void* here() {
  return static_cast<const char*>(__builtin_return_address(0)) - 1;
}
}  // namespace spillway::emulated

__forceinline__ void __syncthreads() {
  ::spillway::emulated::barrier(0, ::spillway::emulated::here());
}
__forceinline__ int __syncthreads_or(int value) {
  return ::spillway::emulated::barrier(value, ::spillway::emulated::here()).any;
}
__forceinline__ int __syncthreads_and(int value) {
  return ::spillway::emulated::barrier(value, ::spillway::emulated::here()).all;
}
__forceinline__ int __syncthreads_count(int value) {
  return ::spillway::emulated::barrier(value, ::spillway::emulated::here()).count;
}
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
__forceinline__ T __ldg(const T* p) {
  return *p;
}
template <class T>
__forceinline__ T __ldcs(const T* p) {
  return *p;
}
template <class T>
__forceinline__ void __stcs(T* p, T value) {
  *p = value;
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline unsigned __float_as_uint(float f) { return std::bit_cast<unsigned>(f); }
inline float __uint_as_float(unsigned u) { return std::bit_cast<float>(u); }
inline int __float_as_int(float f) { return std::bit_cast<int>(f); }
inline float __int_as_float(int i) { return std::bit_cast<float>(i); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }

// nvcc's overload set, without std::.
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
