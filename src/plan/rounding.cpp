#include "plan/rounding.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

namespace spillway {
namespace {

constexpr double kNothing = 1e-6;  // part of the layers

// What is owed to each choice so far; the one that is owed most comes next.
template <size_t N>
class Debt {
 public:
  explicit Debt(double phase) { owed_[N - 1] = phase; }  // the last choice comes this much earlier
  size_t next(const std::array<double, N>& fractions) {
    for (size_t i = 0; i < N; ++i) owed_[i] += fractions[i];
    size_t best = 0;
    for (size_t i = 1; i < N; ++i)
      if (fractions[i] > kNothing && (fractions[best] <= kNothing || owed_[i] > owed_[best]))
        best = i;
    owed_[best] -= 1;
    return best;
  }

 private:
  std::array<double, N> owed_ = {};
};

}  // namespace

Candidate rounded(const StepModel& model, const BoundLp& lp, const std::vector<double>& columns,
                  const RoundingAid& aid) {
  Candidate result;
  result.schedule = model.choice;
  const auto value = [&](int32_t column) { return column < 0 ? 0.0 : columns[column]; };
  std::vector<std::string> names;
  for (const BucketUnit& unit : model.units)
    if (std::find(names.begin(), names.end(), unit.name) == names.end()) names.push_back(unit.name);
  const int32_t blocks = model.buckets - 2;

  // Layers of each bucket, and where they update.
  std::map<int32_t, int32_t> bucket_of;  // by layer
  for (const BucketUnit& unit : model.units)
    for (const PlaceKey& key : unit.keys) bucket_of[key.second] = unit.bucket;
  // The device's positions and the host's are two decisions, so that one does not disturb the
  // other.
  Debt<2> rotation(0.5), host(0.25);
  for (const auto& [layer, bucket] : bucket_of) {
    const double rotated = value(lp.share[index_of(UpdatePosition::rotated)][bucket]);
    const double on_host = value(lp.share[index_of(UpdatePosition::host)][bucket]);
    const double both = value(lp.share[index_of(UpdatePosition::host_rotated)][bucket]);
    const bool interior = bucket >= 1 && bucket <= blocks;
    const auto chosen = [&](Debt<2>& debt, double part) {
      return interior ? debt.next({1 - part, part}) == 1 : part >= 0.5;
    };
    const double there = on_host + both;
    const bool moves = there > 0 && chosen(host, there);
    const double rest = moves ? both / there : there < 1 ? rotated / (1 - there) : 0;
    const bool rotates = chosen(rotation, std::clamp(rest, 0.0, 1.0));
    if (!rotates && !moves) continue;
    result.schedule.update.resize(bucket_of.rbegin()->first + 1, UpdatePosition::end);
    result.schedule.update[layer] = !moves    ? UpdatePosition::rotated
                                    : rotates ? UpdatePosition::host_rotated
                                              : UpdatePosition::host;
  }

  for (size_t n = 0; n < names.size(); ++n) {
    Pool pool = Pool::activations;
    Debt<3> debt(static_cast<double>(n) / static_cast<double>(names.size()) - 0.5);
    for (size_t u = 0; u < model.units.size(); ++u) {
      const BucketUnit& unit = model.units[u];
      if (unit.name != names[n]) continue;
      pool = unit.pool;
      const UnitColumns& c = lp.units[u];
      std::array<double, 3> fractions = {0, value(c.recompute), 0};
      for (int p = 0; p < kPositions; ++p) {
        fractions[0] += value(c.device[p]);
        fractions[2] += value(c.host[p]);
      }
      if (pool == Pool::state)  // of what is not updated on the host
        if (const double left = fractions[0] + fractions[2]; left > kNothing && left < 1 - kNothing)
          fractions = {fractions[0] / left, 0, fractions[2] / left};
      constexpr Where kChoices[] = {Where::device, Where::recompute, Where::host};
      for (const PlaceKey& key : unit.keys) {
        if (pool == Pool::state && result.schedule.updates_on_host(key.second)) {
          result.placement.where[key] = Where::host;
          continue;
        }
        const bool interior = unit.bucket >= 1 && unit.bucket <= blocks;
        const size_t choice =
            interior ? debt.next(fractions)
                     : std::max_element(fractions.begin(), fractions.end()) - fractions.begin();
        result.placement.where[key] = kChoices[choice];
      }
    }
    result.placement.slots[names[n]] = aid.slots_of(pool, model.choice.group);
  }
  return result;
}

}  // namespace spillway
