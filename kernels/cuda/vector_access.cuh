// Sixteen bytes at a time where addresses allow, else element by element. Either way a thread holds
// the same elements, so that no sum depends on alignment.
#pragma once

#include <cstdint>
#include <cstring>
#include <device_port.cuh>
#include <initializer_list>

#include "base/dtype.h"

namespace spillway::cuda {

using Bf16 = __nv_bfloat16;

template <class T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));  // elements of 16 bytes

// kPack<T> neighbouring elements, as they lie in memory.
template <class T>
struct Pack {
  uint4 bits;
};

template <int kCount>
struct Floats {
  float v[kCount];
};

__device__ __forceinline__ Floats<4> widen(const Pack<float>& p) {
  return {{__uint_as_float(p.bits.x), __uint_as_float(p.bits.y), __uint_as_float(p.bits.z),
           __uint_as_float(p.bits.w)}};
}
__device__ __forceinline__ Floats<8> widen(const Pack<Bf16>& p) {
  Floats<8> f;
  const uint32_t words[4] = {p.bits.x, p.bits.y, p.bits.z, p.bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    f.v[2 * i] = __uint_as_float(words[i] << 16);
    f.v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
  return f;
}

__device__ __forceinline__ uint32_t narrow_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
// To nearest, ties to even.
__device__ __forceinline__ void narrow(const Floats<4>& f, Pack<float>& p) {
  p.bits = make_uint4(__float_as_uint(f.v[0]), __float_as_uint(f.v[1]), __float_as_uint(f.v[2]),
                      __float_as_uint(f.v[3]));
}
__device__ __forceinline__ void narrow(const Floats<8>& f, Pack<Bf16>& p) {
  p.bits = make_uint4(narrow_pair(f.v[0], f.v[1]), narrow_pair(f.v[2], f.v[3]),
                      narrow_pair(f.v[4], f.v[5]), narrow_pair(f.v[6], f.v[7]));
}
template <class T>
__device__ __forceinline__ Pack<T> narrowed(const Floats<kPack<T>>& f) {
  Pack<T> p;
  narrow(f, p);
  return p;
}

__device__ __forceinline__ float element(const float* p) { return *p; }
__device__ __forceinline__ float element(const Bf16* p) { return __bfloat162float(*p); }
__device__ __forceinline__ void put(float* p, float x) { *p = x; }
__device__ __forceinline__ void put(Bf16* p, float x) { *p = __float2bfloat16_rn(x); }

// How many of a row's `width` elements exist from `at` on. With kVector rows are whole packs, which
// is then a constant, so that loops over rows have their loads side by side.
template <class T, bool kVector>
__device__ __forceinline__ int64_t live_in_row(int64_t width, int64_t at) {
  return kVector ? kPack<T> : width - at;
}

// The pack at p, of which `live` elements exist (kPack or more: all); the others are 0. kVector: p
// is 16-byte aligned.
template <bool kVector, class T>
__device__ __forceinline__ Pack<T> load_pack(const T* p, int64_t live) {
  if (kVector && live >= kPack<T>) return {*reinterpret_cast<const uint4*>(p)};
  Floats<kPack<T>> f;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) f.v[i] = i < live ? element(p + i) : 0.0f;
  return narrowed<T>(f);
}
template <bool kVector, class T>
__device__ __forceinline__ void store_pack(T* p, const Pack<T>& pack, int64_t live) {
  if (kVector && live >= kPack<T>) {
    *reinterpret_cast<uint4*>(p) = pack.bits;
    return;
  }
  const Floats<kPack<T>> f = widen(pack);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i)
    if (i < live) put(p + i, f.v[i]);
}

// kCount (4 or 8) neighbouring floats, as above.
template <bool kVector, int kCount>
__device__ __forceinline__ Floats<kCount> load_floats(const float* p, int64_t live) {
  Floats<kCount> f;
  if (kVector && live >= kCount) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 part = *reinterpret_cast<const float4*>(p + i);
      f.v[i] = part.x, f.v[i + 1] = part.y, f.v[i + 2] = part.z, f.v[i + 3] = part.w;
    }
    return f;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) f.v[i] = i < live ? p[i] : 0.0f;
  return f;
}
template <bool kVector, int kCount>
__device__ __forceinline__ void store_floats(float* p, const Floats<kCount>& f, int64_t live) {
  if (kVector && live >= kCount) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4)
      *reinterpret_cast<float4*>(p + i) = make_float4(f.v[i], f.v[i + 1], f.v[i + 2], f.v[i + 3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (i < live) p[i] = f.v[i];
}

template <class T>
__device__ __forceinline__ Floats<kPack<T>> zeros() {
  Floats<kPack<T>> f;
#pragma unroll
  for (float& x : f.v) x = 0.0f;
  return f;
}

// Host: may all of these be accessed 16 bytes at a time?
inline bool on_16_bytes(std::initializer_list<const void*> pointers) {
  for (const void* p : pointers)
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) return false;
  return true;
}

inline dim3 blocks_for(int64_t work, int64_t a_block) {
  return dim3(static_cast<unsigned>(ceil_div(work, a_block)));
}

}  // namespace spillway::cuda
