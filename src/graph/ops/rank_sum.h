// rank_sum: the pieces of one gradient range of all ranks, added in a fixed two-level tree.
//   in   own f32[c], (staging f32[(ranks−1)·cap] if attrs.ranks > 1)
//   out  sum f32[c] acc; may take over the bytes of own
//   Rank p's piece is `own` for p = attrs.rank, else c elements of staging from
//   (p < rank ? p : p − 1)·stride on, stride = staging.count / (ranks − 1) ≥ c.
//   Groups of attrs.inner consecutive ranks are summed in ascending order, then the group sums in
//   ascending order; a group sum starts from its first piece, not from zero.
//   In place it never accumulates.
// Attributes: ranks, rank, inner.
#pragma once

#include "graph/op.h"

namespace spillway {

extern const OpDef rank_sum_def;

}  // namespace spillway
