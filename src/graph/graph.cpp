#include "graph/graph.h"

#include <algorithm>

namespace spillway {

int64_t block_elements(int64_t count) { return std::clamp<int64_t>(ceil_div(count, 64), 1, 65536); }

Range shard_of(int64_t total, int rank, int ranks) {
  const int64_t block = block_elements(total);
  const int64_t blocks_each = ceil_div(ceil_div(total, block), ranks);
  const int64_t begin = std::min(total, rank * blocks_each * block);
  const int64_t end = std::min(total, (rank + 1) * blocks_each * block);
  return {begin, end - begin};
}

int64_t shard_capacity(int64_t total, int ranks) { return shard_of(total, 0, ranks).count; }

}  // namespace spillway
