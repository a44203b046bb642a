#include "kernels/cuda/sampling.h"

#include "base/error.h"
#include "kernels/cuda/table.h"

namespace spillway::cuda {
namespace {

[[noreturn]] void refuse() {
  bad_input(
      "not supported yet: sampling on the CUDA backend; sample the checkpoint with \"backend\": "
      "\"cpu\"");
}

}  // namespace

void refuse_decoding(const Attrs& attrs) {
  if (attrs.decode) refuse();
}

void attention_cached(const KernelArgs&, const LaunchContext&) { refuse(); }
void select_row(const KernelArgs&, const LaunchContext&) { refuse(); }

}  // namespace spillway::cuda
