// Stands before the product's table of kernels (the linker's --wrap): every op that is looked up
// declares its operands to the checker before it launches.
#include <utility>

#include "declared.h"
#include "kernels/cuda/table.h"

// The names that the linker gives kernel(OpKind) and its wrapper.
extern "C" {
spillway::cuda::CudaKernel __real__ZN8spillway4cuda6kernelENS_6OpKindE(spillway::OpKind kind);
spillway::cuda::CudaKernel __wrap__ZN8spillway4cuda6kernelENS_6OpKindE(spillway::OpKind kind);
}

namespace spillway::emulated {
namespace {

void add(declared::Ranges& ranges, const void* data, int64_t bytes, bool writable) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  if (data && bytes > 0) ranges.push_back({begin, begin + static_cast<uintptr_t>(bytes), writable});
}

template <OpKind kKind>
void declaring(const KernelArgs& args, const cuda::LaunchContext& context) {
  declared::Ranges ranges;
  const auto add_operand = [&](const TensorArg& operand, bool writable) {
    add(ranges, operand.data, operand.dims.count() * size_of(operand.dtype), writable);
  };
  for (int i = 0; i < args.in_count; ++i) add_operand(args.in[i], false);
  for (int o = 0; o < args.out_count; ++o) add_operand(args.out[o], true);
  add(ranges, args.workspace, args.workspace_bytes, true);
  const declared::Scope scope(std::move(ranges));
  __real__ZN8spillway4cuda6kernelENS_6OpKindE(kKind)(args, context);
}

}  // namespace
}  // namespace spillway::emulated

spillway::cuda::CudaKernel __wrap__ZN8spillway4cuda6kernelENS_6OpKindE(spillway::OpKind kind) {
  static constexpr spillway::cuda::CudaKernel kTable[] = {
#define OP(name) spillway::emulated::declaring<spillway::OpKind::name>,
#include "graph/op_list.h"
  };
  return kTable[static_cast<int>(kind)];
}
