// Stays of tensors in slots of rings, derived from a schedule alone: what a step would copy if
// everything that has a home on the host lived there. The verifier's own reading of the schedule.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "parallel/schedule.h"

namespace spillway::verify_detail {

// Elements of a tensor as sorted spans [begin, end) that neither overlap nor touch.
using Spans = std::vector<std::pair<int64_t, int64_t>>;
Spans united(const Spans& a, const Spans& b);
Spans without(const Spans& a, const Spans& b);
int64_t elements(const Spans& spans);

enum class Work : uint8_t { forward, backward, update };
Work work_of(Pass pass);  // sums over ranks go with the backward pass

// What a slot spends on so many bytes that stand together.
int64_t aligned(int64_t bytes);

// What of one tensor stays in a slot.
struct Part {
  Spans held, fetched, returned;
  int32_t last_write = -1;  // visit
};

// From the first to the last visit that touches the slot.
struct Stay {
  std::string ring;
  int32_t micro = 0;
  int32_t first = 0, last = 0;  // visits of the stage
  std::map<TensorId, Part> parts;
  int64_t slot_bytes = 0;
};

// How a schedule stores what its nodes touch.
class Storage {
 public:
  explicit Storage(const Schedule& schedule);

  // The tensor that takes over the bytes of `t`, which has them from its birth on; itself if none.
  TensorId root(TensorId t) const { return root_[t]; }
  // Written by the forward pass and read by the backward pass.
  bool saved(TensorId t) const { return saved_[t]; }
  // The index that separates what micro-batches of a group make.
  int32_t micro(TensorId t, int32_t of_group) const;
  // Has a home that a plan chooses, or exists only in slots; else a buffer of its own.
  bool chosen(TensorId t) const;
  bool homeless(TensorId t) const;
  bool transient(TensorId t) const;

 private:
  const Schedule& schedule_;
  std::vector<TensorId> root_;
  std::vector<bool> saved_;
};

// Stays of each stage, in order of their first visits, if all that can be streamed is.
std::vector<std::vector<Stay>> stays_of(const Schedule& schedule, const Storage& storage);

}  // namespace spillway::verify_detail
