// embedding: rows of a table by token, plus learned positions.
//   in   table[V,h], tokens i32[T], (positions[C,h] if attrs.bias), (scalars if attrs.decode)
//   out  x[T,h] = table[tokens[r]] (+ positions[p])
//   p = r % attrs.context, or scalars.position + r when decoding; p < C is the caller's duty.
//   Sums are rounded once to the table's dtype. Tokens are in 0 … V-1.
//
// embedding_grad: its gradient, as a sorted segmented sum.
//   in   dx[T,h], token_order i32[T] (row indices, stably sorted by token), tokens i32[T]
//   out  dtable f32[V,h] acc, (dpositions f32[C,h] acc if attrs.bias)
//   Rows of one token are added in row order; overwriting zeroes untouched rows of dtable.
//   dpositions[p] adds rows p, p + context, … in order; positions beyond the context get zero.
//
// Attributes: context, bias, decode, vocab (cost only). Both in table's dtype, accumulation f32.
#pragma once

#include "graph/op.h"

namespace spillway {

extern const OpDef embedding_def;
extern const OpDef embedding_grad_def;

}  // namespace spillway
