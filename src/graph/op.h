// All that an op knows about itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace spillway {

struct TensorType {
  Dtype dtype = Dtype::f32;
  Dims dims;
};

struct Cost {
  double flops = 0;   // multiply and add count two
  double bytes = 0;   // read + written
  bool gemm = false;  // bound by the matrix units (else by memory)
  bool attention = false;
};

// One test of an op: operand types, attributes; the op's test draws inputs from a printed seed.
struct OpCase {
  std::string label;
  Attrs attrs;
  std::vector<TensorType> in, out;
  // ‖a−b‖/‖b‖ against the double reference: of outputs in f32 and f64, of outputs in bf16.
  double f32_tolerance = 1e-5, bf16_tolerance = 2e-2;
  std::vector<int32_t> accumulate;                     // outputs that are f32 accumulators
  std::vector<std::pair<int32_t, int32_t>> in_place;   // (out, in) that are always one tensor
  std::vector<std::pair<int32_t, int32_t>> may_alias;  // (out, in) that may share their bytes
};

class GraphBuilder;

struct OpDef {
  std::string_view name;
  // Output types from inputs (forward ops; nullptr for gradients and updates, whose outputs the
  // rewrites create); throws Error(internal) with the op's name on a shape that is wrong.
  std::vector<TensorType> (*infer)(const Attrs&, const std::vector<TensorType>& in);
  Cost (*cost)(const Attrs&, const std::vector<TensorType>& in);
  // Upper bound of the scratch a kernel of any backend needs, packed weights included. A function
  // of shapes and `threads` alone. nullptr: none.
  int64_t (*workspace)(const Attrs&, const std::vector<TensorType>& in, int threads);
  // Emits the nodes of the backward pass. `dout[i]` is kNone where no gradient arrives. Sets
  // `din[i]` where one is produced; parameters' gradients go to builder.accumulator(param).
  // nullptr: the op has no backward.
  void (*backward)(GraphBuilder&, const Node&, const std::vector<TensorId>& dout,
                   std::vector<TensorId>& din);
  std::vector<OpCase> (*cases)();
};

const OpDef& op_def(OpKind kind);  // table generated from op_list.h

}  // namespace spillway
