// Parameters and optimizer state on their way in and out of the arenas.
#pragma once

#include <functional>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "graph/graph.h"
#include "parallel/schedule.h"
#include "program/stages.h"
#include "runtime/executor.h"

namespace spillway {

// Fills every parameter, master and moment of this rank: parameters drawn by their Init from Philox
// keyed by (seed, name, element index), moments zero, vocabulary padding zero.
void initialise_state(const Schedule& train, const std::vector<Home>& homes, Executor& executor,
                      uint64_t seed);

// … or from a checkpoint. Throws Error(bad_input) if it holds another model.
void restore_state(const Schedule& train, const std::vector<Home>& homes, Executor& executor,
                   const CheckpointReader& reader);

// What this rank writes of a checkpoint, in the order of saved_slices.
std::vector<TensorSlice> checkpoint_slices(const Schedule& train, const std::vector<Home>& homes);

}  // namespace spillway
