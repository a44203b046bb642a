// The passes of src/program: lower, order, pack, synchronise.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "graph/op.h"
#include "parallel/schedule.h"
#include "program/placement.h"
#include "program/program.h"

namespace spillway {

// One decision that a placement of `train` must hold.
struct PlaceUnit {
  PlaceKey key;
  int64_t bytes = 0;          // of all its tensors on this rank
  bool state = false;         // masters or moments
  bool activation = false;    // saved by the forward pass for the backward pass
  bool recomputable = false;  // an activation, and not an anchor
};
std::vector<PlaceUnit> place_units(const Schedule& train);

// Where a tensor's persistent contents stand between steps, for checkpoints and restores. One for
// each range of the global tensor that this rank holds.
struct Home {
  int32_t tensor = -1;  // in the train schedule's graph
  BufferId buffer = -1;
  int64_t offset = 0;            // bytes into the buffer
  int64_t begin = 0, count = 0;  // elements of the global tensor that this rank holds
  // A second one, on the host: of a parameter on the device that is updated there.
  bool copy = false;
};

struct Lowered {
  ProgramSet set;           // one program a schedule, in order
  std::vector<Home> homes;  // parameters, masters and moments of schedules[0]
  // Host buffers that the caller fills or reads, by "<program>.<tensor>": inputs ("train.tokens",
  // one version a micro-batch), "train.scalars" (in), "train.scalars.out", and outputs of forward
  // programs ("evaluate.losses", "decode.logits"). Beside them "pending_scalars", on the device:
  // the scalars of updates that are still to come.
  std::map<std::string, BufferId> io;
  std::map<std::string, BufferId> kv_caches;  // by tensor name
};

// Lowers schedules that share parameters and KV caches by tensor name; schedules[0] has priority
// for everything named by `placement`. Keys that the placement lacks stay on the device; masters
// and moments of layers that are updated on the host stand there in any case. `rules`:
// for workspace sizes. `staging_bytes`: a host buffer "staging" for checkpoints
// (0: none). Throws Error(internal) where an op's alias does not hold.
Lowered lower(const std::vector<const Schedule*>& schedules, const Placement& placement,
              const WorkspaceRules& rules, int64_t staging_bytes);

// From when to when a program uses a buffer that may share its bytes.
struct Lifetime {
  BufferId buffer = -1;
  InstrId first = 0, last = 0;
};
struct SharedUse {
  std::vector<Segment> segments;
  std::vector<Lifetime> lives;   // by first use
  std::vector<int32_t> life_of;  // by buffer, as far as it goes: index into lives; -1: none yet
  // `buffer` is used by instruction `at`, which is no earlier than those before; nothing if it has
  // bytes of its own.
  void add(BufferId buffer, InstrId at, const std::vector<Buffer>& buffers);
};

// What `lower` makes, but for the instructions, of which only the numbers are left: enough to pack,
// in a fraction of the time. Buffers that may share bytes have no names.
struct Outline {
  std::vector<Buffer> buffers;
  std::vector<SharedUse> programs;
  std::vector<Home> homes;
  std::map<std::string, BufferId> io;
};
Outline outline(const std::vector<const Schedule*>& schedules, const Placement& placement,
                const WorkspaceRules& rules, int64_t staging_bytes);

// Seconds that an instruction takes while nothing else moves.
using InstrSeconds = std::function<double(const Program&, const Instr&)>;

// Cuts copies between the tiers into pieces of about `most_bytes`, eight at most, and puts them in
// another order, so that each lane takes first what is needed first; all else keeps its order, and
// what conflicts over bytes keeps its own. Before `synchronise`; the layout stays the same.
void order_copies(ProgramSet& set, int64_t most_bytes, const InstrSeconds& seconds);

// What this rank writes of the state in `home` (an index into `homes`): `count` elements of the
// global tensor from `begin` on, `offset` bytes into the home's buffer; of a replicated tensor each
// element is one rank's. Vocabulary padding, and bf16 parameters that have a master, are not saved.
struct SavedSlice {
  int32_t home = 0;
  int64_t begin = 0, count = 0;
  int64_t offset = 0;
};
std::vector<SavedSlice> saved_slices(const Schedule& train, const std::vector<Home>& homes);

// Adds the program "save" to a set whose schedules[0] is `train` and that has a buffer "staging".
// It gives the bytes of saved_slices, in order, to the io lane's file.
// - `copied`: "staging" grows to hold them all. The states are copied there and saved from there: a
//   step that follows waits for the copies alone, before its first update.
// - else the states are read where they are, those of the device through "staging", and the next
//   update waits for the io lane.
void add_save_program(Lowered& lowered, const Schedule& train, bool copied);
int64_t saved_bytes(const Schedule& train, const std::vector<Home>& homes);

// Offsets: persistent, kept and ring buffers one after the other, then buffers that may share
// bytes, packed by lifetime within each program.
ArenaLayout pack(const ProgramSet& set);
ArenaLayout pack(const Outline& outline);  // the same layout as of what `lower` makes

// Writes waits and entry_waits of every instruction: what the hazards over bytes need, no others.
void synchronise(ProgramSet& set, const ArenaLayout& layout);

uint64_t program_hash(const ProgramSet& set, const ArenaLayout& layout);

}  // namespace spillway
