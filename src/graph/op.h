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
  bool backward = false;  // of attention: its backward pass, which has a rate of its own
  double smallest = 0;    // of a gemm: the smallest of m, n and k; 0: large
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

// What workspace sizes depend on besides shapes; from the hardware profile and the config, never
// from a query to a device or a library.
struct WorkspaceRules {
  int threads = 1;             // compute threads of the CPU backend
  bool cuda = false;           // the plan is for CUDA devices; it must run on the CPU backend too
  int64_t gemm_workspace = 0;  // bytes that a GEMM of the CUDA backend may use, a constant
};

struct OpDef {
  std::string_view name;
  // Output types from inputs (forward ops; nullptr for gradients and updates, whose outputs the
  // rewrites create); throws Error(internal) with the op's name on a shape that is wrong.
  std::vector<TensorType> (*infer)(const Attrs&, const std::vector<TensorType>& in);
  Cost (*cost)(const Attrs&, const std::vector<TensorType>& in);
  // Upper bound of the scratch that a kernel needs, packed weights included: the CPU kernels' for
  // `threads`, or with `cuda` whatever is larger, theirs or the CUDA kernels'. A multiple of 64,
  // and a function of shapes and rules alone. nullptr: none.
  int64_t (*workspace)(const Attrs&, const std::vector<TensorType>& in, const WorkspaceRules&);
  // Emits the nodes of the backward pass. `dout[i]` is kNone where no gradient arrives. Sets
  // `din[i]` where one is produced; parameters' gradients go to builder.accumulator(param).
  // nullptr: the op has no backward.
  void (*backward)(GraphBuilder&, const Node&, const std::vector<TensorId>& dout,
                   std::vector<TensorId>& din);
  std::vector<OpCase> (*cases)();
};

const OpDef& op_def(OpKind kind);  // table generated from op_list.h

}  // namespace spillway
