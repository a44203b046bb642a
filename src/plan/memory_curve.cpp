#include "plan/memory_curve.h"

#include <algorithm>

namespace spillway {

std::vector<MemorySample> memory_curve(const ProgramSet& set, const ArenaLayout& layout,
                                       int program_index, const Simulation& simulation, Tier tier,
                                       size_t samples) {
  const Program& program = set.programs[program_index];
  std::map<std::string, int64_t> constant;
  for (size_t b = 0; b < set.buffers.size(); ++b) {
    const Buffer& buffer = set.buffers[b];
    if (buffer.tier == tier && buffer.scope != Scope::iteration)
      constant[buffer.place] += layout.version_stride[b] * buffer.versions;
  }
  // First and last access of iteration buffers, in each iteration they are touched in.
  struct Life {
    double begin = 0, end = 0;
  };
  std::map<double, std::map<std::string, int64_t>> change;
  std::map<BufferId, Life> alive;
  const auto retire = [&](BufferId id, const Life& life) {
    const Buffer& buffer = set.buffers[id];
    const int64_t bytes = layout.version_stride[id];
    change[life.begin][buffer.place] += bytes;
    change[life.end][buffer.place] -= bytes;
  };
  InstrId previous = -1;
  for (const SimulatedInstr& s : simulation.timeline) {
    if (s.instr <= previous) {  // the next iteration
      for (const auto& [id, life] : alive) retire(id, life);
      alive.clear();
    }
    previous = s.instr;
    for (const Access& a : program.instrs[s.instr].access) {
      const Buffer& buffer = set.buffers[a.buffer];
      if (buffer.tier != tier || buffer.scope != Scope::iteration) continue;
      const auto [it, fresh] = alive.try_emplace(a.buffer, Life{s.begin, s.end});
      if (!fresh) {
        it->second.begin = std::min(it->second.begin, s.begin);
        it->second.end = std::max(it->second.end, s.end);
      }
    }
  }
  for (const auto& [id, life] : alive) retire(id, life);

  std::vector<MemorySample> curve;
  MemorySample now;
  now.by_class = constant;
  curve.push_back(now);
  for (const auto& [seconds, deltas] : change) {
    now.seconds = seconds;
    for (const auto& [place, bytes] : deltas) now.by_class[place] += bytes;
    curve.push_back(now);
  }
  const size_t stride = curve.size() / std::max<size_t>(1, samples) + 1;
  std::vector<MemorySample> thinned;
  for (size_t i = 0; i < curve.size(); ++i)
    if (i % stride == 0 || i + 1 == curve.size()) thinned.push_back(curve[i]);
  return thinned;
}

}  // namespace spillway
