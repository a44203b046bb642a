#include "graph/ops/norm.h"

#include "graph/ops/shapes.h"

namespace spillway {
namespace {

Cost cost(const Attrs&, const std::vector<TensorType>& in) {
  return {.flops = 2.0 * static_cast<double>(in[0].dims.count()),
          .bytes = static_cast<double>(bytes_of(in))};
}

std::vector<OpCase> partials_cases() {
  std::vector<OpCase> all;
  for (const Dims& d : {Dims(1, 1), Dims(5, 2), Dims(33, 33), Dims(129, 7), Dims(65537, 65536),
                        Dims(100003, 1563)}) {
    OpCase c;
    c.label = "c" + std::to_string(d[0]) + " block" + std::to_string(d[1]);
    c.attrs.block = static_cast<int32_t>(d[1]);
    c.in = {f32_of(Dims(d[0]))};
    c.out = {{Dtype::f64, Dims(ceil_div(d[0], d[1]))}};
    c.f32_tolerance = 1e-12;
    all.push_back(c);
  }
  return all;
}

std::vector<OpCase> finish_cases() {
  std::vector<OpCase> all;
  for (float clip : {0.0f, 0.5f, 1e6f})
    for (const Dims& d : {Dims(1, 1), Dims(65, 3), Dims(1000, 4)}) {
      OpCase c;
      c.label =
          "P" + std::to_string(d[0]) + " L" + std::to_string(d[1]) + " clip" + std::to_string(clip);
      c.attrs.clip = clip;
      c.in = {{Dtype::f64, Dims(d[0])}, {Dtype::f64, Dims(d[1])}, scalars_type()};
      c.out = {scalars_type()};
      c.in_place = {{0, 2}};
      all.push_back(c);
    }
  return all;
}

}  // namespace

const OpDef norm_partials_def = {.name = "norm_partials",
                                 .infer = nullptr,
                                 .cost = cost,
                                 .workspace = nullptr,
                                 .backward = nullptr,
                                 .cases = partials_cases};
const OpDef norm_finish_def = {.name = "norm_finish",
                               .infer = nullptr,
                               .cost = cost,
                               .workspace = nullptr,
                               .backward = nullptr,
                               .cases = finish_cases};

}  // namespace spillway
