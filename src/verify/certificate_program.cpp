// The rows and columns of one group size's linear program.
#include <algorithm>
#include <numeric>
#include <set>

#include "verify/certificate_sum.h"
#include "verify/step_work.h"

namespace spillway {
namespace {

using verify_detail::Choice;
using verify_detail::kNoColumn;
using verify_detail::kPools;
using verify_detail::Moved;
using verify_detail::StepWork;
using verify_detail::StreamPool;
using verify_detail::Sum;
using verify_detail::Update;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr const char* kPoolNames[] = {"activations", "parameters", "gradients", "state"};
constexpr const char* kPositionNames[] = {"end", "rotated", "host", "host_rotated"};
constexpr int kPositions = 4;  // of updates, as UpdatePosition
constexpr int kHost = 2, kHostRotated = 3;

class Deriving {
 public:
  Deriving(const StepWork& work, const HardwareProfile& profile, const Budgets& budgets,
           double horizon)
      : work_(work),
        profile_(profile),
        spans_(static_cast<int32_t>(work.spans.size())),
        h2d_rate_(rate_alone(work.resources, Traffic::h2d)),
        d2h_rate_(rate_alone(work.resources, Traffic::d2h)),
        fetched_(work.spans.size()),
        returned_(work.spans.size()) {
    for (const verify_detail::Span& span : work.spans)
      seconds_.push_back(column(horizon, span.times));
    columns_of_choices();
    place_rows();
    pinned_updates();
    compute_rows();
    for (int pool = 0; pool < kPools; ++pool) pool_rows(static_cast<StreamPool>(pool));
    host_update_rows();
    communication_rows();
    lane_rows();
    shared_rows();
    memory_rows(budgets);
  }

  CertificateProgram take() { return std::move(program_); }

 private:
  struct Columns {
    std::array<int32_t, kPositions> device{kNoColumn, kNoColumn, kNoColumn, kNoColumn};
    std::array<int32_t, kPositions> host = device;
    int32_t recompute = kNoColumn;
  };

  int32_t column(double high, double cost = 0) {
    program_.columns.push_back({0, high, cost});
    return static_cast<int32_t>(program_.columns.size()) - 1;
  }
  void row(std::string name, double low, double high, const Sum& sum) {
    program_.rows.push_back({std::move(name), low, high, sum.terms()});
  }
  void at_least(std::string name, double low, const Sum& sum) {
    row(std::move(name), low, kInfinity, sum);
  }
  void at_most(std::string name, double high, const Sum& sum) {
    row(std::move(name), -kInfinity, high, sum);
  }
  const std::string& name(int32_t span) const { return work_.spans[span].name; }

  // ---- choices --------------------------------------------------------------------------------

  // Of which a unit has columns: the state of what is updated on the host is there.
  int positions(const Choice& c) const {
    if (c.pool == StreamPool::activations) return 1;
    return c.pool == StreamPool::state || share_[kHost][c.bucket] == kNoColumn ? 2 : kPositions;
  }
  static const verify_detail::Streamed& streamed(const Choice& c, int position) {
    return c.streamed[static_cast<size_t>(std::min(position, kHost))];
  }

  void columns_of_choices() {
    for (const Update& update : work_.update) {
      share_[0].push_back(kNoColumn);
      share_[1].push_back(column(1));
      const double most =
          work_.updates_on_host
              ? 1
              : (update.pinned[kHost] + update.pinned[kHostRotated]) / update.layers;
      for (const int p : {kHost, kHostRotated})
        share_[p].push_back(most > 0 ? column(most) : kNoColumn);
    }
    for (const Choice& c : work_.choices) {
      Columns columns;
      for (int p = 0; p < positions(c); ++p) {
        columns.device[p] = column(1);
        if (c.streams) columns.host[p] = column(1);
      }
      if (c.pool == StreamPool::activations && c.recomputes) columns.recompute = column(1);
      columns_.push_back(columns);
    }
    for (const auto& [ring, pool] : work_.rings) {
      double bytes = 0;
      bool used = false;
      for (const Choice& c : work_.choices) {
        if (c.pool != pool) continue;
        bytes += c.bytes;
        used = used || c.streams;
      }
      rings_.push_back(used ? column(bytes) : kNoColumn);
    }
  }

