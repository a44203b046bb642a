#include "plan/bound_lp.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "plan/bound_updates.h"

namespace spillway {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr const char* kPoolNames[] = {"activations", "parameters", "gradients", "state"};

using Terms = LpTerms;

class Building {
 public:
  Building(const StepModel& model, const HardwareProfile& profile, const Budgets& budgets,
           double horizon, Streams streams, const RoundingAid& aid)
      : model_(model), profile_(profile), horizon_(horizon), streams_(streams), aid_(aid) {
    intervals_ = static_cast<int32_t>(model.intervals.size());
    bytes_needed_.resize(model.intervals.size());
    bytes_made_.resize(model.intervals.size());
    in_rate_ = rate_alone(model.resources, Traffic::h2d);
    out_rate_ = rate_alone(model.resources, Traffic::d2h);
    for (const BucketUnit& unit : model.units) total_bytes_ += unit.bytes;
    for (const Interval& i : model.intervals) total_seconds_ += i.weight * i.compute;
    byte_scale_ = std::max(1.0, total_bytes_) / 1000;
    time_scale_ = std::max(1e-9, total_seconds_) / 1000;
    budgets_ = budgets;
  }

  BoundLp run() {
    add_columns();
    add_choices();
    add_compute();
    for (int pool = 0; pool < kPools; ++pool) add_pool(static_cast<Pool>(pool));
    updates_ = add_host_updates(model_, byte_scale_, time_scale_, aid_.cost_of_bytes, result_);
    add_exchanges();
    add_lanes();
    add_shared();
    add_memory();
    return std::move(result_);
  }

 private:
  int32_t column(double lower, double upper, double scale, double cost = 0) {
    result_.lp.columns.push_back({lower, upper, cost, scale});
    return static_cast<int32_t>(result_.lp.columns.size()) - 1;
  }
  int32_t fraction() { return column(0, 1, 1); }
  int32_t bytes_column(double upper, double times = 0) {
    return column(0, upper, byte_scale_, times * aid_.cost_of_bytes);
  }
  int32_t row(std::string name, double lower, double upper, double scale, Terms terms) {
    result_.lp.rows.push_back({std::move(name), lower, upper, scale, std::move(terms)});
    return static_cast<int32_t>(result_.lp.rows.size()) - 1;
  }
  double weight(int32_t k) const { return model_.intervals[k].weight; }
  static std::string label(const BucketUnit& unit) {
    return unit.name + "@" + std::to_string(unit.bucket);
  }

  bool streams(const BucketUnit& unit) const {
    if (!unit.can_stream) return false;
    return streams_ == Streams::all ||
           (streams_ == Streams::unless_recomputable && !unit.can_recompute) ||
           unit.pinned[static_cast<int>(Where::host)] > 0;
  }

  // Rounded to whole layers, an activation that is needed before it can have left and returned
  // makes compute wait.
  bool returns_at_once(const BucketUnit& unit) const {
    if (aid_.slots == 0 || unit.pool != Pool::activations || unit.streaming[0].flows.empty() ||
        unit.pinned[static_cast<int>(Where::host)] > 0)
      return false;
    double seconds = 0, between = 0;
    for (const Flow& flow : unit.streaming[0].flows) {
      if (flow.interval > model_.backward[0][0]) continue;
      seconds = std::max(seconds, flow.out_bytes / out_rate_);
    }
    seconds /= static_cast<double>(unit.keys.size());
    for (int32_t k = unit.bucket + 1; k < model_.backward[unit.bucket][0]; ++k)
      between += model_.intervals[k].compute;
    return between < 2 * seconds;
  }

  double ring_limit(int32_t ring) const {
    double slot = 0, pool = 0;
    for (const BucketUnit& unit : model_.units)
      if (unit.pool == model_.rings[ring].pool) pool += unit.bytes;
    if (aid_.slots == 0) return pool;
    for (const BucketUnit& unit : model_.units)
      for (const Streaming& streaming : unit.streaming)
        for (const SlotNeed& need : streaming.slots)
          if (need.ring == ring) slot = std::max(slot, need.bytes);
    return aid_.slots_of(model_.rings[ring].pool, model_.choice.group) * slot;
  }

