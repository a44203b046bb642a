// Checks what a plan says of its own quality: that no plan within the budgets is faster than its
// bound. The linear programs are derived here again, from the schedules and the hardware profile,
// with code of the verifier's own; the plan's multipliers are tried on them, and prove what they
// prove. No solver is needed, and none is linked.
//
// Minimise Σ times · seconds of the intervals of a step (step_work.h). Rows, by name:
// - "place", "pin": every unit is kept, streamed or recomputed, its update at the end or rotated,
// on
//   the device or the host;
// - "repeat": what is recomputed is repeated, with what that needs;
// - "compute": an interval takes at least its compute;
// - "… fetched ahead", "… to be written back", "… return", "… leave": what is needed in an interval
//   has been fetched by its end, what is made leaves afterwards, and by the end of the step;
// - "… in rings", "slot of …": bytes on their way stand in rings;
// - "gradients for …", "CPU work of …", "parameters of …": updates on the host take gradients there
//   once they are complete, and bring parameters back before the step's end, or before they are
//   read in the next step; "CPU": its processors move no more in an interval than they can;
// - "h2d", "d2h", "communication": no lane moves more in an interval than the time that it takes;
// - "shared …": nor do all lanes together through what they share. "bytes …", "node bytes …" and
//   "network bytes …" say of bytes without start-up time, which take nothing of what is shared,
//   when they are needed and made and where they stand;
// - "device memory", "host memory".
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/hardware.h"
#include "graph/op.h"
#include "parallel/build.h"
#include "program/certificate.h"
#include "program/placement.h"

namespace spillway {

// What is known of a run without the planner.
struct CertificateInput {
  const TrainSchedules* train = nullptr;
  const ForwardSchedules* evaluate = nullptr;  // nullptr: no evaluation
  std::vector<int32_t> zero;                   // ScheduleChoice::zero of all plans in question
  HardwareProfile profile;
  int ranks_on_node = 1;
  Mode offload = Mode::automatic, recompute = Mode::automatic;
  std::map<PlaceKey, Where> pins;
  std::map<int32_t, UpdatePosition> updates;  // that are pinned, by layer
  WorkspaceRules rules;
  int64_t staging_bytes = 0;  // host bytes for checkpoints
  bool bf16 = false;
};

// The linear program of one group size. Every column is bounded on both sides.
struct CertificateColumn {
  double low = 0, high = 0, cost = 0;
};
struct CertificateRow {
  std::string name;
  double low = 0, high = 0;  // ±infinity: none
  std::vector<std::pair<int32_t, double>> terms;
};
struct CertificateProgram {
  std::vector<CertificateColumn> columns;
  std::vector<CertificateRow> rows;
};

// `horizon`: seconds that no interval of interest exceeds.
CertificateProgram certificate_program(const CertificateInput& input, int32_t group, int32_t blocks,
                                       const Budgets& budgets, double horizon);

// Seconds that the multipliers prove, infinite if they prove that nothing within the columns'
// bounds obeys all rows. Throws bad_input, naming group and row, for a row that the program does
// not have or that is named twice, a multiplier that is not finite or has a sign that the row's
// multiplier cannot have.
double proven_seconds(const CertificateProgram& program, const Certificate& certificate);

// The least of what the proof's certificates prove, one for each group size that the run allows.
// `step_seconds`: what the plan takes by the simulator; nothing slower is of interest. Throws
// bad_input, with `origin` in front, for a certificate that is missing, repeated, or not valid, for
// a claim above what is proven (by more than 1e-6 of it), and for a plan that is faster than the
// claim.
double check_quality(const CertificateInput& input, const QualityProof& proof, double step_seconds,
                     const std::string& origin);

}  // namespace spillway
