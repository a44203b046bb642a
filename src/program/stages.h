// The three passes of src/program: lower, pack, synchronise.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/op.h"
#include "parallel/schedule.h"
#include "program/placement.h"
#include "program/program.h"

namespace spillway {

// A schedule whose names are unknown to the lowering's caller: every key it must place.
struct PlaceUnit {
  PlaceKey key;
  int64_t bytes = 0;         // of all its tensors on this rank
  bool recomputable = false;  // an activation, and not an anchor
  bool activation = false;
};
std::vector<PlaceUnit> place_units(const Schedule& train);

// Where a tensor's persistent contents stand between steps, for checkpoints and restores.
struct Home {
  int32_t tensor = -1;  // in the train schedule's graph
  BufferId buffer = -1;
  int64_t offset = 0;               // bytes into the buffer
  int64_t begin = 0, count = 0;  // elements of the global tensor that this rank holds
};

struct Lowered {
  ProgramSet set;
  std::vector<Home> homes;          // parameters, masters, moments
  std::map<std::string, BufferId> io;  // "scalars_host", "tokens_host", "targets_host",
                                       // "order_host", "logits_host", "kv_cache", "staging_host"
};

// Lowers the train schedule and any further schedules (evaluate, prefill, decode), which share its
// parameters by tensor name. `threads`: compute threads, for workspace sizes.
// Throws Error(internal) where an op's alias does not hold.
Lowered lower(const Schedule& train, const std::vector<Schedule>& others,
              const Placement& placement, int threads);

// Offsets: persistent, kept and ring buffers one after the other, then buffers that may share bytes,
// packed by lifetime within each program.
ArenaLayout pack(const ProgramSet& set);

// Writes waits and entry_waits of every instruction: what the hazards over bytes need, no others.
void synchronise(ProgramSet& set, const ArenaLayout& layout);

uint64_t program_hash(const ProgramSet& set, const ArenaLayout& layout);

}  // namespace spillway
