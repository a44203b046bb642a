#include "graph/ops/rank_sum.h"

#include "graph/ops/shapes.h"

namespace spillway {
namespace {

Cost cost(const Attrs& attrs, const std::vector<TensorType>& in) {
  const double count = static_cast<double>(in[0].dims.count());
  return {.flops = count * attrs.ranks, .bytes = 4 * count * (attrs.ranks + 2)};
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  struct Shape {
    int64_t count, capacity;
    int32_t ranks, rank, inner;
  };
  for (const Shape& s :
       {Shape{5, 5, 1, 0, 1}, Shape{1, 1, 2, 0, 1}, Shape{7, 9, 2, 1, 2}, Shape{33, 33, 3, 1, 2},
        Shape{129, 200, 5, 4, 2}, Shape{100003, 100004, 4, 2, 2}, Shape{17, 20, 8, 3, 4}}) {
    OpCase c;
    c.label = "c" + std::to_string(s.count) + " rank" + std::to_string(s.rank) + "/" +
              std::to_string(s.ranks) + " inner" + std::to_string(s.inner);
    c.attrs.ranks = s.ranks;
    c.attrs.rank = s.rank;
    c.attrs.inner = s.inner;
    c.in = {f32_of(Dims(s.count))};
    if (s.ranks > 1) c.in.push_back(f32_of(Dims((s.ranks - 1) * s.capacity)));
    c.out = {f32_of(Dims(s.count))};
    c.accumulate = {0};
    c.may_alias = {{0, 0}};
    c.f32_tolerance = 1e-6;
    all.push_back(c);
  }
  return all;
}

}  // namespace

const OpDef rank_sum_def = {.name = "rank_sum",
                            .infer = nullptr,
                            .cost = cost,
                            .workspace = nullptr,
                            .backward = nullptr,
                            .cases = cases};

}  // namespace spillway
