// Improvement by swaps: what rounding to whole layers lost, found again move by move.
#include <algorithm>
#include <set>
#include <string>

#include "plan/search.h"

namespace spillway {
namespace {

constexpr int32_t kMostSlots = 4;

struct Move {
  std::vector<std::pair<PlaceKey, Where>> places = {};
  std::vector<std::pair<std::string, int32_t>> slots = {};
  std::vector<std::pair<int32_t, UpdatePosition>> updates = {};
  int32_t reduce_delay = -1, gather_ahead = -1;  // -1: as it is
};

class Improvement {
 public:
  Improvement(const SearchSpace& space, Plan start, const Budgets& budgets, int evaluations,
              bool host_updates)
      : space_(space),
        input_(*space.input),
        best_(std::move(start)),
        budgets_(budgets),
        left_(evaluations),
        host_updates_(host_updates) {}

  Plan run() {
    bool improved = true;
    while (improved && left_ > 0) {
      improved = false;
      for (const auto moves :
           {&Improvement::host_moves, &Improvement::order_moves, &Improvement::fill_moves,
            &Improvement::ring_moves, &Improvement::share_moves, &Improvement::update_moves,
            &Improvement::unit_moves, &Improvement::swap_moves}) {
        for (const Move& move : (this->*moves)()) {
          if (left_ <= 0) break;
          improved |= take(move);
        }
      }
    }
    return std::move(best_);
  }

 private:
  bool take(const Move& move) {
    Candidate next{best_.placement, best_.schedule};
    for (const auto& [key, where] : move.places) next.placement.where[key] = where;
    for (const auto& [place, slots] : move.slots) next.placement.slots[place] = slots;
    for (const auto& [layer, position] : move.updates) {
      next.schedule.update.resize(layers() + 2, UpdatePosition::end);
      next.schedule.update[layer] = position;
    }
    next.schedule = schedule_of_pins(input_, std::move(next.schedule));
    if (move.reduce_delay >= 0) next.schedule.reduce_delay = move.reduce_delay;
    if (move.gather_ahead >= 0) next.schedule.gather_ahead = move.gather_ahead;
    if (next == Candidate{best_.placement, best_.schedule}) return false;
    --left_;
    const Peaks peaks = peaks_of(input_, next);
    if (peaks.device > budgets_.device || peaks.host > budgets_.host) return false;
    Plan plan = lay_out(input_, next.placement, next.schedule);
    synchronise_and_time(input_, plan);
    if (plan.step_seconds >= best_.step_seconds * (1 - kWorthwhile)) return false;
    best_ = std::move(plan);
    return true;
  }

  bool gathers() const { return input_.train->get({}).shards_parameters(1); }
  int32_t layers() const { return input_.train->get({}).graph.layers; }

  // Deeper rings hide more; shallower ones make room.
  std::vector<Move> ring_moves() const {
    std::set<std::string> streamed;
    for (const auto& [key, where] : best_.placement.where)
      if (where == Where::host) streamed.insert(key.first);
    std::vector<Move> moves;
    for (const std::string& place : streamed)
      for (const int32_t by : {1, -1}) {
        const int32_t slots = best_.placement.slots_of(place) + by;
        if (slots >= 1 && (by < 0 || slots <= kMostSlots))
          moves.push_back({{}, {{place, slots}}, {}});
      }
    return moves;
  }

  std::vector<Move> order_moves() const {
    std::vector<Move> moves;
    if (space_.several_ranks) {
      Move move;
      move.reduce_delay = 1 - best_.schedule.reduce_delay;
      moves.push_back(move);
      if (gathers()) {
        move.gather_ahead = 1 - best_.schedule.gather_ahead;
        moves.push_back(move);
        move.reduce_delay = -1;
        moves.push_back(move);
      }
    }
    Move all, none;
    for (int32_t layer = 0; layer <= layers() + 1; ++layer) {
      all.updates.push_back({layer, UpdatePosition::rotated});
      none.updates.push_back({layer, UpdatePosition::end});
    }
    moves.push_back(all);
    moves.push_back(none);
    return moves;
  }