  void place_rows() {
    for (size_t i = 0; i < work_.choices.size(); ++i) {
      const Choice& c = work_.choices[i];
      const Columns& of = columns_[i];
      const auto placed = [&](int p) { return Sum().add(of.device[p], 1).add(of.host[p], 1); };
      if (c.pool == StreamPool::activations) {
        row("place " + c.label(), 1, 1, placed(0).add(of.recompute, 1));
      } else {
        row("place " + c.label() + " end", 1, 1, placed(0).add(not_at_the_end(c.bucket)));
        for (int p = 1; p < positions(c); ++p)
          row("place " + c.label() + " " + kPositionNames[p], 0, 0,
              placed(p).add(share_[p][c.bucket], -1));
      }
      const auto pin = [&](Where where, const char* word, const Sum& sum) {
        const double pinned = c.pinned[static_cast<size_t>(where)];
        if (pinned > 0 && !sum.empty()) at_least("pin " + c.label() + word, pinned / c.layers, sum);
      };
      Sum device, host;
      for (int p = 0; p < kPositions; ++p) device.add(of.device[p], 1);
      for (int p = 0; p < kPositions; ++p) host.add(of.host[p], 1);
      if (c.pool == StreamPool::state) host.add(on_host(c.bucket));
      pin(Where::device, " to the device", device);
      pin(Where::host, " to the host", host);
      pin(Where::recompute, " to recompute", Sum().add(of.recompute, 1));
    }
  }

  Sum on_host(int32_t bucket) const {
    return Sum().add(share_[kHost][bucket], 1).add(share_[kHostRotated][bucket], 1);
  }
  Sum not_at_the_end(int32_t bucket) const { return on_host(bucket).add(share_[1][bucket], 1); }

  void pinned_updates() {
    for (int32_t b = 0; b < work_.buckets; ++b)
      for (int p = 0; p < kPositions; ++p) {
        const Update& update = work_.update[b];
        if (update.pinned[p] == 0) continue;
        const double part = update.pinned[p] / update.layers;
        const std::string title = "pin update@" + std::to_string(b) + " " + kPositionNames[p];
        if (p == 0)
          at_most(title, 1 - part, not_at_the_end(b));
        else
          at_least(title, part, Sum().add(share_[p][b], 1));
      }
  }

  void compute_rows() {
    std::vector<Sum> time(static_cast<size_t>(spans_));
    std::vector<double> least(static_cast<size_t>(spans_));
    for (int32_t k = 0; k < spans_; ++k) {
      least[k] = work_.spans[k].seconds;
      time[k].add(seconds_[k], 1);
    }
    std::vector<int32_t> repeated;
    for (size_t n = 0; n < work_.repeats.size(); ++n) repeated.push_back(column(1));
    for (size_t n = 0; n < work_.repeats.size(); ++n) {
      const verify_detail::Repeat& repeat = work_.repeats[n];
      const std::string prefix = "repeat " + std::to_string(n) + " for ";
      for (const int32_t c : repeat.choices)
        if (columns_[c].recompute != kNoColumn)
          at_least(prefix + work_.choices[c].label(), 0,
                   Sum().add(repeated[n], 1).add(columns_[c].recompute, -1));
      for (const int32_t other : repeat.before)
        at_least("repeat " + std::to_string(other) + " for " + std::to_string(n), 0,
                 Sum().add(repeated[other], 1).add(repeated[n], -1));
      for (const int32_t k : work_.backward[repeat.bucket])
        if (k >= 0) time[k].add(repeated[n], -repeat.seconds);
    }
    for (int32_t b = 0; b < work_.buckets; ++b) {
      for (const auto& [k, seconds] : work_.update[b].seconds[0]) {
        least[k] += seconds;
        time[k].add(not_at_the_end(b), seconds);
      }
      for (const auto& [k, seconds] : work_.update[b].seconds[1])
        time[k].add(share_[1][b], -seconds);
    }
    for (int32_t k = 0; k < spans_; ++k) at_least("compute " + name(k), least[k], time[k]);
  }