  void add_columns() {
    for (const Interval& i : model_.intervals)
      result_.seconds.push_back(column(0, horizon_, time_scale_, i.weight));
    int32_t ring_index = 0;
    for (const RingModel& ring : model_.rings) {
      const bool used =
          std::any_of(model_.units.begin(), model_.units.end(),
                      [&](const BucketUnit& u) { return u.pool == ring.pool && streams(u); });
      result_.rings.push_back(used ? bytes_column(ring_limit(ring_index)) : -1);
      ++ring_index;
    }
    add_positions(model_, aid_.host_updates, result_);
  }

  void add_choices() {
    for (const BucketUnit& unit : model_.units) {
      UnitColumns c;
      const bool state = unit.pool != Pool::activations;
      const bool streamed = streams(unit) && !returns_at_once(unit);
      Terms device, host;
      if (unit.pool == Pool::state) host = on_host(result_, unit.bucket);
      for (int p = 0; p < (state ? kPositions : 1); ++p) {
        const int32_t share = result_.share[p][unit.bucket];
        if (p > 1 && (unit.pool == Pool::state || share < 0)) break;
        c.device[p] = fraction();
        device.push_back({c.device[p], 1});
        Terms sum = {{c.device[p], 1}};
        if (streamed) {
          c.host[p] = fraction();
          host.push_back({c.host[p], 1});
          sum.push_back({c.host[p], 1});
        }
        if (!state && unit.can_recompute) {
          c.recompute = fraction();
          sum.push_back({c.recompute, 1});
        }
        if (!state) {
          row("place " + label(unit), 1, 1, 1, std::move(sum));
        } else if (p == 0) {
          append(sum, elsewhere(result_, unit.bucket, 1));
          row("place " + label(unit) + " end", 1, 1, 1, std::move(sum));
        } else {
          constexpr const char* kNames[] = {"", " rotated", " host", " host_rotated"};
          sum.push_back({share, -1});
          row("place " + label(unit) + kNames[p], 0, 0, 1, std::move(sum));
        }
      }
      const auto pinned = [&](Where where, const char* to, Terms terms) {
        const double least = unit.pinned[static_cast<int>(where)];
        if (least > 0 && !terms.empty())
          row("pin " + label(unit) + to, least, kInfinity, 1, std::move(terms));
      };
      pinned(Where::device, " to the device", std::move(device));
      pinned(Where::host, " to the host", std::move(host));
      if (c.recompute >= 0) pinned(Where::recompute, " to recompute", {{c.recompute, 1}});
      result_.units.push_back(c);
    }
  }

  void add_compute() {
    std::vector<int32_t> repeated;
    std::vector<Terms> terms(intervals_);
    std::vector<double> least(intervals_);
    for (int32_t k = 0; k < intervals_; ++k) {
      terms[k].push_back({result_.seconds[k], 1});
      least[k] = model_.intervals[k].compute;
    }
    for (size_t n = 0; n < model_.repeated.size(); ++n) {
      const RepeatedNode& node = model_.repeated[n];
      repeated.push_back(fraction());
      for (const int32_t unit : node.units)
        if (const int32_t c = result_.units[unit].recompute; c >= 0)
          row("repeat " + std::to_string(n) + " for " + label(model_.units[unit]), 0, kInfinity, 1,
              {{repeated[n], 1}, {c, -1}});
      for (const int32_t other : node.needed)
        row("repeat " + std::to_string(other) + " for " + std::to_string(n), 0, kInfinity, 1,
            {{repeated[other], 1}, {repeated[n], -1}});
      for (const int32_t k : model_.backward[node.bucket])
        if (k >= 0) terms[k].push_back({repeated[n], -node.seconds});
    }
    for (int32_t b = 0; b < model_.buckets; ++b) {
      const auto& compute = model_.updates[b].compute;
      for (const auto& [k, seconds] : compute[0]) {
        least[k] += seconds;
        append(terms[k], elsewhere(result_, b, seconds));
      }
      for (const auto& [k, seconds] : compute[1])
        terms[k].push_back({result_.share[1][b], -seconds});
    }
    for (int32_t k = 0; k < intervals_; ++k)
      row("compute " + model_.intervals[k].name, least[k], kInfinity, time_scale_,
          merged(std::move(terms[k])));
  }

