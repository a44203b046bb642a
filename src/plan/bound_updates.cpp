#include "plan/bound_updates.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>

namespace spillway {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kHost = index_of(UpdatePosition::host);
constexpr int kHostRotated = index_of(UpdatePosition::host_rotated);

using Terms = LpTerms;

class HostRows {
 public:
  HostRows(const StepModel& model, double byte_scale, double time_scale, double cost,
           BoundLp& program)
      : model_(model),
        byte_scale_(byte_scale),
        time_scale_(time_scale),
        cost_(cost),
        program_(program),
        intervals_(static_cast<int32_t>(model.intervals.size())) {}

  HostUpdates run() {
    for (const BucketUpdate& update : model_.updates) {
      all_gradients_ += update.gradient_bytes;
      all_parameters_ += update.parameter_bytes;
      all_cpu_ += update.cpu_bytes;
      last_needed_ = std::max(last_needed_, update.needed);
    }
    const std::vector<int32_t>& shares = program_.share[kHost];
    if (std::all_of(shares.begin(), shares.end(), [](int32_t c) { return c < 0; })) return {};
    const auto gradients = [&](int32_t b, int position) {
      return device_terms(Pool::gradients, b, position, model_.updates[b].gradient_bytes);
    };
    const auto parameters = [&](int32_t b, int position) {
      return device_terms(Pool::parameters, b, position, model_.updates[b].parameter_bytes);
    };
    const auto work = [&](int32_t b, int position) {
      const int32_t share = program_.share[position][b];
      return share < 0 ? Terms{} : Terms{{share, model_.updates[b].cpu_bytes}};
    };
    int32_t first_complete = model_.update_begin;
    for (const BucketUpdate& update : model_.updates)
      if (update.complete >= 0) first_complete = std::min(first_complete, update.complete);
    HostUpdates result;
    result.out = columns(first_complete, all_gradients_, cost_);
    result.in = columns(model_.update_begin, all_parameters_, cost_);
    result.cpu = columns(model_.update_begin, all_cpu_, 0);
    add_rotated("gradients for rotated updates", result.out, gradients);
    add_rotated("parameters of rotated updates", result.in, parameters);
    add_rotated("CPU work of rotated updates", result.cpu, work);
    add_at_end(
        "gradients for updates", result.out, [](const BucketUpdate& u) { return u.complete; },
        gradients);
    const auto after_the_norm = [&](const BucketUpdate&) { return model_.update_begin; };
    add_at_end("parameters of updates", result.in, after_the_norm, parameters);
    add_at_end("CPU work of updates", result.cpu, after_the_norm, work);
    const double rate = rate_alone(model_.resources, Traffic::cpu_update);
    for (int32_t k = 0; k < intervals_; ++k)
      if (result.cpu[k] >= 0)
        row("CPU " + model_.intervals[k].name, -kInfinity, 0, time_scale_,
            {{program_.seconds[k], -1}, {result.cpu[k], 1 / rate}});
    return result;
  }

 private:
  using OfBucket = std::function<Terms(int32_t bucket, int position)>;

  void row(std::string name, double lower, double upper, double scale, Terms terms) {
    program_.lp.rows.push_back({std::move(name), lower, upper, scale, std::move(terms)});
  }

  // In the intervals up to the last that reads what the step before updates, and from `begin` on.
  std::vector<int32_t> columns(int32_t begin, double upper, double cost) {
    std::vector<int32_t> result(static_cast<size_t>(intervals_), -1);
    for (int32_t k = 0; k < intervals_; ++k) {
      if (k > last_needed_ && k < begin) continue;
      result[k] = static_cast<int32_t>(program_.lp.columns.size());
      program_.lp.columns.push_back({0, upper, cost, byte_scale_});
    }
    return result;
  }

  // What of a bucket's `bytes` has its place on the device and is updated on the host.
  Terms device_terms(Pool pool, int32_t bucket, int position, double bytes) const {
    for (size_t u = 0; u < model_.units.size(); ++u)
      if (model_.units[u].pool == pool && model_.units[u].bucket == bucket)
        if (const int32_t c = program_.units[u].device[position]; c >= 0 && bytes > 0)
          return {{c, bytes}};
    return {};
  }

  void add_rotated(const std::string& name, const std::vector<int32_t>& moved,
                   const OfBucket& asked) {
    std::set<int32_t> ends;
    for (const BucketUpdate& update : model_.updates)
      if (update.needed >= 0) ends.insert(update.needed);
    for (const int32_t end : ends) {
      Terms terms;
      for (int32_t k = 0; k <= end; ++k) terms.push_back({moved[k], 1});
      for (int32_t b = 0; b < model_.buckets; ++b)
        if (const int32_t needed = model_.updates[b].needed; needed >= 0 && needed <= end)
          for (const auto& [column, bytes] : asked(b, kHostRotated))
            terms.push_back({column, -bytes});
      row(name + " by " + model_.intervals[end].name, 0, kInfinity, byte_scale_, std::move(terms));
    }
  }

