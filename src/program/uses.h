// Internal to lowering: rings of equal slots and the uses that pass through them. A use is one stay
// of some tensor ranges in one slot: fetched from the host if read before written, written back if
// written and needed later. Use u of a ring stands in slot u mod slots, so its first access must
// come after the last access of use u - slots.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "program/ranges.h"
#include "program/sequence.h"

namespace spillway {

// Part of one tensor in a slot: its ranges stand one after the other, each at a multiple of 256
// bytes.
struct SlotPiece {
  RangeSet held;            // what of the tensor the slot holds
  RangeSet fetch;           // read before written: copied in
  RangeSet written;         // copied out, if needed later
  int32_t last_write = -1;  // item
  int64_t offset = 0;       // bytes into the slot

  // Bytes into the slot of element range.begin; `range` is held.
  int64_t offset_of(ElementRange range, int64_t element_bytes) const {
    int64_t at = offset;
    for (const ElementRange& r : held.ranges()) {
      if (range.begin < r.end) return at + (range.begin - r.begin) * element_bytes;
      at = round_up(at + r.count() * element_bytes, 256);
    }
    return at;
  }
};

struct Use {
  int32_t ring = 0;
  int32_t micro = 0;                                   // Instance::micro of its tensors
  int32_t first = 0, last = 0;                         // items of the stage
  std::vector<std::pair<TensorId, SlotPiece>> pieces;  // by ascending tensor
  int32_t index = 0;                                   // of the ring, within the stage
  int64_t slot_bytes = 0;

  SlotPiece* find(TensorId tensor);  // nullptr: not in it
  const SlotPiece& piece(TensorId tensor) const { return *const_cast<Use*>(this)->find(tensor); }
};

struct Ring {
  std::string name;
  std::string place;
  int64_t slot_bytes = 0;
  int32_t slots = 1;
  bool has_home = true;
};

// The rings of all schedules, numbered as they are found.
struct Rings {
  std::vector<Ring> all;
  std::map<std::string, int32_t> by_name;
  int32_t id_of(const std::string& name);  // a new one if there is none
};

// What an update on the host does to a tensor's home, or to what stands for it there.
struct HostTouch {
  int32_t item = 0;
  TensorId tensor = kNone;
  RangeSet range;
  bool write = false;
};

// One stage, analysed.
struct StagePlan : Sequence {
  std::vector<Use> uses;           // by first access
  std::vector<int32_t> use_of;     // of each of `operands`; kNone: not in a ring
  std::vector<HostTouch> on_host;  // by item
};

// Finds the uses of every stage, their pieces, and what must be fetched and written back.
std::vector<StagePlan> plan_stages(const Schedule& schedule, const Sequencer& sequencer,
                                   Rings& rings);

// Gives `rings` what `stages` need: slot sizes, and as many slots as the placement asks or as uses
// overlap, whichever is more.
void size_rings(const Schedule& schedule, const Placement& placement,
                const std::vector<StagePlan>& stages, Rings& rings);

// For each item, the uses to fetch before it, in order of need. A fetch is issued once its slot
// is free, what it fetches has been written back, and the need is not too far off: on an in-order
// lane an early copy would hold up later ones that are needed sooner.
std::vector<std::vector<int32_t>> fetch_positions(const Schedule& schedule, const Rings& rings,
                                                  const StagePlan& plan);

}  // namespace spillway
