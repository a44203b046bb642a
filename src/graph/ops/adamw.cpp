#include "graph/ops/adamw.h"

#include "graph/ops/shapes.h"

namespace spillway {
namespace {

Cost cost(const Attrs&, const std::vector<TensorType>& in) {
  const double count = static_cast<double>(in[0].dims.count());
  return {.flops = 15 * count, .bytes = count * (4 * 4 + 3 * 4 + 2)};
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (int64_t n : {1, 5, 17, 33, 129, 4099, 100003})
    for (bool bf16 : {false, true})
      for (float decay : {0.0f, 0.1f}) {
        OpCase c;
        c.label =
            "c" + std::to_string(n) + (bf16 ? " bf16 parameter" : "") + (decay > 0 ? " decay" : "");
        c.attrs.eps = 1e-8f;
        c.attrs.weight_decay = decay;
        const TensorType f = f32_of(Dims(n));
        c.in = {f, scalars_type(), f, f, f};
        c.out = {f, f, f};
        c.in_place = {{0, 2}, {1, 3}, {2, 4}};
        if (bf16) c.out.push_back({Dtype::bf16, Dims(n)});
        c.f32_tolerance = 1e-6;
        c.bf16_tolerance = 5e-3;
        all.push_back(c);
      }
  return all;
}

}  // namespace

const OpDef adamw_def = {.name = "adamw",
                         .infer = nullptr,
                         .cost = cost,
                         .workspace = nullptr,
                         .backward = nullptr,
                         .cases = cases};

}  // namespace spillway