  // ---- what moves -----------------------------------------------------------------------------

  // Level of a stock after each span: what was there before it plus `change` plus `made`. Stocks
  // start empty; `emptied`: so does each iteration. The average of the middle iterations starts
  // with the mean of what they start with.
  std::vector<int32_t> stock_rows(const std::string& what, double most, bool emptied,
                                  const std::vector<Sum>& change, const std::vector<double>& made) {
    std::vector<int32_t> level;
    for (int32_t k = 0; k < spans_; ++k) level.push_back(column(most));
    const auto& begins = work_.begins;
    int32_t mean = kNoColumn;
    for (int32_t k = 0; k < spans_; ++k) {
      Sum sum;
      sum.add(level[k], 1).add(change[k], -1);
      const bool start = k == begins[0] || k == begins[1] || k == begins[2] || k == work_.updates;
      int32_t before = k > 0 && !(emptied && start) ? level[k - 1] : kNoColumn;
      if (before != kNoColumn && k == begins[1]) {
        before = mean = column(most);
      } else if (before != kNoColumn && k == begins[2] && mean != kNoColumn) {
        // What one middle iteration adds is, over all of them, what the last finds less what the
        // first left.
        const double part = 1 / work_.spans[begins[1]].times;
        before = column(most);
        row(what + " through the middle", 0, 0,
            Sum()
                .add(level[k - 1], 1)
                .add(mean, -1)
                .add(before, -part)
                .add(level[begins[1] - 1], part));
      }
      row(what + " after " + name(k), made[k], made[k], sum.add(before, -1));
    }
    return level;
  }

  void slot_rows(StreamPool pool) {
    for (size_t i = 0; i < work_.choices.size(); ++i) {
      const Choice& c = work_.choices[i];
      if (c.pool != pool || !c.streams) continue;
      for (size_t r = 0; r < work_.rings.size(); ++r) {
        Sum need;
        for (int p = 0; p < positions(c); ++p)
          if (const auto slot = streamed(c, p).slots.find(work_.rings[r].first);
              slot != streamed(c, p).slots.end())
            need.add(columns_[i].host[p], -slot->second.bytes);
        if (need.empty()) continue;
        at_least("slot of " + c.label() + " in " + work_.rings[r].first, 0, need.add(rings_[r], 1));
      }
    }
  }

