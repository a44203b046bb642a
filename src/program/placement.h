// A placement: where every tensor lives and how it gets to the device. The planner's answer, the
// lowering's input, and (as JSON) the plan file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace spillway {

enum class Where : uint8_t { device, host, recompute };

// Unit of decision: a place name ("qkv", "moments", "master", "gradients", "parameters") and layer
// (0 embedding, 1…L blocks, L + 1 head).
using PlaceKey = std::pair<std::string, int32_t>;

struct Placement {
  std::map<PlaceKey, Where> where;       // every key of the schedule, none left out
  std::map<std::string, int32_t> slots;  // ring depth by place name, ≥ 1; default 2
  int32_t slots_of(const std::string& place) const {
    auto it = slots.find(place);
    return it == slots.end() ? 2 : it->second;
  }
};

}  // namespace spillway