  // Between the device and the host: all layers' updates, and a share of those that are not there.
  std::vector<Move> host_moves() const {
    std::vector<Move> moves;
    if (!host_updates_) return moves;
    const auto add = [&](UpdatePosition to, int32_t part, bool (*moved)(UpdatePosition)) {
      Move move;
      for (int32_t layer = 0, k = 0; layer <= layers() + 1; ++layer)
        if (moved(best_.schedule.position(layer)) && k++ % part == 0)
          move.updates.push_back({layer, to});
      if (!move.updates.empty()) moves.push_back(std::move(move));
    };
    const auto any = [](UpdatePosition) { return true; };
    const auto there = [](UpdatePosition p) { return ScheduleChoice::on_host(p); };
    const auto not_there = [](UpdatePosition p) { return !ScheduleChoice::on_host(p); };
    for (const UpdatePosition to : {UpdatePosition::host_rotated, UpdatePosition::host})
      add(to, 1, any);
    for (const int32_t part : {2, 4}) {
      for (const UpdatePosition to : {UpdatePosition::host_rotated, UpdatePosition::host})
        add(to, part, not_there);
      for (const UpdatePosition to : {UpdatePosition::rotated, UpdatePosition::end})
        add(to, part, there);
    }
    return moves;
  }

  std::vector<Move> update_moves() const {
    std::vector<Move> moves;
    for (int32_t layer = 0; layer <= layers() + 1; ++layer)
      moves.push_back({{},
                       {},
                       {{layer, best_.schedule.rotates(layer) ? UpdatePosition::end
                                                              : UpdatePosition::rotated}}});
    return moves;
  }

  // `count` of the units of a group that are at `from`, evenly over its layers, to `to`.
  Move move_of(const Group& group, Where from, Where to, int64_t count) const {
    std::vector<const PlaceUnit*> there;
    for (const PlaceUnit& unit : group.units)
      if (best_.placement.where.at(unit.key) == from) there.push_back(&unit);
    const auto all = static_cast<int64_t>(there.size());
    Move move;
    for (int64_t i = 0; i < std::min(count, all); ++i)
      move.places.push_back({there[(2 * i + 1) * all / (2 * std::min(count, all))]->key, to});
    return move;
  }

  int64_t count_at(const Group& group, Where where) const {
    return std::count_if(group.units.begin(), group.units.end(), [&](const PlaceUnit& unit) {
      return best_.placement.where.at(unit.key) == where;
    });
  }

  // What fits into memory that is left over comes to the device.
  std::vector<Move> fill_moves() const {
    const int64_t left = budgets_.device - best_.device.peak;
    std::vector<Move> moves;
    for (const Group& group : space_.groups)
      for (const Where from : {Where::host, Where::recompute}) {
        int64_t most = 1;
        for (const PlaceUnit& unit : group.units) most = std::max(most, unit.bytes);
        Move move = move_of(group, from, Where::device, left / most);
        if (!move.places.empty()) moves.push_back(std::move(move));
      }
    return moves;
  }

  // A share of a name's layers at once: what one layer alone does not pay for.
  std::vector<Move> share_moves() const {
    std::vector<Move> moves;
    for (const int64_t part : {1, 2, 4})
      for (const Group& group : space_.groups) {
        if (group.units.size() < 2) continue;
        for (const Where from : group.choices)
          for (const Where to : group.choices) {
            const int64_t count = count_at(group, from) / part;
            if (from == to || count < (part == 1 ? 1 : 2)) continue;
            moves.push_back(move_of(group, from, to, count));
          }
      }
    return moves;
  }

  std::vector<Move> unit_moves() const {
    std::vector<Move> moves;
    for (const Group& group : space_.groups)
      for (const PlaceUnit& unit : group.units)
        for (const Where where : group.choices)
          if (where != best_.placement.where.at(unit.key)) moves.push_back({{{unit.key, where}}});
    return moves;
  }

  // One unit comes to the device, another of at least its size leaves it.
  std::vector<Move> swap_moves() const {
    std::vector<Move> moves;
    for (const Group& in : space_.groups)
      for (const PlaceUnit& unit : in.units) {
        if (best_.placement.where.at(unit.key) == Where::device) continue;
        for (const Group& out : space_.groups) {
          if (&in == &out) continue;
          const PlaceUnit* leaves = nullptr;
          for (const PlaceUnit& other : out.units)
            if (best_.placement.where.at(other.key) == Where::device && other.bytes >= unit.bytes)
              leaves = &other;
          if (leaves == nullptr) continue;
          for (const Where where : out.choices)
            if (where != Where::device)
              moves.push_back({{{unit.key, Where::device}, {leaves->key, where}}});
        }
      }
    return moves;
  }

  static constexpr double kWorthwhile = 1e-6;

  const SearchSpace& space_;
  const PlanInput& input_;
  Plan best_;
  Budgets budgets_;
  int left_ = 0;
  bool host_updates_ = false;
};

}  // namespace

Plan improved(const SearchSpace& space, Plan start, const Budgets& budgets, int evaluations,
              bool host_updates) {
  return Improvement(space, std::move(start), budgets, evaluations, host_updates).run();
}

}  // namespace spillway
