// Warp collectives of kernels that g++ compiles.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/emulated_cuda/port/device_builtins.h"
#include "tests/emulated_cuda/warp_ops.h"

namespace spillway::emulated {

constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

template <class T>
__forceinline__ T take_from_lane(uint32_t mask, T value, uint32_t from, const void* code) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(Shuffled::value));
  Shuffled in{from, sizeof(T), {}};
  std::memcpy(in.value, &value, sizeof(T));
  T out;
  collective(mask, shuffle, &in, sizeof in, &out, sizeof out, code);
  return out;
}

}  // namespace spillway::emulated

__forceinline__ void __syncwarp(uint32_t mask = ::spillway::emulated::kAllLanes) {
  ::spillway::emulated::collective(mask, nullptr, nullptr, 0, nullptr, 0,
                                   ::spillway::emulated::here());
}

template <class T>
__forceinline__ T __shfl_sync(uint32_t mask, T value, int from, int width = 32) {
  const int lane = ::spillway::emulated::lane_index();
  const int source = (lane & ~(width - 1)) | (from & (width - 1));
  return ::spillway::emulated::take_from_lane(mask, value, static_cast<uint32_t>(source),
                                              ::spillway::emulated::here());
}
template <class T>
__forceinline__ T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32) {
  const int lane = ::spillway::emulated::lane_index();
  const int other = lane ^ bits;
  const int source = (other & ~(width - 1)) <= (lane & ~(width - 1)) ? other : lane;
  return ::spillway::emulated::take_from_lane(mask, value, static_cast<uint32_t>(source),
                                              ::spillway::emulated::here());
}
template <class T>
__forceinline__ T __shfl_down_sync(uint32_t mask, T value, unsigned by, int width = 32) {
  const int lane = ::spillway::emulated::lane_index();
  const int other = lane + static_cast<int>(by);
  const int source = ((other ^ lane) & ~(width - 1)) ? lane : other;
  return ::spillway::emulated::take_from_lane(mask, value, static_cast<uint32_t>(source),
                                              ::spillway::emulated::here());
}
template <class T>
__forceinline__ T __shfl_up_sync(uint32_t mask, T value, unsigned by, int width = 32) {
  const int lane = ::spillway::emulated::lane_index();
  const int other = lane - static_cast<int>(by);
  const int source = other < (lane & ~(width - 1)) ? lane : other;
  return ::spillway::emulated::take_from_lane(mask, value, static_cast<uint32_t>(source),
                                              ::spillway::emulated::here());
}

__forceinline__ uint32_t __ballot_sync(uint32_t mask, int predicate) {
  const uint32_t in = predicate != 0;
  uint32_t out;
  ::spillway::emulated::collective(mask, ::spillway::emulated::ballot, &in, sizeof in, &out,
                                   sizeof out, ::spillway::emulated::here());
  return out;
}
__forceinline__ int __any_sync(uint32_t mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
__forceinline__ int __all_sync(uint32_t mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}