  static void append(Terms& terms, const Terms& more) {
    terms.insert(terms.end(), more.begin(), more.end());
  }

  // Levels of a stock along the step: it starts at nothing; the middle iteration starts at the mean
  // of its iterations' starts. `upper` bounds every level; -1: none.
  struct Stock {
    std::vector<int32_t> level;  // at the end of each interval
  };
  // level[k] = level[k - 1] + change(k).
  Stock add_stock(const std::string& name, double scale, double upper, bool within_iteration,
                  const std::vector<Terms>& change, const std::vector<double>& constant) {
    Stock stock;
    const auto new_column = [&] { return column(0, upper, scale); };
    for (int32_t k = 0; k < intervals_; ++k) stock.level.push_back(new_column());
    for (int32_t k = 0; k < intervals_; ++k) {
      Terms terms = {{stock.level[k], 1}};
      for (const auto& [c, value] : change[k]) terms.push_back({c, -value});
      const auto begins = [&](int v) { return model_.iteration_begin[v] == k; };
      const bool starts_iteration = begins(0) || begins(1) || begins(2) || k == model_.update_begin;
      if (k > 0 && !(within_iteration && starts_iteration)) {
        int32_t before = stock.level[k - 1];
        if (begins(1)) {
          // Mean start m, end e of the n iterations; they hand on what the first left (a) and leave
          // what the last finds (z): e - m = (z - a) / n.
          mean_ = new_column();
          before = mean_;
        } else if (begins(2) && model_.iteration_begin[1] >= 0) {
          const int32_t found = new_column();
          const double n = model_.intervals[model_.iteration_begin[1]].weight;
          const int32_t left = stock.level[model_.iteration_begin[1] - 1];
          row(name + " through the middle", 0, 0, scale,
              merged({{stock.level[k - 1], 1}, {mean_, -1}, {found, -1 / n}, {left, 1 / n}}));
          before = found;
        }
        terms.push_back({before, -1});
      }
      row(name + " after " + model_.intervals[k].name, constant[k], constant[k], scale,
          merged(std::move(terms)));
    }
    return stock;
  }

  void add_pool(Pool pool) {
    const std::string name = kPoolNames[static_cast<int>(pool)];
    const bool within = pool == Pool::activations;
    std::vector<Terms> needed(intervals_), made(intervals_);
    double all_in = 0, all_out = 0;
    bool any = false;
    const CountedStarts starts = counted_starts(pool);
    for (size_t u = 0; u < model_.units.size(); ++u) {
      const BucketUnit& unit = model_.units[u];
      if (unit.pool != pool || !streams(unit)) continue;
      for (int p = 0; p < kPositions; ++p) {
        const int32_t host = result_.units[u].host[p];
        if (host < 0) continue;
        const double copy = starts.counted[u] ? profile_.copy_seconds : 0;
        for (const Flow& flow : unit.streaming[streaming_of(p)].flows) {
          any = true;
          const double in = flow.in_bytes + flow.in_copies * copy * in_rate_;
          const double out = flow.out_bytes + flow.out_copies * copy * out_rate_;
          if (in > 0) {
            needed[flow.interval].push_back({host, -in});
            bytes_needed_[flow.interval].push_back({host, -flow.in_bytes});
            all_in += in;
            bytes_in_ += flow.in_bytes;
          }
          if (out > 0) {
            made[flow.interval].push_back({host, out});
            bytes_made_[flow.interval].push_back({host, flow.out_bytes});
            all_out += out;
            bytes_out_ += flow.out_bytes;
          }
        }
      }
    }
    all_in_ += all_in;
    all_out_ += all_out;
    in_[static_cast<int>(pool)].assign(intervals_, -1);
    out_[static_cast<int>(pool)].assign(intervals_, -1);
    add_ring_rows(pool);
    if (!any) return;
    std::vector<double> nothing(intervals_, 0);
    for (int32_t k = 0; k < intervals_; ++k) {
      if (within && k >= model_.update_begin) continue;
      in_[static_cast<int>(pool)][k] = bytes_column(all_in, weight(k));
      out_[static_cast<int>(pool)][k] = bytes_column(all_out, weight(k));
      needed[k].push_back({in_[static_cast<int>(pool)][k], 1});
      made[k].push_back({out_[static_cast<int>(pool)][k], -1});
    }
    const Stock ahead =
        add_stock(name + " fetched ahead", byte_scale_, all_in, within, needed, nothing);
    const Stock behind =
        add_stock(name + " to be written back", byte_scale_, all_out, within, made, nothing);
    result_.lp.columns[behind.level.back()].upper = 0;
    for (const int32_t begin : model_.iteration_begin)
      if (within && begin > 0) result_.lp.columns[behind.level[begin - 1]].upper = 0;
    if (within) result_.lp.columns[behind.level[model_.update_begin - 1]].upper = 0;
    if (within) add_windows(name, needed, made);
    Terms standing;
    for (size_t r = 0; r < model_.rings.size(); ++r)
      if (model_.rings[r].pool == pool && result_.rings[r] >= 0)
        standing.push_back({result_.rings[r], -starts.most[r]});
    for (int32_t k = 0; k < intervals_; ++k) {
      Terms terms = standing;
      terms.push_back({ahead.level[k], 1 / starts.in});
      terms.push_back({behind.level[k], 1 / starts.out});
      row(name + " in rings after " + model_.intervals[k].name, -kInfinity, 0, byte_scale_,
          std::move(terms));
    }
  }

