// Kernels that exist as avx2::<name> and avx512::<name>, both in isa/, and whose <name> in
// kernels/cpu/dispatch.cpp calls the one that isa() allows.
// Usage: #define VARIANT(name) …, include this header, which undefines VARIANT at its end.
VARIANT(embedding)
VARIANT(embedding_grad)
VARIANT(rmsnorm)
VARIANT(rmsnorm_grad)
VARIANT(layernorm)
VARIANT(layernorm_grad)
VARIANT(rope)
VARIANT(rope_grad)
VARIANT(gelu)
VARIANT(gelu_grad)
VARIANT(swiglu)
VARIANT(swiglu_grad)
VARIANT(add)
VARIANT(rank_sum)
VARIANT(norm_partials)
VARIANT(adamw)
VARIANT(bias_grad)
#undef VARIANT
