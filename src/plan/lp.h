// Internal to the planner: a sparse linear program, minimised by COIN-OR CLP. Rows and columns are
// in natural units; `scale` tells what one of the solver's units is, so that its tolerances fit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace spillway {

struct LpColumn {
  double lower = 0, upper = 0, cost = 0;
  double scale = 1;
};

using LpTerms = std::vector<std::pair<int32_t, double>>;  // column, coefficient
LpTerms merged(LpTerms terms);                            // one term a column

struct LpRow {
  std::string name;
  double lower = 0, upper = 0;  // ±infinity: none
  double scale = 1;
  LpTerms terms = {};
};

struct Lp {
  std::vector<LpColumn> columns;
  std::vector<LpRow> rows;
};

struct LpSolution {
  bool feasible = false;
  double objective = 0;
  std::vector<double> columns, duals;  // of an infeasible program: a ray that proves it, or nothing
};

// Keeps the solver's state, so that a program much like another can begin at its solution.
class LpSolver {
 public:
  // Where a solution stands, by column and row.
  using Basis = std::vector<unsigned char>;

  explicit LpSolver(const Lp& lp);
  ~LpSolver();
  LpSolver(const LpSolver&) = delete;
  LpSolver& operator=(const LpSolver&) = delete;

  LpSolution solve();
  Basis basis() const;  // after solve()
  // Begins at the solution of a program of the same columns and rows; no other solution is found,
  // unless several are best.
  void start_from(const Basis& basis);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The least objective that `duals` (by row) prove: any vector proves some bound, since every column
// has finite bounds. Signs that no multiplier of a row can have count as zero.
double dual_bound(const Lp& lp, const std::vector<double>& duals);

}  // namespace spillway