  struct CountedStarts {
    std::vector<bool> counted;  // by unit
    std::vector<double> most;   // by ring
    double in = 1, out = 1;     // of the stocks' bytes for one in a ring; near enough for rounding
  };

  // A slot holds its bytes and the start-up of the copies whose bytes stand in it, which are apart:
  // at `most` so much a byte. Rings of a pool share rows, and where start-up is most of what slots
  // hold, little memory would be room for what passes through other rings as well: what has such
  // slots does not count with its start-up.
  CountedStarts counted_starts(Pool pool) const {
    const double copy = profile_.copy_seconds * std::max(in_rate_, out_rate_);
    double bytes = 0, starts = 0;
    CountedStarts result;
    const auto most = [&](double& of_flows, double moved, double copies) {
      if (moved > 0) of_flows = std::max(of_flows, 1 + copies * copy / moved);
    };
    for (size_t u = 0; u < model_.units.size(); ++u)
      for (const Streaming& streaming : model_.units[u].streaming) {
        if (model_.units[u].pool != pool || result_.units[u].host[0] < 0) continue;
        for (const Flow& flow : streaming.flows) {
          bytes += weight(flow.interval) * (flow.in_bytes + flow.out_bytes);
          starts += weight(flow.interval) * (flow.in_copies + flow.out_copies) * copy;
          if (aid_.slots == 0) continue;
          most(result.in, flow.in_bytes, flow.in_copies);
          most(result.out, flow.out_bytes, flow.out_copies);
        }
      }
    if (aid_.slots > 0) {
      result.counted.assign(model_.units.size(), true);
      result.most.assign(model_.rings.size(), 1);
      return result;
    }
    constexpr double kMuch = 4;  // times what it is in the pool
    const double much = kMuch * (1 + (bytes > 0 ? starts / bytes : 0));
    std::vector<SlotCopies> copies(model_.rings.size());
    std::vector<double> slot(model_.rings.size(), kInfinity);
    for (const BucketUnit& unit : model_.units) {
      bool counted = unit.pool == pool && streams(unit);
      for (const Streaming& streaming : unit.streaming)
        for (const SlotNeed& need : streaming.slots)
          counted = counted && 1 + most_apart(need.copies) * copy / need.bytes <= much;
      result.counted.push_back(counted);
      if (!counted) continue;
      for (const Streaming& streaming : unit.streaming)
        for (const SlotNeed& need : streaming.slots) {
          copies[need.ring].insert(need.copies.begin(), need.copies.end());
          slot[need.ring] = std::min(slot[need.ring], need.bytes);
        }
    }
    for (size_t r = 0; r < copies.size(); ++r)
      result.most.push_back(1 + most_apart(copies[r]) * copy / slot[r]);
    return result;
  }