  void pool_rows(StreamPool pool) {
    const std::string pool_name = kPoolNames[static_cast<int>(pool)];
    const bool activations = pool == StreamPool::activations;
    std::vector<Sum> needed(static_cast<size_t>(spans_)), made(static_cast<size_t>(spans_));
    const verify_detail::Starts starts = starts_of(work_, pool, profile_.copy_seconds);
    // Bytes that the links could have moved, start-up time of copies included.
    double all_in = 0, all_out = 0;
    bool moves = false;
    for (size_t i = 0; i < work_.choices.size(); ++i) {
      const Choice& c = work_.choices[i];
      if (c.pool != pool || !c.streams) continue;
      const double start = starts.count[i] ? profile_.copy_seconds : 0;
      for (int p = 0; p < positions(c); ++p)
        for (const auto& [k, moved] : streamed(c, p).by_span) {
          moves = true;
          const double in = moved.in + moved.in_copies * start * h2d_rate_;
          const double out = moved.out + moved.out_copies * start * d2h_rate_;
          needed[k].add(columns_[i].host[p], -in);
          made[k].add(columns_[i].host[p], out);
          fetched_[k].add(columns_[i].host[p], -moved.in);
          returned_[k].add(columns_[i].host[p], moved.out);
          all_in += in;
          all_out += out;
          bytes_in_ += moved.in;
          bytes_out_ += moved.out;
        }
    }
    slot_rows(pool);
    std::vector<int32_t>&in = in_[static_cast<size_t>(pool)],
    &out = out_[static_cast<size_t>(pool)];
    in.assign(static_cast<size_t>(spans_), kNoColumn);
    out = in;
    if (!moves) return;
    for (int32_t k = 0; k < (activations ? work_.updates : spans_); ++k) {
      in[k] = column(all_in);
      out[k] = column(all_out);
      needed[k].add(in[k], 1);
      made[k].add(out[k], -1);
    }
    const std::vector<double> nothing(static_cast<size_t>(spans_), 0);
    const auto ahead =
        stock_rows(pool_name + " fetched ahead", all_in, activations, needed, nothing);
    const auto behind =
        stock_rows(pool_name + " to be written back", all_out, activations, made, nothing);
    const auto empty_after = [&](int32_t k) { program_.columns[behind[k]].high = 0; };
    empty_after(spans_ - 1);
    if (activations) {
      for (const int32_t begin : work_.begins)
        if (begin > 0) empty_after(begin - 1);
      empty_after(work_.updates - 1);
      window_rows(pool_name, needed, made);
    }
    for (int32_t k = 0; k < spans_; ++k) {
      Sum standing;
      standing.add(ahead[k], 1).add(behind[k], 1);
      for (size_t r = 0; r < work_.rings.size(); ++r)
        if (work_.rings[r].second == pool) standing.add(rings_[r], -starts.room[r]);
      at_most(pool_name + " in rings after " + name(k), 0, standing);
    }
  }

  // What a bucket's forward pass and all above it make leaves and returns before its backward pass
  // is over.
  void window_rows(const std::string& pool_name, const std::vector<Sum>& needed,
                   const std::vector<Sum>& made) {
    for (int v = 0; v < 3; ++v)
      for (int32_t b = 1; work_.begins[v] >= 0 && b < work_.buckets; ++b) {
        const int32_t begin = work_.begins[v] + b;
        Sum returned, left;
        for (int32_t k = begin; k <= work_.backward[b][v]; ++k) {
          returned.add(needed[k]);
          left.add(made[k]);
        }
        at_least(pool_name + " return above " + name(begin), 0, returned);
        at_most(pool_name + " leave above " + name(begin), 0, left);
      }
  }

  void communication_rows() {
    double all = 0;
    for (int32_t k = 0; k < spans_; ++k) all += work_.gathers[k] + work_.sums[k];
    if (all == 0) return;
    std::vector<Sum> gathered(static_cast<size_t>(spans_)), summed(static_cast<size_t>(spans_));
    std::vector<double> less_gathers;
    for (int32_t k = 0; k < spans_; ++k) {
      gathers_.push_back(column(all));
      sums_.push_back(column(all));
      gathered[k].add(gathers_[k], 1);
      summed[k].add(sums_[k], -1);
      less_gathers.push_back(-work_.gathers[k]);
    }
    for (int32_t b = 0; b < work_.buckets; ++b)
      gather_in_next_step(b, work_.update[b].gathers, gathered, summed);
    stock_rows("gathered ahead", all, false, gathered, less_gathers);
    const auto waiting = stock_rows("to be exchanged", all, false, summed, work_.sums);
    program_.columns[waiting.back()].high = 0;
  }

  // A rotated update's gathers are no sums of this step: what reads their parameters needs them.
  void gather_in_next_step(int32_t bucket, double amount, std::vector<Sum>& gathered,
                           std::vector<Sum>& summed) const {
    const int32_t reader = work_.update[bucket].wanted;
    if (reader < 0) return;
    for (const int p : {1, kHostRotated}) {
      gathered[reader].add(share_[p][bucket], -amount);
      summed[work_.updates + bucket].add(share_[p][bucket], -amount);
    }
  }

  // ---- updates on the host --------------------------------------------------------------------

