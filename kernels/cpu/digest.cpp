// digest: integer sums that wrap, cut into contiguous parts; bound by reading the tensor.
#include "graph/ops/digest.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"

namespace spillway::cpu {
namespace {

uint64_t part_of(const uint32_t* bits, int64_t begin, int64_t end) {
  uint64_t sum = 0;
  for (int64_t i = begin; i < end; ++i) {
    uint64_t z = bits[i] + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    sum += z ^ (z >> 31);
  }
  return sum;
}

}  // namespace

void digest(const KernelArgs& args) {
  constexpr int64_t kSmallest = 4096;  // elements of a part
  const int64_t count = args.in[0].dims.count();
  const int64_t parts = std::min<int64_t>(kDigestParts, ceil_div(count, kSmallest));
  const uint32_t* bits = args.in[0].as<uint32_t>();
  uint64_t* sums = static_cast<uint64_t*>(args.workspace);
  for_quanta(parts, [=](int64_t part) {
    sums[part] = part_of(bits, part * count / parts, (part + 1) * count / parts);
  });
  uint64_t sum = 0;
  for (int64_t part = 0; part < parts; ++part) sum += sums[part];
  args.out[0].as<double>()[0] = static_cast<double>(sum >> 11);
}

}  // namespace spillway::cpu