  // What a bucket and those above it make leaves and returns between the bucket's forward and
  // backward pass.
  void add_windows(const std::string& name, const std::vector<Terms>& needed,
                   const std::vector<Terms>& made) {
    for (int v = 0; v < 3; ++v) {
      if (model_.iteration_begin[v] < 0) continue;
      for (int32_t b = 1; b < model_.buckets; ++b) {
        const int32_t begin = model_.iteration_begin[v] + b, end = model_.backward[b][v];
        const auto sum = [&](const std::vector<Terms>& changes) {
          Terms terms;
          for (int32_t k = begin; k <= end; ++k)
            terms.insert(terms.end(), changes[k].begin(), changes[k].end());
          return merged(std::move(terms));
        };
        const std::string where = " above " + model_.intervals[begin].name;
        row(name + " return" + where, 0, kInfinity, byte_scale_, sum(needed));
        row(name + " leave" + where, -kInfinity, 0, byte_scale_, sum(made));
      }
    }
  }

  void add_ring_rows(Pool pool) {
    for (size_t u = 0; u < model_.units.size(); ++u) {
      const BucketUnit& unit = model_.units[u];
      if (unit.pool != pool || !streams(unit)) continue;
      const int32_t slots = std::max(1, aid_.slots_of(pool, model_.choice.group));
      for (size_t r = 0; r < model_.rings.size(); ++r) {
        Terms terms;
        for (int p = 0; p < kPositions; ++p)
          for (const SlotNeed& need : unit.streaming[streaming_of(p)].slots)
            if (need.ring == static_cast<int32_t>(r) && result_.units[u].host[p] >= 0)
              terms.push_back({result_.units[u].host[p], -slots * need.bytes});
        if (terms.empty()) continue;
        terms.push_back({result_.rings[r], 1});
        row("slot of " + label(unit) + " in " + model_.rings[r].name, 0, kInfinity, byte_scale_,
            std::move(terms));
      }
    }
  }

  void add_exchanges() {
    double all = 0;
    for (int32_t k = 0; k < intervals_; ++k)
      all += model_.exchanges.needed[k] + model_.exchanges.made[k];
    if (all == 0) return;
    std::vector<Terms> needed(intervals_), made(intervals_);
    std::vector<double> minus_needed;
    for (int32_t k = 0; k < intervals_; ++k) {
      gathers_.push_back(column(0, all, time_scale_));
      sums_.push_back(column(0, all, time_scale_));
      needed[k].push_back({gathers_[k], 1});
      made[k].push_back({sums_[k], -1});
      minus_needed.push_back(-model_.exchanges.needed[k]);
    }
    move_rotated_gathers(
        model_, result_, [](const BucketUpdate& u) { return u.gather_seconds; }, needed, made);
    add_stock("gathered ahead", time_scale_, all, false, needed, minus_needed);
    const Stock behind =
        add_stock("to be exchanged", time_scale_, all, false, made, model_.exchanges.made);
    result_.lp.columns[behind.level.back()].upper = 0;
  }

  static Terms updated(const std::vector<int32_t>& columns, int32_t k, double factor) {
    return columns.empty() || columns[k] < 0 ? Terms{} : Terms{{columns[k], factor}};
  }

  void add_lanes() {
    for (int32_t k = 0; k < intervals_; ++k) {
      Terms in = {{result_.seconds[k], -aid_.usable_link}}, out = in;
      for (int pool = 0; pool < kPools; ++pool) {
        if (const int32_t c = in_[pool][k]; c >= 0) in.push_back({c, 1 / in_rate_});
        if (const int32_t c = out_[pool][k]; c >= 0) out.push_back({c, 1 / out_rate_});
      }
      append(in, updated(updates_.in, k, 1 / in_rate_));
      append(out, updated(updates_.out, k, 1 / out_rate_));
      const std::string& name = model_.intervals[k].name;
      if (in.size() > 1) row("h2d " + name, -kInfinity, 0, time_scale_, std::move(in));
      if (out.size() > 1) row("d2h " + name, -kInfinity, 0, time_scale_, std::move(out));
      if (!gathers_.empty())
        row("communication " + name, -kInfinity, 0, time_scale_,
            {{result_.seconds[k], -1}, {gathers_[k], 1}, {sums_[k], 1}});
    }
  }

