#include "verify/certificate.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"

namespace spillway {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Multipliers by row.
std::vector<double> by_row(const CertificateProgram& program, const Certificate& certificate) {
  std::map<std::string, size_t> rows;
  for (size_t r = 0; r < program.rows.size(); ++r)
    if (!rows.try_emplace(program.rows[r].name, r).second)
      internal_error("the verifier's program has two rows \"{}\"", program.rows[r].name);
  std::vector<double> result(program.rows.size(), 0);
  std::set<std::string> named;
  const int32_t group = certificate.group;
  for (const auto& [name, value] : certificate.multipliers) {
    const auto row = rows.find(name);
    if (row == rows.end())
      bad_input("the certificate of group {} names a row \"{}\" that this run does not have", group,
                name);
    if (!named.insert(name).second)
      bad_input("the certificate of group {} names the row \"{}\" twice", group, name);
    if (!std::isfinite(value))
      bad_input("the certificate of group {} multiplies the row \"{}\" by {}; expected a number",
                group, name, value);
    const CertificateRow& r = program.rows[row->second];
    if (value != 0 && std::isinf(value > 0 ? r.low : r.high))
      bad_input("the certificate of group {} multiplies the row \"{}\" by {}, which must not be {}",
                group, name, value, value > 0 ? "above 0" : "below 0");
    result[row->second] = value;
  }
  return result;
}

struct Dual {
  double value = 0;
  double largest = 0;  // of the terms that make it up, for what rounding may do
};

// Σ multipliers · sides + the least of (costs - multipliers · rows) over the columns' bounds.
Dual dual(const CertificateProgram& program, const std::vector<double>& multipliers, bool costs) {
  std::vector<double> reduced;
  for (const CertificateColumn& c : program.columns) reduced.push_back(costs ? c.cost : 0);
  Dual result;
  const auto add = [&](double term) {
    result.value += term;
    result.largest = std::max(result.largest, std::abs(term));
  };
  for (size_t r = 0; r < program.rows.size(); ++r) {
    const CertificateRow& row = program.rows[r];
    const double y = multipliers[r];
    if (y == 0) continue;
    add(y * (y > 0 ? row.low : row.high));
    for (const auto& [column, factor] : row.terms) reduced[column] -= y * factor;
  }
  for (size_t c = 0; c < program.columns.size(); ++c)
    add(std::min(reduced[c] * program.columns[c].low, reduced[c] * program.columns[c].high));
  return result;
}

}  // namespace

double proven_seconds(const CertificateProgram& program, const Certificate& certificate) {
  const std::vector<double> multipliers = by_row(program, certificate);
  // Far above what adding up in doubles can lose.
  constexpr double kRounding = 1e-7;
  const Dual impossible = dual(program, multipliers, false);
  if (impossible.value > kRounding * impossible.largest) return kInfinity;
  return dual(program, multipliers, true).value;
}

double check_quality(const CertificateInput& run, const QualityProof& proof, double step_seconds,
                     const std::string& origin) {
  CertificateInput input = run;
  input.rules.threads = proof.threads;
  constexpr double kTolerance = 1e-6;  // times are in single precision where programs hold them
  std::map<int32_t, const Certificate*> of_group;
  const std::vector<int32_t> groups = group_choices(input.train->spec());
  for (const Certificate& c : proof.certificates) {
    if (std::find(groups.begin(), groups.end(), c.group) == groups.end())
      bad_input("{}: a certificate of group {}, which does not go with this config", origin,
                c.group);
    if (!of_group.try_emplace(c.group, &c).second)
      bad_input("{}: two certificates of group {}; expected one", origin, c.group);
  }
  double bound = step_seconds;
  for (const int32_t group : groups) {
    const auto found = of_group.find(group);
    if (found == of_group.end())
      bad_input("{}: the certificate of group {} is missing; plan again with train plan --out",
                origin, group);
    const Certificate& certificate = *found->second;
    double proven = 0;
    try {
      proven = proven_seconds(
          certificate_program(input, group, certificate.blocks, proof.budgets, step_seconds),
          certificate);
    } catch (const Error& e) {
      if (e.code() != ExitCode::bad_input) throw;
      bad_input("{}: {}", origin, e.what());
    }
    if (std::min(certificate.bound_seconds, step_seconds) > proven * (1 + kTolerance))
      bad_input("{}: the certificate of group {} claims {:.9g} s and proves {:.9g} s", origin,
                group, certificate.bound_seconds, proven);
    bound = std::min(bound, proven);
  }
  if (proof.bound_seconds > bound * (1 + kTolerance))
    bad_input(
        "{}: bound_seconds is {:.9g}, but the certificates prove {:.9g} of a step of {:.9g} s",
        origin, proof.bound_seconds, bound, step_seconds);
  return bound;
}

}  // namespace spillway
