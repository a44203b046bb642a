// Declarations of isa/probe.cpp, for tests.
#pragma once

#include <cstdint>

#define SPILLWAY_PROBES                                                         \
  void probe_exp(const float* x, float* y, int64_t n);                          \
  void probe_tanh(const float* x, float* y, int64_t n);                         \
  void probe_narrow(const float* x, uint16_t* y, int64_t n); /* f32 → bf16 */ \
  void probe_widen(const uint16_t* x, float* y, int64_t n);  /* bf16 → f32 */ \
  float probe_sum(const float* x, int64_t n);                                   \
  float probe_maximum(const float* x, int64_t n);

namespace spillway::cpu::avx2 {
SPILLWAY_PROBES
}
namespace spillway::cpu::avx512 {
SPILLWAY_PROBES
}
#undef SPILLWAY_PROBES