  // What all pools copy, and exchanges, in bytes alone: they obey the rows of stocks and rings on
  // their own, whenever copies start, and no resource passes more of them in an interval than it
  // can in that time.
  void add_shared() {
    const std::vector<const SharedResource*> shared =
        contended(model_, bytes_in_ > 0, bytes_out_ > 0);
    if (shared.empty()) return;
    std::array<std::vector<Terms>, kTraffics> moved;  // by interval
    for (std::vector<Terms>& terms : moved) terms.resize(intervals_);
    if (aid_.slots > 0)
      moved_with_starts(moved);
    else
      add_copied(moved);
    for (const Traffic kind : {Traffic::intra_node, Traffic::network})
      if (model_.bytes_exchanged(kind) > 0 && aid_.slots == 0)
        add_exchanged(kind, moved[static_cast<size_t>(kind)]);
    for (int32_t k = 0; k < intervals_; ++k) {
      append(moved[static_cast<int>(Traffic::h2d)][k], updated(updates_.in, k, 1));
      append(moved[static_cast<int>(Traffic::d2h)][k], updated(updates_.out, k, 1));
      append(moved[static_cast<int>(Traffic::cpu_update)][k], updated(updates_.cpu, k, 1));
    }
    for (const SharedResource* r : shared)
      for (int32_t k = 0; k < intervals_; ++k) {
        Terms terms = {{result_.seconds[k], -aid_.usable_link}};
        for (int kind = 0; kind < kTraffics; ++kind)
          if (r->weight[kind] > 0)
            for (const auto& [column, bytes] : moved[kind][k])
              terms.push_back({column, bytes * r->weight[kind] / r->bytes_per_second});
        row("shared " + r->name + " " + model_.intervals[k].name, -kInfinity, 0, time_scale_,
            merged(std::move(terms)));
      }
  }

  // Near enough for what is rounded: a byte with start-up and a second of any exchange count as the
  // bytes that they have on average.
  void moved_with_starts(std::array<std::vector<Terms>, kTraffics>& moved) const {
    const double seconds =
        std::accumulate(model_.exchanges.needed.begin(), model_.exchanges.needed.end(), 0.0) +
        std::accumulate(model_.exchanges.made.begin(), model_.exchanges.made.end(), 0.0);
    for (int32_t k = 0; k < intervals_; ++k) {
      for (int pool = 0; pool < kPools; ++pool) {
        if (const int32_t c = in_[pool][k]; c >= 0)
          moved[static_cast<int>(Traffic::h2d)][k].push_back(
              {c, bytes_in_ / std::max(1.0, all_in_)});
        if (const int32_t c = out_[pool][k]; c >= 0)
          moved[static_cast<int>(Traffic::d2h)][k].push_back(
              {c, bytes_out_ / std::max(1.0, all_out_)});
      }
      if (!gathers_.empty())
        for (const Traffic kind : {Traffic::intra_node, Traffic::network})
          moved[static_cast<size_t>(kind)][k] = {
              {gathers_[k], model_.bytes_exchanged(kind) / seconds},
              {sums_[k], model_.bytes_exchanged(kind) / seconds}};
    }
  }

