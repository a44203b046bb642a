#include <cmath>

#include "base/error.h"
#include "kernels/cuda/attention.h"

namespace spillway::cuda {
namespace {

bool at_16_bytes(const TensorArg& arg) { return reinterpret_cast<uintptr_t>(arg.data) % 16 == 0; }

}  // namespace

AttentionShape attention_shape(const KernelArgs& args) {
  const Attrs& attrs = *args.attrs;
  if (attrs.head_dim != 64 && attrs.head_dim != 128)
    bad_input(
        "not supported yet: head size {} on the CUDA backend, whose attention has 64 and 128; set "
        "model.head_dim to one of them, or \"backend\" to \"cpu\"",
        attrs.head_dim);
  AttentionShape shape;
  shape.sequences = attrs.batch;
  shape.context = attrs.context;
  shape.heads = attrs.heads;
  shape.kv_heads = attrs.kv_heads;
  shape.o_pitch = int64_t{attrs.heads} * attrs.head_dim;
  shape.pitch = shape.o_pitch + 2 * int64_t{attrs.kv_heads} * attrs.head_dim;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(attrs.head_dim));
  shape.aligned = true;
  const Dtype dtype = args.in[0].dtype;
  for (int i = 0; i < args.in_count; ++i)
    if (args.in[i].dtype == dtype) shape.aligned = shape.aligned && at_16_bytes(args.in[i]);
  for (int i = 0; i < args.out_count; ++i)
    if (args.out[i].dtype == dtype) shape.aligned = shape.aligned && at_16_bytes(args.out[i]);
  return shape;
}

}  // namespace spillway::cuda
