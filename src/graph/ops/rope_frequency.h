// Angular frequency of a pair of rotary elements, shared by all backends so that all see one value.
#pragma once

#include <cmath>

#include "graph/kernel_abi.h"

namespace spillway {

// f_i = theta^(−2i/d). With Llama-3 scaling, wavelengths above rope_original / rope_low are
// stretched by rope_factor, those below rope_original / rope_high stay, those between are blended.
inline double rope_frequency(const Attrs& attrs, int i) {
  const double f = std::pow(attrs.rope_theta, -2.0 * i / attrs.head_dim);
  if (!attrs.llama3_rope) return f;
  const double wavelength = 2 * 3.14159265358979323846 / f;
  const double original = static_cast<double>(attrs.rope_original);
  if (wavelength < original / attrs.rope_high) return f;
  if (wavelength > original / attrs.rope_low) return f / attrs.rope_factor;
  const double smooth =
      (original / wavelength - attrs.rope_low) / (attrs.rope_high - attrs.rope_low);
  return (1 - smooth) * f / attrs.rope_factor + smooth * f;
}

}  // namespace spillway
