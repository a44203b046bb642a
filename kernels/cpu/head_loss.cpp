// head_loss and head_loss_grad: chunk by chunk of rows. The weights are packed once a call.
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/row_steps.h"
#include "kernels/cpu/table.h"

namespace spillway::cpu {
namespace {

void head(const KernelArgs& args, const char* op, bool gradient) {
  const TensorArg &x = args.in[0], &w = args.in[1];
  const Attrs& attrs = *args.attrs;
  const int32_t* targets = args.in[2].as<int32_t>();
  const int64_t rows = x.dims[0], h = x.dims[1], v = w.dims[0], size = size_of(x.dtype);
  const int64_t chunk = std::min<int64_t>(attrs.chunk, rows);
  const Dtype dtype = x.dtype;
  const RowSteps& steps = isa() == Isa::avx2 ? avx2::kRowSteps : avx512::kRowSteps;
  const Matrix transposed = {w.data, 1, h}, plain = {w.data, h, 1};

  Scratch scratch(op, args.workspace, args.workspace_bytes);
  double* nll = scratch.take_array<double>(rows);
  float* logits = scratch.take_array<float>(chunk * v);
  void* dlogits = logits;
  if (gradient && dtype != Dtype::f32) dlogits = scratch.take(chunk * v * size);
  void* packed = scratch.take(gemm_packed_bytes(dtype, h, v));
  gemm_pack(dtype, transposed, h, v, packed);
  void* packed_back = nullptr;
  if (gradient) {
    packed_back = scratch.take(gemm_packed_bytes(dtype, v, h));
    gemm_pack(dtype, plain, v, h, packed_back);
  }

  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const char* from = x.as<char>() + begin * h * size;
    gemm({.m = count,
          .n = v,
          .k = h,
          .dtype = dtype,
          .a = {from, h, 1},
          .packed_b = packed,
          .c = logits,
          .ldc = v},
         scratch);
    for_tasks(count, [&](int64_t r, int64_t) {
      const int64_t target = targets[begin + r];
      float* row = logits + r * v;
      nll[begin + r] = gradient ? steps.nll_grad(row, attrs.vocab, v, target, attrs.loss_scale,
                                                 static_cast<char*>(dlogits) + r * v * size, dtype)
                                : steps.nll(row, attrs.vocab, target);
    });
    if (!gradient) continue;
    gemm({.m = count,
          .n = h,
          .k = v,
          .dtype = dtype,
          .a = {dlogits, v, 1},
          .packed_b = packed_back,
          .c = args.out[0].as<char>() + begin * h * size,
          .c_dtype = dtype,
          .ldc = h},
         scratch);
    gemm({.m = v,
          .n = h,
          .k = count,
          .dtype = dtype,
          .a = {dlogits, 1, v},
          .b = {from, h, 1},
          .c = args.out[1].data,
          .ldc = h,
          .accumulate = args.accumulate || begin > 0},
         scratch);
  }
  double total = 0;
  for (int64_t r = 0; r < rows; ++r) total += nll[r];
  args.out[gradient ? 2 : 0].as<double>()[args.micro] =
      static_cast<double>(attrs.loss_scale) * total;
}

}  // namespace

void head_loss(const KernelArgs& args) { head(args, "head_loss", false); }
void head_loss_grad(const KernelArgs& args) { head(args, "head_loss_grad", true); }

}  // namespace spillway::cpu
