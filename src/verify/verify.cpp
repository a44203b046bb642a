#include "verify/verify.h"

#include <algorithm>

#include "base/error.h"
#include "verify/passes.h"

namespace spillway {

std::string describe(const Finding& f) {
  std::string text = f.what;
  if (!f.program.empty()) text += fmt::format("; program \"{}\"", f.program);
  if (!f.instr.empty()) text += fmt::format("; instruction \"{}\"", f.instr);
  if (!f.other.empty()) text += fmt::format(" against \"{}\"", f.other);
  if (!f.buffer.empty()) text += fmt::format("; buffer \"{}\"", f.buffer);
  if (f.begin != f.end) text += fmt::format("; bytes [{}, {})", f.begin, f.end);
  return text;
}

std::vector<Finding> verify(const ProgramSet& set, const ArenaLayout& layout,
                            const Limits& limits) {
  verify_detail::Report report;
  if (!verify_detail::check_structure(set, layout, report)) return report.findings;
  verify_detail::check_layout(set, layout, limits, report);
  verify_detail::check_instructions(set, layout, report);
  for (const Program& program : set.programs) verify_detail::check_waits(program, report);
  verify_detail::check_hazards(set, layout, report);
  return report.findings;
}

namespace verify_detail {

void Report::add(Finding finding) {
  if (full()) return;
  const bool known = std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
    return f.what == finding.what && f.program == finding.program && f.instr == finding.instr &&
           f.other == finding.other && f.buffer == finding.buffer;
  });
  if (!known) findings.push_back(std::move(finding));
}

}  // namespace verify_detail
}  // namespace spillway