  void add_copied(std::array<std::vector<Terms>, kTraffics>& moved) {
    for (int32_t k = 0; k < intervals_; ++k) {
      const int32_t in = bytes_column(bytes_in_), out = bytes_column(bytes_out_);
      moved[static_cast<int>(Traffic::h2d)][k] = {{in, 1}};
      moved[static_cast<int>(Traffic::d2h)][k] = {{out, 1}};
      bytes_needed_[k].push_back({in, 1});
      bytes_made_[k].push_back({out, -1});
    }
    const std::vector<double> nothing(intervals_, 0);
    const Stock ahead =
        add_stock("bytes fetched ahead", byte_scale_, bytes_in_, false, bytes_needed_, nothing);
    const Stock behind =
        add_stock("bytes to be written back", byte_scale_, bytes_out_, false, bytes_made_, nothing);
    result_.lp.columns[behind.level.back()].upper = 0;
    Terms rings;
    for (const int32_t ring : result_.rings)
      if (ring >= 0) rings.push_back({ring, -1});
    for (int32_t k = 0; k < intervals_; ++k) {
      Terms terms = rings;
      terms.push_back({ahead.level[k], 1});
      terms.push_back({behind.level[k], 1});
      row("bytes in rings after " + model_.intervals[k].name, -kInfinity, 0, byte_scale_,
          std::move(terms));
    }
  }

  void add_exchanged(Traffic kind, std::vector<Terms>& moved) {
    const Exchanges& bytes = model_.exchanged[static_cast<size_t>(kind)];
    const double all = model_.bytes_exchanged(kind);
    const std::string name = kind == Traffic::network ? "network bytes" : "node bytes";
    std::vector<Terms> needed(intervals_), made(intervals_);
    std::vector<double> minus_needed;
    for (int32_t k = 0; k < intervals_; ++k) {
      const int32_t gathered = bytes_column(all), summed = bytes_column(all);
      moved[k] = {{gathered, 1}, {summed, 1}};
      needed[k].push_back({gathered, 1});
      made[k].push_back({summed, -1});
      minus_needed.push_back(-bytes.needed[k]);
    }
    move_rotated_gathers(
        model_, result_,
        [&](const BucketUpdate& u) { return u.gather_bytes[static_cast<size_t>(kind)]; }, needed,
        made);
    add_stock(name + " gathered ahead", byte_scale_, all, false, needed, minus_needed);
    const Stock behind =
        add_stock(name + " to be exchanged", byte_scale_, all, false, made, bytes.made);
    result_.lp.columns[behind.level.back()].upper = 0;
  }

  void add_memory() {
    Terms device, host = held_on_host(model_, result_);
    for (size_t u = 0; u < model_.units.size(); ++u)
      for (int p = 0; p < kPositions; ++p) {
        const UnitColumns& c = result_.units[u];
        if (c.device[p] >= 0) device.push_back({c.device[p], model_.units[u].bytes});
        if (c.host[p] >= 0)
          host.push_back({c.host[p], model_.units[u].home_bytes[streaming_of(p)]});
      }
    for (const int32_t ring : result_.rings)
      if (ring >= 0) device.push_back({ring, 1});
    row("device memory", -kInfinity,
        static_cast<double>(budgets_.device) - model_.fixed_device_bytes, byte_scale_,
        std::move(device));
    row("host memory", -kInfinity, static_cast<double>(budgets_.host) - model_.fixed_host_bytes,
        byte_scale_, merged(std::move(host)));
  }

  const StepModel& model_;
  const HardwareProfile& profile_;
  Budgets budgets_;
  double in_rate_ = 1, out_rate_ = 1;  // bytes a second of copies that nothing else slows down
  double horizon_ = 0;
  Streams streams_ = Streams::all;
  RoundingAid aid_;
  int32_t intervals_ = 0, mean_ = -1;
  double total_bytes_ = 0, total_seconds_ = 0, byte_scale_ = 1, time_scale_ = 1;
  std::array<std::vector<int32_t>, kPools> in_, out_;
  std::vector<int32_t> gathers_, sums_;
  std::vector<Terms> bytes_needed_, bytes_made_;  // of all pools, without start-up
  double bytes_in_ = 0, bytes_out_ = 0;           // likewise
  double all_in_ = 0, all_out_ = 0;               // with start-up
  HostUpdates updates_;
  BoundLp result_;
};

}  // namespace

BoundLp bound_lp(const StepModel& model, const HardwareProfile& profile, const Budgets& budgets,
                 double horizon, Streams streams, const RoundingAid& aid) {
  return Building(model, profile, budgets, horizon, streams, aid).run();
}

}  // namespace spillway
