#include "train/quality.h"

namespace spillway {

CertificateInput certificate_input(const PlanInput& input) {
  CertificateInput result;
  result.train = input.train;
  result.evaluate = input.evaluate;
  result.profile = input.profile;
  result.offload = input.offload;
  result.recompute = input.recompute;
  result.pins = placement_of_pins(input).where;
  result.rules = input.rules;
  result.staging_bytes = input.staging_bytes;
  result.bf16 = input.bf16;
  return result;
}

}  // namespace spillway
