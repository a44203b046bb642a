#include "plan/lp.h"

#include <coin/Clp_C_Interface.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace spillway {

struct LpSolver::State {
  Clp_Simplex* clp = Clp_newModel();
  std::vector<double> column_scale, row_scale, cost;
  double cost_scale = 0;
  bool warm = false;  // started from another program's basis
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { Clp_deleteModel(clp); }
};

namespace {

// CLP takes what is beyond this for infinite.
constexpr double kClpInfinity = std::numeric_limits<double>::max();
constexpr unsigned char kBasic = 1, kAtLowerBound = 3;  // ClpSimplex::Status

double clp_bound(double value, double scale) {
  if (std::isinf(value)) return value > 0 ? kClpInfinity : -kClpInfinity;
  return value / scale;
}

}  // namespace

LpSolver::LpSolver(const Lp& lp) : state_(std::make_unique<State>()) {
  const auto rows = static_cast<int>(lp.rows.size());
  const auto columns = static_cast<int>(lp.columns.size());
  std::vector<double> lower, upper, cost, row_lower, row_upper;
  for (const LpColumn& c : lp.columns) {
    lower.push_back(c.lower / c.scale);
    upper.push_back(c.upper / c.scale);
    cost.push_back(c.cost * c.scale);
    state_->column_scale.push_back(c.scale);
    state_->cost.push_back(c.cost);
  }
  // The solver's tolerances are absolute: the largest cost becomes one.
  for (const double c : cost) state_->cost_scale = std::max(state_->cost_scale, std::abs(c));
  if (state_->cost_scale == 0) state_->cost_scale = 1;
  for (double& c : cost) c /= state_->cost_scale;
  std::vector<CoinBigIndex> start(lp.columns.size() + 1, 0);
  for (const LpRow& r : lp.rows) {
    row_lower.push_back(clp_bound(r.lower, r.scale));
    row_upper.push_back(clp_bound(r.upper, r.scale));
    state_->row_scale.push_back(r.scale);
    for (const auto& [column, value] : r.terms) ++start[column + 1];
  }
  for (int c = 0; c < columns; ++c) start[c + 1] += start[c];
  std::vector<CoinBigIndex> at(start.begin(), start.end() - 1);
  std::vector<int> index(static_cast<size_t>(start[columns]));
  std::vector<double> element(index.size());
  for (int r = 0; r < rows; ++r)
    for (const auto& [column, value] : lp.rows[r].terms) {
      index[at[column]] = r;
      element[at[column]++] = value * lp.columns[column].scale / lp.rows[r].scale;
    }
  Clp_setLogLevel(state_->clp, 0);
  Clp_loadProblem(state_->clp, columns, rows, start.data(), index.data(), element.data(),
                  lower.data(), upper.data(), cost.data(), row_lower.data(), row_upper.data());
  Clp_scaling(state_->clp, 0);
  constexpr double kTolerance = 1e-9;
  Clp_setDualTolerance(state_->clp, kTolerance);
  Clp_setPrimalTolerance(state_->clp, kTolerance);
}

LpSolver::~LpSolver() = default;

LpSolver::Basis LpSolver::basis() const {
  const unsigned char* status = Clp_statusArray(state_->clp);
  return Basis(status, status + state_->column_scale.size() + state_->row_scale.size());
}

void LpSolver::start_from(const Basis& basis) {
  if (basis.size() != state_->column_scale.size() + state_->row_scale.size())
    internal_error("a basis of {} columns and rows is no start for {} and {}", basis.size(),
                   state_->column_scale.size(), state_->row_scale.size());
  Clp_copyinStatus(state_->clp, basis.data());
  state_->warm = true;
}

LpSolution LpSolver::solve() {
  Clp_dual(state_->clp, 0);
  const int status = Clp_status(state_->clp);
  LpSolution solution;
  const size_t rows = state_->row_scale.size();
  if (status == 1) {
    double* ray = Clp_infeasibilityRay(state_->clp);
    if (ray == nullptr && state_->warm) {  // which hides why at times; from the beginning it shows
      Basis slack(state_->column_scale.size(), kAtLowerBound);
      slack.insert(slack.end(), rows, kBasic);
      start_from(slack);
      state_->warm = false;
      return solve();
    }
    if (ray == nullptr) return solution;
    // CLP's ray has the opposite sign of a multiplier.
    for (size_t r = 0; r < rows; ++r) solution.duals.push_back(-ray[r] / state_->row_scale[r]);
    Clp_freeRay(state_->clp, ray);
    return solution;
  }
  if (status != 0) internal_error("the linear program's solver stopped with status {}", status);
  solution.feasible = true;
  const double* columns = Clp_primalColumnSolution(state_->clp);
  for (size_t c = 0; c < state_->column_scale.size(); ++c) {
    solution.columns.push_back(columns[c] * state_->column_scale[c]);
    solution.objective += solution.columns.back() * state_->cost[c];
  }
  const double* duals = Clp_dualRowSolution(state_->clp);
  for (size_t r = 0; r < rows; ++r)
    solution.duals.push_back(duals[r] * state_->cost_scale / state_->row_scale[r]);
  return solution;
}

LpTerms merged(LpTerms terms) {
  std::sort(terms.begin(), terms.end());
  LpTerms result;
  for (const auto& [column, value] : terms)
    if (!result.empty() && result.back().first == column)
      result.back().second += value;
    else
      result.push_back({column, value});
  return result;
}

double dual_bound(const Lp& lp, const std::vector<double>& duals) {
  std::vector<double> reduced;
  for (const LpColumn& c : lp.columns) reduced.push_back(c.cost);
  double bound = 0;
  for (size_t r = 0; r < lp.rows.size(); ++r) {
    const LpRow& row = lp.rows[r];
    const double y = duals[r], side = y > 0 ? row.lower : row.upper;
    if (y == 0 || std::isinf(side)) continue;
    bound += y * side;
    for (const auto& [column, value] : row.terms) reduced[column] -= y * value;
  }
  for (size_t c = 0; c < lp.columns.size(); ++c)
    bound += std::min(reduced[c] * lp.columns[c].lower, reduced[c] * lp.columns[c].upper);
  return bound;
}

}  // namespace spillway
