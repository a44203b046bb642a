#include <algorithm>

#include "base/error.h"
#include "program/stages.h"

namespace spillway {
namespace {

constexpr int64_t kF32 = size_of(Dtype::f32);
constexpr int64_t kWorthAWrite = int64_t{4} << 20;  // bytes of the copy that one instruction saves

ProgramOperand elements(BufferId buffer, int64_t offset, int64_t count) {
  return {.buffer = buffer, .offset = offset, .dtype = Dtype::f32, .dims = Dims(count)};
}

void add_instr(Program& program, InstrKind kind, Lane lane, std::string name, ProgramOperand in) {
  Instr& i = program.instrs.emplace_back();
  i.kind = kind;
  i.lane = lane;
  i.name = std::move(name);
  i.access.push_back({in.buffer, in.version, in.offset, in.bytes(), false});
  i.in.push_back(std::move(in));
}

}  // namespace

std::vector<SavedSlice> saved_slices(const Schedule& train, const std::vector<Home>& homes) {
  const Graph& g = train.graph;
  std::vector<const Param*> owner_of(g.tensors.size(), nullptr);
  for (const Param& p : g.params)
    for (const TensorId id : {p.home(), p.master, p.moment1, p.moment2})
      if (id != kNone) owner_of[id] = &p;
  std::vector<SavedSlice> slices;
  slices.reserve(homes.size());
  for (size_t h = 0; h < homes.size(); ++h) {
    const Home& home = homes[h];
    const Param& p = *owner_of[home.tensor];
    if (home.copy || (home.tensor == p.home() && p.master != kNone))
      continue;  // stands elsewhere; is the master's rounding
    const Tensor& t = g.tensors[home.tensor];
    if (t.dtype != Dtype::f32)
      internal_error("state '{}' is not kept in f32, and no master is", t.name);
    const int64_t total = g.tensors[p.param].dims.count();
    const bool sharded = home.tensor != p.param && !p.own.empty();
    const Range own = sharded ? Range{home.begin, home.count}
                              : shard_of(total, train.spec.rank, train.spec.ranks);
    const int64_t live = p.live.count();
    const int64_t begin = std::min(own.begin, live);
    const int64_t count = std::max<int64_t>(0, std::min(own.begin + own.count, live) - begin);
    slices.push_back(
        {static_cast<int32_t>(h), begin, count, home.offset + (begin - home.begin) * kF32});
  }
  return slices;
}

int64_t saved_bytes(const Schedule& train, const std::vector<Home>& homes) {
  int64_t bytes = 0;
  for (const SavedSlice& slice : saved_slices(train, homes)) bytes += slice.count * kF32;
  return bytes;
}

void add_save_program(Lowered& lowered, const Schedule& train, bool copied) {
  ProgramSet& set = lowered.set;
  const BufferId staging = lowered.io.at("staging");
  Program save;
  save.name = "save";
  const auto save_copied = [&](int64_t begin, int64_t end, const std::string& last) {
    add_instr(save, InstrKind::save, Lane::io, "save up to " + last,
              elements(staging, begin, (end - begin) / kF32));
  };
  save.instrs.reserve(2 * lowered.homes.size());
  int64_t at = 0, unsaved = 0;  // bytes of the copy made, and from where on it is not saved
  std::string last;
  for (const SavedSlice& slice : saved_slices(train, lowered.homes)) {
    if (slice.count == 0) continue;
    const Home& home = lowered.homes[slice.home];
    const std::string& name = train.graph.tensors[home.tensor].name;
    const bool on_device = set.buffers[home.buffer].tier == Tier::device;
    ProgramOperand source = elements(home.buffer, slice.offset, slice.count);
    if (copied) {
      ProgramOperand copy = elements(staging, at, slice.count);
      at += copy.bytes();
      add_instr(save, InstrKind::copy, on_device ? Lane::d2h : Lane::cpu, "snapshot " + name,
                std::move(source));
      Instr& i = save.instrs.back();
      i.access.push_back({copy.buffer, {}, copy.offset, copy.bytes(), true});
      i.out.push_back(std::move(copy));
      last = name;
      if (at - unsaved < kWorthAWrite) continue;
      save_copied(unsaved, at, last);
      unsaved = at;
      continue;
    }
    add_instr(save, InstrKind::save, Lane::io, "save " + name, std::move(source));
    if (!on_device) continue;
    Instr& i = save.instrs.back();
    i.workspace = {.buffer = staging, .dtype = Dtype::u8, .dims = Dims(set.buffers[staging].bytes)};
    i.access.push_back({staging, {}, 0, i.workspace.bytes(), true});
  }
  if (unsaved < at) save_copied(unsaved, at, last);
  if (copied) {
    Buffer& buffer = set.buffers[staging];
    buffer.name = buffer.place = "snapshot";
    buffer.bytes = std::max<int64_t>(at, 1);
  }
  save.segments.push_back({save.name, 1, 0, static_cast<InstrId>(save.instrs.size())});
  set.programs.push_back(std::move(save));
}

}  // namespace spillway