  void host_update_rows() {
    for (std::vector<int32_t>* columns : {&update_in_, &update_out_, &update_work_})
      columns->assign(static_cast<size_t>(spans_), kNoColumn);
    bool any = false;
    int32_t wanted = -1, ready = work_.updates;
    double gradients = 0, parameters = 0, work = 0;
    for (int32_t b = 0; b < work_.buckets; ++b) {
      const Update& update = work_.update[b];
      any = any || share_[kHost][b] != kNoColumn;
      wanted = std::max(wanted, update.wanted);
      if (update.ready >= 0) ready = std::min(ready, update.ready);
      gradients += update.gradients;
      parameters += update.parameters;
      work += update.work;
    }
    if (!any) return;
    for (int32_t k = 0; k < spans_; ++k) {
      if (k <= wanted || k >= ready) update_out_[k] = column(gradients);
      if (k > wanted && k < work_.updates) continue;
      update_in_[k] = column(parameters);
      update_work_[k] = column(work);
    }
    // Where the device has the bytes, what moves of them; the processors' work in any case.
    const auto resident = [&](StreamPool pool, double Update::*bytes) {
      return [this, pool, bytes](int32_t b, int p) {
        Sum sum;
        for (size_t i = 0; i < work_.choices.size(); ++i)
          if (work_.choices[i].pool == pool && work_.choices[i].bucket == b)
            sum.add(columns_[i].device[p], work_.update[b].*bytes);
        return sum;
      };
    };
    const auto all = [&](int32_t b, int p) {
      return Sum().add(share_[p][b], work_.update[b].work);
    };
    const auto from_the_norm = [&](int32_t) { return work_.updates; };
    const auto from_the_gradient = [&](int32_t b) { return work_.update[b].ready; };
    const auto of_gradients = resident(StreamPool::gradients, &Update::gradients);
    const auto of_parameters = resident(StreamPool::parameters, &Update::parameters);
    done_when_read("gradients for rotated updates", update_out_, of_gradients);
    done_when_read("parameters of rotated updates", update_in_, of_parameters);
    done_when_read("CPU work of rotated updates", update_work_, all);
    done_at_the_end("gradients for updates", update_out_, from_the_gradient, of_gradients);
    done_at_the_end("parameters of updates", update_in_, from_the_norm, of_parameters);
    done_at_the_end("CPU work of updates", update_work_, from_the_norm, all);
    const double rate = rate_alone(work_.resources, Traffic::cpu_update);
    for (int32_t k = 0; k < spans_; ++k)
      if (update_work_[k] != kNoColumn)
        at_most("CPU " + name(k), 0, Sum().add(update_work_[k], 1 / rate).add(seconds_[k], -1));
  }

  // Of the step before: by the end of every span that reads something, what it reads.
  template <class Asked>
  void done_when_read(const std::string& what, const std::vector<int32_t>& moved,
                      const Asked& asked) {
    std::set<int32_t> readers;
    for (const Update& update : work_.update) readers.insert(update.wanted);
    for (const int32_t reader : readers) {
      if (reader < 0) continue;
      Sum sum;
      for (int32_t k = 0; k <= reader; ++k) sum.add(moved[k], 1);
      for (int32_t b = 0; b < work_.buckets; ++b)
        if (work_.update[b].wanted >= 0 && work_.update[b].wanted <= reader)
          sum.add(asked(b, kHostRotated), -1);
      at_least(what + " by " + name(reader), 0, sum);
    }
  }

  // Of this step: what can begin with a span or later ones moves from there on.
  template <class Begin, class Asked>
  void done_at_the_end(const std::string& what, const std::vector<int32_t>& moved,
                       const Begin& begin_of, const Asked& asked) {
    std::set<int32_t> begins;
    for (int32_t b = 0; b < work_.buckets; ++b) begins.insert(begin_of(b));
    for (const int32_t begin : begins) {
      if (begin < 0) continue;
      Sum sum;
      for (int32_t k = begin; k < spans_; ++k) sum.add(moved[k], 1);
      for (int32_t b = 0; b < work_.buckets; ++b)
        if (begin_of(b) >= begin) sum.add(asked(b, kHost), -1);
      at_least(what + " from " + name(begin), 0, sum);
    }
  }

