// Internal to lowering: the nodes of one stage in issue order, with recomputation inserted and
// aliases resolved. A tensor may exist twice in a stage: as the forward pass made it (instance 0)
// and as the backward pass recomputed it (instance 1).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "parallel/schedule.h"
#include "program/placement.h"

namespace spillway {

enum class StepPhase : uint8_t { forward, backward, update };

// How a tensor is stored in a schedule under a placement.
enum class Store : uint8_t { fixed, ring, transient, input };

// What one micro-batch of a group makes is another instance for each.
struct Instance {
  TensorId tensor = kNone;
  int32_t which = 0;
  int32_t micro = 0;  // of the group; 0 for what is not of one micro-batch
  friend auto operator<=>(const Instance&, const Instance&) = default;
};

// Every instance of a schedule by a number from 0 on, below `size()`.
class InstanceIndex {
 public:
  explicit InstanceIndex(const Schedule& schedule)
      : group_(static_cast<size_t>(schedule.choice.group)),
        size_(schedule.graph.tensors.size() * 2 * group_) {}
  size_t size() const { return size_; }
  size_t operator()(const Instance& i) const {
    return (static_cast<size_t>(i.tensor) * 2 + static_cast<size_t>(i.which)) * group_ +
           static_cast<size_t>(i.micro);
  }

 private:
  size_t group_, size_;
};

struct Item {
  const Node* node = nullptr;  // of the graph, or of Sequence::recomputed
  // Its operands in Sequence::operands, the node's inputs and then its outputs.
  int32_t first = 0, inputs = 0, outputs = 0;
  StepPhase phase = StepPhase::forward;
  int32_t micro = 0;        // of the group
  bool accumulate = false;  // of this instruction, decided by the stage
};

struct Sequence {
  std::vector<Item> items;
  std::vector<Instance> operands;  // storage of each operand of each item, aliases resolved
  // Forward nodes as the backward pass runs them.
  std::vector<std::unique_ptr<Node>> recomputed;

  std::span<const Instance> in(const Item& item) const {
    return {operands.data() + item.first, static_cast<size_t>(item.inputs)};
  }
  std::span<const Instance> out(const Item& item) const {
    return {operands.data() + item.first + item.inputs, static_cast<size_t>(item.outputs)};
  }
};

class Sequencer {
 public:
  Sequencer(const Schedule& schedule, const Placement& placement);

  Sequence build(const Stage& stage) const;

  Store store(const Instance& i) const { return store_[i.which][i.tensor]; }
  // Written by the forward pass and read by the backward pass.
  bool saved(TensorId t) const { return saved_[t]; }
  Where where(TensorId t) const { return where_[t]; }
  // The micro-batch that a tensor's contents belong to, as Instance::micro counts.
  int32_t micro_of(TensorId t, int32_t micro) const;

 private:
  Store store_of(TensorId t, int32_t which) const;
  // `aliasing`: items whose nodes have aliases.
  void resolve_aliases(Sequence& sequence, const std::vector<int32_t>& aliasing) const;

  const Schedule& schedule_;
  std::vector<NodeId> producer_;  // forward node of each tensor, or kNone
  std::vector<Where> where_;
  std::vector<bool> saved_;
  std::vector<Store> store_[2];  // by Instance::which and tensor
};

}  // namespace spillway
