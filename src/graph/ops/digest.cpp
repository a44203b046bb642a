#include "graph/ops/digest.h"

#include "graph/ops/shapes.h"

namespace spillway {
namespace {

Cost cost(const Attrs&, const std::vector<TensorType>& in) {
  return {.flops = 0, .bytes = static_cast<double>(bytes_of(in))};
}

int64_t workspace(const Attrs&, const std::vector<TensorType>&, const WorkspaceRules&) {
  return kDigestParts * int64_t{sizeof(uint64_t)};
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const Dims& d : {Dims(1), Dims(7), Dims(511), Dims(513), Dims(33, 65), Dims(100003)}) {
    OpCase c;
    c.label = "n" + std::to_string(d.count());
    c.in = {f32_of(d)};
    c.out = {{Dtype::f64, Dims(1)}};
    c.f32_tolerance = 0;
    all.push_back(c);
  }
  return all;
}

}  // namespace

const OpDef digest_def = {.name = "digest",
                          .infer = nullptr,
                          .cost = cost,
                          .workspace = workspace,
                          .backward = nullptr,
                          .cases = cases};

}  // namespace spillway
