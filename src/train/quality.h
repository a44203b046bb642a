// What the verifier is told of a run to check a plan's claim to be near the best.
#pragma once

#include "plan/plan.h"
#include "verify/certificate.h"

namespace spillway {

// Of plans with these ZeRO stages by layer (ScheduleChoice::zero).
CertificateInput certificate_input(const PlanInput& input, const std::vector<int32_t>& zero = {});

bool within(const Plan& plan, const Budgets& budgets);

// The seconds that `proof` proves no plan within its budgets to beat. Throws bad_input, with
// `origin` in front, where it does not prove what it claims, or where `plan` needs more memory or
// takes less time than that.
double check_proof(const PlanInput& input, const Plan& plan, const QualityProof& proof,
                   const std::string& origin);

}  // namespace spillway
