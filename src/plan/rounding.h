// Internal to the planner: from fractions to layers.
#pragma once

#include "plan/bound_lp.h"
#include "plan/search.h"

namespace spillway {

// Every unit gets one place: of a name, as many layers as the fractions say in sum, spread evenly
// and out of step with other names', so that the links' work is even over the layers. Rotated
// updates likewise. `aid`: what the program was made with.
Candidate rounded(const StepModel& model, const BoundLp& lp, const std::vector<double>& columns,
                  const RoundingAid& aid);

}  // namespace spillway
