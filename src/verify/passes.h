// The passes behind verify().
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "verify/verify.h"

namespace spillway::verify_detail {

class Report {
 public:
  bool full() const { return findings.size() >= kMaxFindings; }
  // Keeps one finding for each (what, program, instr, other, buffer).
  void add(Finding finding);

  std::vector<Finding> findings;
};

constexpr int64_t kAlignment = 256;

// Ids, trips and lists that every other pass relies on. False: some are out of range, and the
// other passes must not run.
bool check_structure(const ProgramSet& set, const ArenaLayout& layout, Report& report);
void check_layout(const ProgramSet& set, const ArenaLayout& layout, const Limits& limits,
                  Report& report);
void check_instructions(const ProgramSet& set, const ArenaLayout& layout, Report& report);
void check_waits(const Program& program, Report& report);
void check_hazards(const ProgramSet& set, const ArenaLayout& layout, Report& report);

// What the operands and the workspace of `instr` say it touches, ranges of no bytes left out.
// Appends to `out`.
void required_access(const Instr& instr, std::vector<Access>& out);

inline int32_t floor_mod(int64_t value, int32_t modulus) {
  const int64_t r = value % modulus;
  return static_cast<int32_t>(r < 0 ? r + modulus : r);
}

// Iterations after which the version of an access comes round again.
int64_t period(const Affine& version, int32_t versions);

inline const char* lane_name(Lane lane) {
  switch (lane) {
    case Lane::compute:
      return "compute";
    case Lane::h2d:
      return "h2d";
    case Lane::d2h:
      return "d2h";
    case Lane::comm:
      return "comm";
    case Lane::cpu:
      return "cpu";
    case Lane::io:
      return "io";
  }
  return "?";
}

}  // namespace spillway::verify_detail
