#include "graph/ops/gelu.h"

#include "graph/backward_rules.h"
#include "graph/ops/shapes.h"

namespace spillway {
namespace {

std::vector<TensorType> infer(const Attrs&, const std::vector<TensorType>& in) {
  expect(in.size() == 1 && is_compute(in[0].dtype), "gelu", in, "x is not one f32 or bf16 tensor");
  return {in[0]};
}

Cost cost(const Attrs&, const std::vector<TensorType>& in) {
  return {.flops = 20.0 * static_cast<double>(in[0].dims.count()),
          .bytes = static_cast<double>(bytes_of(in) + bytes_of(in[0]))};
}

std::vector<OpCase> all_cases(bool gradient) {
  std::vector<OpCase> all;
  for (const Dims& d : {Dims(1, 1), Dims(3, 5), Dims(7, 33), Dims(17, 129), Dims(128, 768)})
    add_both(all, [=](Dtype t) {
      OpCase c;
      c.label = "T" + std::to_string(d[0]) + " f" + std::to_string(d[1]);
      c.in = {{t, d}};
      if (gradient) {
        c.in.push_back({t, d});
        c.may_alias = {{0, 1}};
      }
      c.out = {{t, d}};
      c.bf16_tolerance = 5e-3;
      return c;
    });
  return all;
}

std::vector<OpCase> cases() { return all_cases(false); }
std::vector<OpCase> grad_cases() { return all_cases(true); }

}  // namespace

const OpDef gelu_def = {.name = "gelu",
                        .infer = infer,
                        .cost = cost,
                        .workspace = nullptr,
                        .backward = gelu_backward,
                        .cases = cases};
const OpDef gelu_grad_def = {.name = "gelu_grad",
                             .infer = nullptr,
                             .cost = cost,
                             .workspace = nullptr,
                             .backward = nullptr,
                             .cases = grad_cases};

}  // namespace spillway
