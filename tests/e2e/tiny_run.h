// Tiny models trained inside one process, one thread a rank: what the end-to-end tests share.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/philox.h"
#include "data/dataset.h"
#include "thread_communicator.h"
#include "train/learning_rate.h"
#include "train/session.h"
#include "train/state.h"

namespace spillway::e2e {

// SPILLWAY_LONG=1 in the environment: longer runs of the random tests.
inline int times(int count) {
  const char* value = std::getenv("SPILLWAY_LONG");
  return value != nullptr && std::string_view(value) == "1" ? 5 * count : count;
}

// Calls body(rank, communicator) on a thread for each rank and rethrows what was thrown first.
inline void on_ranks(int ranks, const std::function<void(int, Communicator&)>& body) {
  ThreadWorld world(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        ThreadCommunicator communicator(world, r);
        body(r, communicator);
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        world.abort();
      }
    });
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

// The workloads of all ranks of a run. Budgets are as large as can be until they are set.
struct Job {
  std::vector<std::unique_ptr<Workload>> ranks;

  Job(const Config& config, int count) {
    for (int r = 0; r < count; ++r) {
      ranks.push_back(std::make_unique<Workload>(config, Topology{r, count, count, 1}));
      ranks[r]->input.budgets = {int64_t{1} << 40, int64_t{1} << 40};
    }
  }
  const Workload& front() const { return *ranks[0]; }
  int count() const { return static_cast<int>(ranks.size()); }
  void set_budgets(Budgets budgets) {
    for (auto& r : ranks) r->input.budgets = budgets;
  }

  // A plan file's text. Units that the placement leaves out stay on the device.
  std::string plan_text(const Placement& placement, const ScheduleChoice& schedule) const {
    Plan plan;
    plan.placement = placement;
    plan.schedule = schedule;
    for (const PlaceUnit& unit : place_units(front().train.get(schedule)))
      plan.placement.where.try_emplace(unit.key, Where::device);
    return placement_to_json(plan, front().subject);
  }
};

inline int32_t token_at(const Config& c, uint64_t sequence, int64_t position) {
  const auto bits = philox(c.train.seed + 77, sequence, static_cast<uint64_t>(position));
  return static_cast<int32_t>(bits[0] % static_cast<uint64_t>(c.model.vocab));
}

// One rank that trains.
class TinyRank {
 public:
  // `before` sees the arenas before the state is put there.
  TinyRank(const Workload& workload, Communicator& communicator, const SessionOptions& options,
           const std::function<void(Session&)>& before = {})
      : workload_(workload), session_(workload, communicator, options) {
    if (before) before(session_);
    initialise_state(session_.train_schedule(), session_.homes(), session_.executor(),
                     workload.config.train.seed);
  }

  Session& session() { return session_; }

  // The step's batch is a function of (seed, step, place in the global batch).
  StepScalars step(int64_t step) {
    const Config& c = workload_.config;
    for (int32_t m = 0; m < workload_.spec.micro_batches; ++m)
      fill("train.", m, static_cast<uint64_t>((step - 1) * c.train.batch) + sequence_of(m));
    StepScalars s;
    s.step = static_cast<uint64_t>(step);
    s.seed = c.train.seed;
    s.lr = static_cast<float>(learning_rate(c.optimizer, step, c.train.steps));
    const double t = static_cast<double>(updates_ + 1);
    s.beta1_correction = static_cast<float>(1.0 - std::pow(c.optimizer.beta1, t));
    s.beta2_correction = static_cast<float>(1.0 - std::pow(c.optimizer.beta2, t));
    *session_.io<StepScalars>("train.scalars") = s;
    session_.executor().run(0);
    session_.executor().finish();
    s = *session_.io<StepScalars>("train.scalars.out");
    if (s.skip_update == 0) ++updates_;
    return s;
  }

  // Micro-batch `micro` of `rank` of a step, for a RankCheck.
  void fill(int64_t step, int rank, int64_t micro, const MicroBatch& out) const {
    const auto first = static_cast<uint64_t>((step - 1) * workload_.config.train.batch);
    fill(first + sequence_of(micro, rank), out);
  }

  double evaluate(uint64_t first_sequence) {
    fill("evaluate.", 0, first_sequence + sequence_of(0));
    flush();
    session_.executor().run(1);
    session_.executor().finish();
    return *session_.io<double>("evaluate.losses");
  }

  void flush() {
    session_.flush_updates();
    ++flushes_;
  }
  int flushes() const { return flushes_; }

  // Bytes that the copies of `program` move on a lane in one run.
  int64_t planned_bytes(int program, Lane lane) const {
    const Program& p = session_.report().plan.lowered.set.programs[program];
    int64_t bytes = 0;
    for (const Segment& segment : p.segments)
      for (InstrId i = segment.begin; i < segment.end; ++i)
        if (p.instrs[i].kind == InstrKind::copy && p.instrs[i].lane == lane)
          bytes += segment.trip * p.instrs[i].in[0].bytes();
    return bytes;
  }

 private:
  uint64_t sequence_of(int32_t micro) const { return sequence_of(micro, workload_.spec.rank); }
  uint64_t sequence_of(int64_t micro, int rank) const {
    return static_cast<uint64_t>((micro * workload_.spec.ranks + rank) *
                                 workload_.config.train.micro_batch);
  }