  void lane_rows() {
    for (int32_t k = 0; k < spans_; ++k) {
      Sum in, out;
      for (int pool = 0; pool < kPools; ++pool) {
        in.add(in_[pool][k], 1 / h2d_rate_);
        out.add(out_[pool][k], 1 / d2h_rate_);
      }
      in.add(update_in_[k], 1 / h2d_rate_);
      out.add(update_out_[k], 1 / d2h_rate_);
      if (!in.empty()) at_most("h2d " + name(k), 0, in.add(seconds_[k], -1));
      if (!out.empty()) at_most("d2h " + name(k), 0, out.add(seconds_[k], -1));
      if (!gathers_.empty())
        at_most("communication " + name(k), 0,
                Sum().add(gathers_[k], 1).add(sums_[k], 1).add(seconds_[k], -1));
    }
  }

  // ---- what devices and kinds of traffic share --------------------------------------------------

  static double total(const std::vector<double>& by_span) {
    return std::accumulate(by_span.begin(), by_span.end(), 0.0);
  }

  // Whether a resource gives an eighth less than copies and exchanges take of it while each has it
  // alone. An exchange's price has everything that exchanges alone can ask of a resource.
  bool lacks(const SharedResource& r, double in_node, double across) const {
    const auto load = [&](Traffic kind, double bytes) {
      return bytes > 0 ? r.of(kind) * rate_alone(work_.resources, kind) : 0;
    };
    const double copies = load(Traffic::h2d, bytes_in_) + load(Traffic::d2h, bytes_out_);
    const double exchanges = load(Traffic::intra_node, in_node) + load(Traffic::network, across);
    return copies > 0 &&
           copies + std::min(exchanges, r.bytes_per_second) > 1.125 * r.bytes_per_second;
  }

  // Bytes of all pools and of exchanges by themselves: whenever a copy starts, its bytes are there
  // when they are needed, stand in slots until then, and pass each resource once per weight.
  void shared_rows() {
    std::array<double, kTraffics> bytes{};
    for (int kind = 0; kind < kTraffics; ++kind)
      bytes[kind] = total(work_.gathered[kind]) + total(work_.summed[kind]);
    const auto of = [&](Traffic kind) { return bytes[static_cast<size_t>(kind)]; };
    std::vector<const SharedResource*> scarce;
    for (const SharedResource& r : work_.resources)
      if (lacks(r, of(Traffic::intra_node), of(Traffic::network))) scarce.push_back(&r);
    if (scarce.empty()) return;
    std::array<std::vector<Sum>, kTraffics> moved;  // bytes by span
    moved.fill(std::vector<Sum>(static_cast<size_t>(spans_)));
    copied_bytes(moved[static_cast<size_t>(Traffic::h2d)],
                 moved[static_cast<size_t>(Traffic::d2h)]);
    if (of(Traffic::intra_node) > 0)
      exchanged_bytes("node bytes", static_cast<size_t>(Traffic::intra_node), moved);
    if (of(Traffic::network) > 0)
      exchanged_bytes("network bytes", static_cast<size_t>(Traffic::network), moved);
    for (int32_t k = 0; k < spans_; ++k) {
      moved[static_cast<size_t>(Traffic::h2d)][k].add(update_in_[k], 1);
      moved[static_cast<size_t>(Traffic::d2h)][k].add(update_out_[k], 1);
      moved[static_cast<size_t>(Traffic::cpu_update)][k].add(update_work_[k], 1);
    }
    for (const SharedResource* r : scarce)
      for (int32_t k = 0; k < spans_; ++k) {
        Sum passed;
        for (int kind = 0; kind < kTraffics; ++kind)
          passed.add(moved[kind][k], r->weight[kind] / r->bytes_per_second);
        at_most("shared " + r->name + " " + name(k), 0, passed.add(seconds_[k], -1));
      }
  }

