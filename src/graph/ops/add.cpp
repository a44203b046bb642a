#include "graph/ops/add.h"

#include "graph/ops/shapes.h"

namespace spillway {
namespace {

Cost cost(const Attrs&, const std::vector<TensorType>& in) {
  return {.flops = static_cast<double>(in[0].dims.count()),
          .bytes = static_cast<double>(bytes_of(in) + bytes_of(in[0]))};
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const Dims& d : {Dims(1), Dims(7), Dims(33), Dims(65, 129), Dims(100003)}) {
    OpCase c;
    c.label = "n" + std::to_string(d.count());
    c.in = {f32_of(d), f32_of(d)};
    c.out = {f32_of(d)};
    c.in_place = {{0, 0}};
    c.f32_tolerance = 1e-7;
    all.push_back(c);
  }
  return all;
}

}  // namespace

const OpDef add_def = {.name = "add",
                       .infer = nullptr,
                       .cost = cost,
                       .workspace = nullptr,
                       .backward = nullptr,
                       .cases = cases};

}  // namespace spillway