  void fill(const std::string& program, int32_t micro, uint64_t first_sequence) {
    const auto rows =
        static_cast<size_t>(workload_.config.train.micro_batch * workload_.config.model.context);
    std::vector<int32_t> unused(rows);
    int32_t* order =
        program == "train." ? session_.io<int32_t>("train.token_order", micro) : unused.data();
    fill(first_sequence, {{session_.io<int32_t>(program + "tokens", micro), rows},
                          {session_.io<int32_t>(program + "targets", micro), rows},
                          {order, rows},
                          {}});
  }

  void fill(uint64_t first_sequence, const MicroBatch& out) const {
    const Config& c = workload_.config;
    const int64_t context = c.model.context, rows = c.train.micro_batch * context;
    for (int64_t row = 0; row < rows; ++row) {
      const uint64_t sequence = first_sequence + static_cast<uint64_t>(row / context);
      const int64_t position = row % context;
      out.tokens[row] = token_at(c, sequence, position);
      const bool ignored = position % 13 == 7 && sequence % 2 == 1;
      out.targets[row] = ignored ? -1 : token_at(c, sequence, position + 1);
      out.token_order[row] = static_cast<int32_t>(row);
    }
    std::stable_sort(out.token_order.begin(), out.token_order.begin() + rows,
                     [&](int32_t a, int32_t b) { return out.tokens[a] < out.tokens[b]; });
  }

  const Workload& workload_;
  Session session_;
  uint64_t updates_ = 0;
  int flushes_ = 0;
};

// Everything that a checkpoint would hold, from all ranks, and each rank's copy of the parameters.
class StateCollector {
 public:
  void add(TinyRank& rank, int index) {
    rank.flush();
    Session& s = rank.session();
    const Graph& g = s.train_schedule().graph;
    const auto slices = checkpoint_slices(s.train_schedule(), s.homes());
    const auto saved = saved_slices(s.train_schedule(), s.homes());
    for (size_t i = 0; i < slices.size(); ++i) {
      const TensorSlice& slice = slices[i];
      std::vector<float> values(static_cast<size_t>(slice.count));
      if (slice.count > 0)
        s.device().download(
            values.data(),
            s.executor().address(s.homes()[saved[i].home].buffer, 0, saved[i].offset),
            slice.count * 4);
      const std::lock_guard lock(mutex_);
      std::vector<float>& whole = tensors_[slice.name];
      whole.resize(static_cast<size_t>(slice.shape.count()), NAN);
      std::copy(values.begin(), values.end(), whole.begin() + slice.begin);
    }
    // Compute copies, whole or shards: every rank's must be the same.
    for (const Home& home : s.homes())
      for (const Param& p : g.params) {
        if (p.home() != home.tensor) continue;
        const int64_t size = size_of(g.tensors[home.tensor].dtype), bytes = home.count * size;
        std::vector<char> part(static_cast<size_t>(bytes));
        s.device().download(part.data(), s.executor().address(home.buffer, 0, home.offset), bytes);
        const std::lock_guard lock(mutex_);
        std::vector<char>& whole = copies_[g.tensors[p.param].name];
        const bool fresh = whole.empty();
        whole.resize(static_cast<size_t>(g.tensors[p.param].bytes()));
        char* there = whole.data() + home.begin * size;
        if (!fresh && p.shard == kNone && std::memcmp(there, part.data(), part.size()) != 0)
          internal_error("rank {} has another copy of {}", index, g.tensors[p.param].name);
        std::memcpy(there, part.data(), part.size());
      }
  }

  const std::map<std::string, std::vector<float>>& tensors() const { return tensors_; }

  // By tensor; equal maps are equal states.
  std::map<std::string, uint64_t> hashes() const {
    std::map<std::string, uint64_t> result;
    for (const auto& [name, bytes] : copies_)
      result[name + " (copy)"] = hash_bytes(bytes.data(), bytes.size());
    for (const auto& [name, values] : tensors_)
      result[name] = hash_bytes(values.data(), values.size() * 4);
    return result;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<float>> tensors_;
  std::map<std::string, std::vector<char>> copies_;
};

// What of a run must not depend on the placement. Doubles as bits.
struct Outcome {
  std::vector<std::string> steps;  // loss and norm of each step, evaluations
  std::map<std::string, uint64_t> state;

  // "" or the first difference.
  std::string difference(const Outcome& other) const {
    for (size_t i = 0; i < std::max(steps.size(), other.steps.size()); ++i)
      if (i >= steps.size() || i >= other.steps.size() || steps[i] != other.steps[i])
        return fmt::format("\"{}\" instead of \"{}\"", i < steps.size() ? steps[i] : "nothing",
                           i < other.steps.size() ? other.steps[i] : "nothing");
    if (state.size() != other.state.size()) return "different tensors";
    for (const auto& [name, hash] : state) {
      auto it = other.state.find(name);
      if (it == other.state.end() || it->second != hash) return "tensor " + name;
    }
    return "";
  }
};

inline std::string bits_of(const std::string& what, const StepScalars& s) {
  return fmt::format("{}: loss {:a} norm {:a} skip {}", what, s.loss, s.norm, s.skip_update);
}

}  // namespace spillway::e2e
