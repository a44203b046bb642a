// The one formula for scratch bytes of attention.
#pragma once

#include "graph/kernel_abi.h"

namespace spillway {

// Upper bound, in bytes, of what any backend needs for attention (or its gradient) over sequences
// of attrs.context tokens with operands of `dtype`: for each thread one block of scores (two for
// the gradient) in f32 with its copy in the operands' dtype, packed operands and f32 accumulators
// of one head. A multiple of 64.
int64_t attention_workspace(const Attrs& attrs, Dtype dtype, int threads, bool gradient);

}  // namespace spillway
