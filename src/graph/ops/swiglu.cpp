#include "graph/ops/swiglu.h"

#include "graph/backward_rules.h"
#include "graph/ops/shapes.h"

namespace spillway {
namespace {

std::vector<TensorType> infer(const Attrs&, const std::vector<TensorType>& in) {
  expect(
      in.size() == 1 && is_compute(in[0].dtype) && in[0].dims.rank == 2 && in[0].dims[1] % 2 == 0,
      "swiglu", in, "gu is not one [T,2f]");
  return {{in[0].dtype, Dims(in[0].dims[0], in[0].dims[1] / 2)}};
}

Cost cost(const Attrs&, const std::vector<TensorType>& in) {
  return {.flops = 10.0 * static_cast<double>(in[0].dims.count()),
          .bytes = 1.5 * static_cast<double>(bytes_of(in[0]))};
}

Cost grad_cost(const Attrs&, const std::vector<TensorType>& in) {
  return {.flops = 15.0 * static_cast<double>(in[0].dims.count()),
          .bytes = 2.5 * static_cast<double>(bytes_of(in[0]))};
}

std::vector<OpCase> all_cases(bool gradient) {
  std::vector<OpCase> all;
  for (const Dims& d : {Dims(1, 1), Dims(3, 5), Dims(7, 33), Dims(17, 129), Dims(128, 512)})
    add_both(all, [=](Dtype t) {
      OpCase c;
      c.label = "T" + std::to_string(d[0]) + " f" + std::to_string(d[1]);
      const TensorType gu = {t, Dims(d[0], 2 * d[1])}, y = {t, d};
      c.in = gradient ? std::vector<TensorType>{gu, y} : std::vector<TensorType>{gu};
      c.out = {gradient ? gu : y};
      c.bf16_tolerance = 5e-3;
      return c;
    });
  return all;
}

std::vector<OpCase> cases() { return all_cases(false); }
std::vector<OpCase> grad_cases() { return all_cases(true); }

}  // namespace

const OpDef swiglu_def = {.name = "swiglu",
                          .infer = infer,
                          .cost = cost,
                          .workspace = nullptr,
                          .backward = swiglu_backward,
                          .cases = cases};
const OpDef swiglu_grad_def = {.name = "swiglu_grad",
                               .infer = nullptr,
                               .cost = grad_cost,
                               .workspace = nullptr,
                               .backward = nullptr,
                               .cases = grad_cases};

}  // namespace spillway
