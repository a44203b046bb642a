// Internal to lowering: the nodes of one stage in issue order, with recomputation inserted and
// aliases resolved. A tensor may exist twice in a stage: as the forward pass made it (instance 0)
// and as the backward pass recomputed it (instance 1).
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/schedule.h"
#include "program/placement.h"

namespace spillway {

enum class Phase : uint8_t { forward, backward, update };

// What one micro-batch of a group makes is another instance for each.
struct Instance {
  TensorId tensor = kNone;
  int32_t which = 0;
  int32_t micro = 0;  // of the group; 0 for what is not of one micro-batch
  friend auto operator<=>(const Instance&, const Instance&) = default;
};

struct Item {
  Node node;
  std::vector<Instance> in, out;  // storage of each operand, aliases resolved
  Phase phase = Phase::forward;
  int32_t micro = 0;        // of the group
  bool accumulate = false;  // of this instruction, decided by the stage
};

class Sequencer {
 public:
  Sequencer(const Schedule& schedule, const Placement& placement);

  std::vector<Item> build(const Stage& stage) const;

  // Written by the forward pass and read by the backward pass.
  bool saved(TensorId t) const { return saved_[t]; }
  Where where(TensorId t) const;
  // The micro-batch that a tensor's contents belong to, as Instance::micro counts.
  int32_t micro_of(TensorId t, int32_t micro) const;

 private:
  const Schedule& schedule_;
  const Placement& placement_;
  std::vector<NodeId> producer_;  // forward node of each tensor, or kNone
  std::vector<bool> saved_;
};

}  // namespace spillway
