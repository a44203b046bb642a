// What the verifier is told of a run to check a plan's claim to be near the best.
#pragma once

#include "plan/plan.h"
#include "verify/certificate.h"

namespace spillway {

CertificateInput certificate_input(const PlanInput& input);

}  // namespace spillway
