#include "graph/ops/select_row.h"

#include "graph/ops/shapes.h"

namespace spillway {
namespace {

std::vector<TensorType> infer(const Attrs&, const std::vector<TensorType>& in) {
  expect(in.size() == 2, "select_row", in, "wrong number of operands");
  expect(is_compute(in[0].dtype) && in[0].dims.rank == 2, "select_row", in, "x is not [n,h]");
  expect(in[1].dims.count() == int64_t{sizeof(StepScalars)}, "select_row", in, "no scalars");
  return {{in[0].dtype, Dims(1, in[0].dims[1])}};
}

Cost cost(const Attrs&, const std::vector<TensorType>& in) {
  return {.flops = 0, .bytes = 2.0 * static_cast<double>(in[0].dims[1] * size_of(in[0].dtype))};
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const Dims& d : {Dims(1, 1), Dims(1, 33), Dims(5, 17), Dims(33, 192)})
    add_both(all, [=](Dtype t) {
      OpCase c;
      c.label = "n" + std::to_string(d[0]) + " h" + std::to_string(d[1]);
      c.attrs.context = static_cast<int32_t>(d[0]);
      c.in = {{t, d}, scalars_type()};
      c.out = {{t, Dims(1, d[1])}};
      c.f32_tolerance = c.bf16_tolerance = 0;
      return c;
    });
  return all;
}

}  // namespace

const OpDef select_row_def = {.name = "select_row",
                              .infer = infer,
                              .cost = cost,
                              .workspace = nullptr,
                              .backward = nullptr,
                              .cases = cases};

}  // namespace spillway
