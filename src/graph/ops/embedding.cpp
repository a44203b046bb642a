#include "graph/ops/embedding.h"

#include <algorithm>

#include "graph/backward_rules.h"
#include "graph/ops/shapes.h"

namespace spillway {
namespace {

std::vector<TensorType> infer(const Attrs& attrs, const std::vector<TensorType>& in) {
  const size_t operands = 2 + (attrs.bias ? 1 : 0) + (attrs.decode ? 1 : 0);
  expect(in.size() == operands, "embedding", in, "wrong number of operands");
  expect(is_compute(in[0].dtype) && in[0].dims.rank == 2, "embedding", in, "table is not [V,h]");
  expect(in[1].dtype == Dtype::i32, "embedding", in, "tokens are not i32");
  if (attrs.bias)
    expect(in[2].dtype == in[0].dtype && in[2].dims.last() == in[0].dims[1], "embedding", in,
           "positions do not match the table");
  if (attrs.decode)
    expect(in.back().dims.count() == int64_t{sizeof(StepScalars)}, "embedding", in, "no scalars");
  return {{in[0].dtype, Dims(in[1].dims.count(), in[0].dims[1])}};
}

Cost cost(const Attrs& attrs, const std::vector<TensorType>& in) {
  const double row_bytes = static_cast<double>(in[0].dims[1]) * size_of(in[0].dtype);
  const double rows = static_cast<double>(in[1].dims.count());
  return {.flops = 0, .bytes = rows * (row_bytes * (attrs.bias ? 3 : 2) + 4)};
}

Cost grad_cost(const Attrs& attrs, const std::vector<TensorType>& in) {
  const double rows = static_cast<double>(in[0].dims[0]), h = static_cast<double>(in[0].dims[1]);
  const double touched = std::max<double>(rows, attrs.vocab);
  return {.flops = rows * h, .bytes = static_cast<double>(bytes_of(in)) + 2 * 4 * touched * h};
}

OpCase forward_case(Dtype t, int64_t v, int64_t h, int32_t batch, int32_t context, bool bias,
                    bool decode) {
  OpCase c;
  c.label = "V" + std::to_string(v) + " h" + std::to_string(h) + " C" + std::to_string(context) +
            (bias ? " positions" : "") + (decode ? " decode" : "");
  c.attrs.batch = batch;
  c.attrs.context = context;
  c.attrs.bias = bias;
  c.attrs.decode = decode;
  c.attrs.vocab = static_cast<int32_t>(v);
  const int64_t rows = decode ? std::max(1, context / 2) : int64_t{batch} * context;
  c.in = {{t, Dims(v, h)}, i32_of(Dims(rows))};
  if (bias) c.in.push_back({t, Dims(context, h)});
  if (decode) c.in.push_back(scalars_type());
  c.out = {{t, Dims(rows, h)}};
  c.f32_tolerance = 1e-6;
  c.bf16_tolerance = 5e-3;
  return c;
}

OpCase grad_case(Dtype t, int64_t v, int64_t h, int32_t batch, int32_t context, bool bias) {
  OpCase c = forward_case(t, v, h, batch, context, bias, false);
  const int64_t rows = int64_t{batch} * context;
  c.in = {{t, Dims(rows, h)}, i32_of(Dims(rows)), i32_of(Dims(rows))};
  c.out = {f32_of(Dims(v, h))};
  c.accumulate = {0};
  if (bias) {
    c.out.push_back(f32_of(Dims(context, h)));
    c.accumulate.push_back(1);
  }
  c.f32_tolerance = c.bf16_tolerance = 1e-5;
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (bool bias : {false, true})
    for (bool decode : {false, true}) {
      add_both(all, [=](Dtype t) { return forward_case(t, 5, 3, 1, 1, bias, decode); });
      add_both(all, [=](Dtype t) { return forward_case(t, 33, 17, 2, 7, bias, decode); });
      add_both(all, [=](Dtype t) { return forward_case(t, 257, 192, 2, 64, bias, decode); });
    }
  return all;
}

std::vector<OpCase> grad_cases() {
  std::vector<OpCase> all;
  for (bool bias : {false, true}) {
    add_both(all, [=](Dtype t) { return grad_case(t, 5, 3, 1, 1, bias); });
    add_both(all, [=](Dtype t) { return grad_case(t, 7, 17, 3, 5, bias); });
    add_both(all, [=](Dtype t) { return grad_case(t, 257, 192, 2, 64, bias); });
    add_both(all, [=](Dtype t) { return grad_case(t, 33, 65, 1, 129, bias); });
  }
  return all;
}

}  // namespace

const OpDef embedding_def = {.name = "embedding",
                             .infer = infer,
                             .cost = cost,
                             .workspace = nullptr,
                             .backward = embedding_backward,
                             .cases = cases};
const OpDef embedding_grad_def = {.name = "embedding_grad",
                                  .infer = nullptr,
                                  .cost = grad_cost,
                                  .workspace = nullptr,
                                  .backward = nullptr,
                                  .cases = grad_cases};

}  // namespace spillway
