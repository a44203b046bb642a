#include <algorithm>
#include <tuple>

#include "plan/search.h"

namespace spillway {
namespace {

struct Found {
  std::vector<Where> choice;  // by group
  Candidate candidate;
  Peaks peaks;
};

bool better(const Peaks& a, const Peaks& b) {
  return std::tie(a.device, a.host) < std::tie(b.device, b.host);
}

class Descent {
 public:
  explicit Descent(const SearchSpace& space) : space_(space) {
    start_.placement = space.base;
    // A ring is never smaller with more slots; what must overlap gets its slots all the same.
    for (const auto& [key, where] : space.base.where) start_.placement.slots[key.first] = 1;
    start_.placement.slots["comm_staging"] = 1;
    start_.schedule = space.choice;
    if (space.several_ranks) start_.schedule.reduce_delay = start_.schedule.gather_ahead = 0;
    for (const Group& group : space.groups) largest_ = std::max(largest_, group.bytes);
  }

  Found from(std::initializer_list<Where> preferences) const {
    std::vector<Where> choice;
    for (const Group& group : space_.groups)
      choice.push_back(*std::find_first_of(preferences.begin(), preferences.end(),
                                           group.choices.begin(), group.choices.end()));
    return measure(std::move(choice));
  }

  // What outlives a micro-batch takes least as it starts in a large model: streamed.
  Found descend(Found best, bool every_kind) const {
    const size_t n = space_.groups.size();
    size_t unchanged = 0;
    for (size_t step = 0; step < kPasses * n && unchanged < n; ++step, ++unchanged) {
      const size_t g = step % n;
      const Group& group = space_.groups[g];
      if (group.bytes < largest_ / kNegligible) continue;
      if (!every_kind && group.kind != UnitKind::activation) continue;
      const Where before = best.choice[g];
      for (const Where where : group.choices) {
        if (where == before) continue;
        std::vector<Where> choice = best.choice;
        choice[g] = where;
        Found found = measure(std::move(choice));
        if (!better(found.peaks, best.peaks)) continue;
        best = std::move(found);
        unchanged = 0;
      }
    }
    return best;
  }

 private:
  static constexpr size_t kPasses = 3;
  static constexpr int64_t kNegligible = 2000;

  Found measure(std::vector<Where> choice) const {
    Found found{std::move(choice), start_, {}};
    for (size_t g = 0; g < space_.groups.size(); ++g)
      for (const PlaceUnit& unit : space_.groups[g].units)
        found.candidate.placement.where[unit.key] = found.choice[g];
    found.peaks = peaks_of(*space_.input, found.candidate);
    return found;
  }

  const SearchSpace& space_;
  Candidate start_;
  int64_t largest_ = 0;
};

// Nodes: models for which two descents are cheap, and for which one over activations is.
constexpr int64_t kSmallModel = 1500, kMiddleModel = 8000;

}  // namespace

Candidate least_device_memory(const SearchSpace& space) {
  const Descent descent(space);
  Found streamed = descent.from({Where::host, Where::recompute, Where::device});
  Found recomputed = descent.from({Where::recompute, Where::host, Where::device});
  if (better(streamed.peaks, recomputed.peaks)) std::swap(streamed, recomputed);
  const bool small = space.nodes <= kSmallModel;
  Found best = std::move(recomputed);
  if (space.nodes <= kMiddleModel) best = descent.descend(std::move(best), small);
  if (small) {
    Found other = descent.descend(std::move(streamed), small);
    if (better(other.peaks, best.peaks)) best = std::move(other);
  }
  return best.candidate;
}

}  // namespace spillway
