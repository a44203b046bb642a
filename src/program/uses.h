// Internal to lowering: rings of equal slots and the uses that pass through them. A use is one stay
// of some tensor ranges in one slot: fetched from the host if read before written, written back if
// written and needed later. Use u of a ring stands in slot u mod slots, so its first access must
// come after the last access of use u - slots.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "program/ranges.h"
#include "program/sequence.h"

namespace spillway {

// Part of one tensor in a slot: its ranges stand one after the other, each at a multiple of 256
// bytes.
struct Piece {
  RangeSet held;                 // what of the tensor the slot holds
  RangeSet fetch;                // read before written: copied in
  RangeSet written;              // copied out, if needed later
  int32_t last_write = -1;       // item
  std::vector<int64_t> offsets;  // bytes into the slot, by range of `held`

  // Bytes into the slot of element range.begin; `range` is held.
  int64_t offset_of(ElementRange range, int64_t element_bytes) const {
    const int32_t at = held.find(range);
    return offsets[at] + (range.begin - held.ranges()[at].begin) * element_bytes;
  }
};

struct Use {
  std::string ring;
  std::string label;            // for instruction names: "moments@3"
  int32_t micro = 0;            // Instance::micro of its tensors
  int32_t first = 0, last = 0;  // items of the stage
  std::map<TensorId, Piece> pieces;
  int32_t index = 0;  // of the ring, within the stage
  int64_t slot_bytes = 0;
};

struct Ring {
  std::string place;
  int64_t slot_bytes = 0;
  int32_t slots = 1;
  bool has_home = true;
};

// One stage, analysed.
struct StagePlan {
  std::vector<Item> items;
  std::vector<Use> uses;  // by first access
  // Use of each operand of each item, in then out; kNone: not in a ring.
  std::vector<std::vector<int32_t>> in_use, out_use;
};

// How a tensor is stored in a schedule under a placement.
enum class Store : uint8_t { fixed, ring, transient, input };

Store store_of(const Schedule& schedule, const Sequencer& sequencer, const Instance& instance);

// Finds the uses of every stage, their pieces, and what must be fetched and written back.
std::vector<StagePlan> plan_stages(const Schedule& schedule, const Sequencer& sequencer);

// Adds the rings that `stages` need to `rings`: slot sizes, and as many slots as the placement asks
// or as uses overlap, whichever is more.
void size_rings(const Schedule& schedule, const Placement& placement,
                const std::vector<StagePlan>& stages, std::map<std::string, Ring>& rings);

}  // namespace spillway
