// Vector clocks: what the host thread and each stream know of each other's work.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace spillway::emulated {

constexpr int kMaxActors = 64;  // the host is 0, streams follow
constexpr int kHost = 0;

struct Clock {
  std::array<uint32_t, kMaxActors> count{};
  void join(const Clock& other) {
    for (int i = 0; i < kMaxActors; ++i) count[i] = std::max(count[i], other.count[i]);
  }
  bool knows(int actor, uint32_t work) const { return count[actor] >= work; }
};

}  // namespace spillway::emulated
