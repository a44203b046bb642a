// What an instruction's op costs, by its operands.
#pragma once

#include <vector>

#include "graph/op.h"
#include "program/program.h"

namespace spillway {

inline std::vector<TensorType> input_types(const Instr& instr) {
  std::vector<TensorType> types;
  for (const ProgramOperand& o : instr.in) types.push_back({o.dtype, o.dims});
  return types;
}

inline Cost op_cost(const Program& program, const Instr& instr) {
  return op_def(instr.op).cost(program.attrs[static_cast<size_t>(instr.attrs)], input_types(instr));
}

}  // namespace spillway