  void copied_bytes(std::vector<Sum>& in, std::vector<Sum>& out) {
    for (int32_t k = 0; k < spans_; ++k) {
      const int32_t there = column(bytes_in_), back = column(bytes_out_);
      in[k].add(there, 1);
      out[k].add(back, 1);
      fetched_[k].add(there, 1);
      returned_[k].add(back, -1);
    }
    const std::vector<double> nothing(static_cast<size_t>(spans_), 0);
    const auto ahead = stock_rows("bytes fetched ahead", bytes_in_, false, fetched_, nothing);
    const auto behind =
        stock_rows("bytes to be written back", bytes_out_, false, returned_, nothing);
    program_.columns[behind.back()].high = 0;
    for (int32_t k = 0; k < spans_; ++k) {
      Sum standing;
      for (const int32_t ring : rings_) standing.add(ring, -1);
      at_most("bytes in rings after " + name(k), 0, standing.add(ahead[k], 1).add(behind[k], 1));
    }
  }

  void exchanged_bytes(const std::string& what, size_t kind,
                       std::array<std::vector<Sum>, kTraffics>& moved) {
    const double most = total(work_.gathered[kind]) + total(work_.summed[kind]);
    std::vector<Sum> gathered(static_cast<size_t>(spans_)), summed(static_cast<size_t>(spans_));
    std::vector<double> less_gathered;
    for (int32_t k = 0; k < spans_; ++k) {
      const int32_t gather = column(most), sum = column(most);
      gathered[k].add(gather, 1);
      summed[k].add(sum, -1);
      moved[kind][k].add(gather, 1).add(sum, 1);
      less_gathered.push_back(-work_.gathered[kind][k]);
    }
    for (int32_t b = 0; b < work_.buckets; ++b)
      gather_in_next_step(b, work_.update[b].gathered[kind], gathered, summed);
    stock_rows(what + " gathered ahead", most, false, gathered, less_gathered);
    const auto waiting =
        stock_rows(what + " to be exchanged", most, false, summed, work_.summed[kind]);
    program_.columns[waiting.back()].high = 0;
  }

  void memory_rows(const Budgets& budgets) {
    Sum device, host;
    for (size_t i = 0; i < work_.choices.size(); ++i)
      for (int p = 0; p < kPositions; ++p) {
        const Choice& c = work_.choices[i];
        device.add(columns_[i].device[p], c.bytes);
        host.add(columns_[i].host[p], streamed(c, p).home);
        // What the host updates is there as well.
        if (p >= kHost && c.pool == StreamPool::parameters)
          host.add(columns_[i].device[p], work_.update[c.bucket].parameters);
        if (p >= kHost && c.pool == StreamPool::state) host.add(share_[p][c.bucket], c.bytes);
      }
    for (const int32_t ring : rings_) device.add(ring, 1);
    at_most("device memory", static_cast<double>(budgets.device) - work_.least_device, device);
    at_most("host memory", static_cast<double>(budgets.host) - work_.least_host, host);
  }

  const StepWork& work_;
  const HardwareProfile& profile_;
  int32_t spans_ = 0;
  double h2d_rate_, d2h_rate_;  // bytes a second that no copy exceeds
  // Changes of what all pools have fetched and have to return, without start-up.
  std::vector<Sum> fetched_, returned_;
  double bytes_in_ = 0, bytes_out_ = 0;
  CertificateProgram program_;
  std::vector<int32_t> seconds_, rings_, gathers_, sums_;
  std::array<std::vector<int32_t>, kPositions> share_;  // of updates, by bucket
  // Bytes of updates on the host, by span: parameters, gradients, the processors'.
  std::vector<int32_t> update_in_, update_out_, update_work_;
  std::vector<Columns> columns_;
  std::array<std::vector<int32_t>, kPools> in_, out_;
};

}  // namespace

CertificateProgram certificate_program(const CertificateInput& input, int32_t group, int32_t blocks,
                                       const Budgets& budgets, double horizon) {
  return Deriving(verify_detail::step_work(input, group, blocks), input.profile, budgets, horizon)
      .take();
}

}  // namespace spillway
