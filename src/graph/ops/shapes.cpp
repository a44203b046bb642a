#include "graph/ops/shapes.h"

#include "base/error.h"

namespace spillway {

void expect(bool ok, std::string_view op, const std::vector<TensorType>& in,
            std::string_view what) {
  if (ok) return;
  std::string operands;
  for (const TensorType& t : in) {
    operands += fmt::format(" {}[", name_of(t.dtype));
    for (int i = 0; i < t.dims.rank; ++i)
      operands += fmt::format("{}{}", i == 0 ? "" : ",", t.dims[i]);
    operands += "]";
  }
  internal_error("{}: {}; operands{}", op, what, operands);
}

int64_t bytes_of(const std::vector<TensorType>& types) {
  int64_t sum = 0;
  for (const TensorType& t : types) sum += bytes_of(t);
  return sum;
}

TensorType f32_of(Dims dims) { return {Dtype::f32, dims}; }
TensorType i32_of(Dims dims) { return {Dtype::i32, dims}; }
TensorType scalars_type() { return {Dtype::u8, Dims(sizeof(StepScalars))}; }

void add_both(std::vector<OpCase>& cases, const std::function<OpCase(Dtype)>& make) {
  for (Dtype t : {Dtype::f32, Dtype::bf16}) {
    OpCase c = make(t);
    c.label += std::string(" ") + name_of(t);
    cases.push_back(std::move(c));
  }
}

}  // namespace spillway
