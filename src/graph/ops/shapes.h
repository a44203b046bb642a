// What the definitions of ops share: checks, sizes and the making of test cases.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/op.h"

namespace spillway {

// Throws Error(internal) "<op>: <what>; operands f32[4,5] …" unless `ok`.
void expect(bool ok, std::string_view op, const std::vector<TensorType>& in, std::string_view what);

// The f32 or bf16 that activations and matrices have.
inline bool is_compute(Dtype t) { return t == Dtype::f32 || t == Dtype::bf16; }

inline int64_t bytes_of(const TensorType& t) { return t.dims.count() * size_of(t.dtype); }
int64_t bytes_of(const std::vector<TensorType>& types);

// Parts of a workspace start at multiples of 64 bytes.
inline int64_t aligned(int64_t bytes) { return round_up(bytes, 64); }

TensorType f32_of(Dims dims);
TensorType i32_of(Dims dims);
TensorType scalars_type();  // the step scalars as u8

// Adds make(f32) and make(bf16), the dtype appended to their labels.
void add_both(std::vector<OpCase>& cases, const std::function<OpCase(Dtype)>& make);

}  // namespace spillway
