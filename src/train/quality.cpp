#include "train/quality.h"

#include "base/error.h"

namespace spillway {

CertificateInput certificate_input(const PlanInput& input, const std::vector<int32_t>& zero) {
  CertificateInput result;
  result.train = input.train;
  result.evaluate = input.evaluate;
  result.zero = zero;
  result.profile = input.profile;
  result.ranks_on_node = input.ranks_on_node;
  result.offload = input.offload;
  result.recompute = input.recompute;
  result.pins = placement_of_pins(input).where;
  result.updates = updates_of_pins(input);
  result.rules = input.rules;
  result.staging_bytes = input.staging_bytes;
  result.bf16 = input.bf16;
  return result;
}

bool within(const Plan& plan, const Budgets& budgets) {
  return plan.device.peak <= budgets.device && plan.host.peak <= budgets.host;
}

double check_proof(const PlanInput& input, const Plan& plan, const QualityProof& proof,
                   const std::string& origin) {
  if (!within(plan, proof.budgets))
    bad_input(
        "{}: the plan needs {} of device and {} of host memory, its certificate is for {} and {}; "
        "plan again with train plan --out",
        origin, format_bytes(plan.device.peak), format_bytes(plan.host.peak),
        format_bytes(proof.budgets.device), format_bytes(proof.budgets.host));
  return check_quality(certificate_input(input, plan.schedule.zero), proof, plan.step_seconds,
                       origin);
}

}  // namespace spillway