  void add_at_end(const std::string& name, const std::vector<int32_t>& moved,
                  const std::function<int32_t(const BucketUpdate&)>& begin_of,
                  const OfBucket& asked) {
    std::set<int32_t> begins;
    for (const BucketUpdate& update : model_.updates)
      if (begin_of(update) >= 0) begins.insert(begin_of(update));
    for (const int32_t begin : begins) {
      Terms terms;
      for (int32_t k = begin; k < intervals_; ++k) terms.push_back({moved[k], 1});
      for (int32_t b = 0; b < model_.buckets; ++b)
        if (begin_of(model_.updates[b]) >= begin)
          for (const auto& [column, bytes] : asked(b, kHost)) terms.push_back({column, -bytes});
      row(name + " from " + model_.intervals[begin].name, 0, kInfinity, byte_scale_,
          std::move(terms));
    }
  }

  const StepModel& model_;
  double byte_scale_, time_scale_, cost_;
  BoundLp& program_;
  int32_t intervals_ = 0, last_needed_ = -1;
  double all_gradients_ = 0, all_parameters_ = 0, all_cpu_ = 0;
};

}  // namespace

void add_positions(const StepModel& model, bool host, BoundLp& program) {
  constexpr const char* kNames[] = {"end", "rotated", "host", "host_rotated"};
  for (int32_t b = 0; b < model.buckets; ++b) {
    const BucketUpdate& update = model.updates[b];
    const double most = host ? update.on_host : update.pinned[kHost] + update.pinned[kHostRotated];
    program.share[0].push_back(-1);
    for (int p = 1; p < kPositions; ++p) {
      const double upper = p < kHost ? 1 : most;
      program.share[p].push_back(upper > 0 ? static_cast<int32_t>(program.lp.columns.size()) : -1);
      if (upper > 0) program.lp.columns.push_back({0, upper});
    }
    for (int p = 0; p < kPositions; ++p) {
      const double pinned = update.pinned[p];
      if (pinned == 0) continue;
      LpRow row{"pin update@" + std::to_string(b) + " " + kNames[p]};
      row.lower = p == 0 ? -kInfinity : pinned;
      row.upper = p == 0 ? 1 - pinned : kInfinity;
      row.terms = p == 0 ? elsewhere(program, b, 1) : Terms{{program.share[p][b], 1}};
      program.lp.rows.push_back(std::move(row));
    }
  }
}

LpTerms elsewhere(const BoundLp& program, int32_t bucket, double factor) {
  LpTerms terms;
  for (const std::vector<int32_t>& share : program.share)
    if (share[bucket] >= 0) terms.push_back({share[bucket], factor});
  return terms;
}

LpTerms on_host(const BoundLp& program, int32_t bucket) {
  LpTerms terms;
  for (const int p : {kHost, kHostRotated})
    if (const int32_t c = program.share[p][bucket]; c >= 0) terms.push_back({c, 1});
  return terms;
}

LpTerms held_on_host(const StepModel& model, const BoundLp& program) {
  LpTerms terms;
  for (size_t u = 0; u < model.units.size(); ++u) {
    const BucketUnit& unit = model.units[u];
    if (unit.pool == Pool::state)
      for (const auto& [column, part] : on_host(program, unit.bucket))
        terms.push_back({column, part * unit.bytes});
    if (unit.pool != Pool::parameters) continue;
    for (const int p : {kHost, kHostRotated})
      if (const int32_t c = program.units[u].device[p]; c >= 0)
        terms.push_back({c, model.updates[unit.bucket].parameter_bytes});
  }
  return terms;
}

void move_rotated_gathers(const StepModel& model, const BoundLp& program,
                          const std::function<double(const BucketUpdate&)>& amount_of,
                          std::vector<LpTerms>& needed, std::vector<LpTerms>& made) {
  for (int32_t b = 0; b < model.buckets; ++b) {
    const BucketUpdate& update = model.updates[b];
    const double amount = amount_of(update);
    if (amount == 0 || update.needed < 0) continue;
    for (const int p : {index_of(UpdatePosition::rotated), kHostRotated})
      if (const int32_t c = program.share[p][b]; c >= 0) {
        needed[update.needed].push_back({c, -amount});
        made[model.update_begin + b].push_back({c, -amount});
      }
  }
}

HostUpdates add_host_updates(const StepModel& model, double byte_scale, double time_scale,
                             double cost, BoundLp& program) {
  return HostRows(model, byte_scale, time_scale, cost, program).run();
}

}  // namespace spillway
