#include "runtime/backend.h"

#include <vector>

#include "base/error.h"

namespace spillway {
namespace {

struct Probe {
  int32_t usable = 0;
  char reason[508] = {};
};

// What the lowest rank without a device says, or "" if all have one.
std::string first_refusal(Communicator& communicator) {
  Probe own;
  const std::string reason = cuda_backend()->unavailable();
  own.usable = reason.empty();
  reason.copy(own.reason, sizeof own.reason - 1);
  std::vector<Probe> all(static_cast<size_t>(communicator.size()));
  communicator.gather(&own, sizeof own, all.data());
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r].usable)
      return all.size() == 1 ? all[r].reason : fmt::format("on rank {}, {}", r, all[r].reason);
  return "";
}

}  // namespace

BackendChoice choose_backend(Backend wanted, Communicator& communicator) {
  if (wanted == Backend::cpu) return {};
  if (cuda_backend() == nullptr) {
    if (wanted == Backend::automatic) return {};
    bad_input(
        "hardware.backend: \"cuda\", but this build has no CUDA backend: it was built without the "
        "CUDA toolkit; expected \"cpu\" or \"auto\", or a build made where nvcc is");
  }
  std::string refusal = first_refusal(communicator);
  if (refusal.empty()) {
    try {
      return {.cuda = true, .device = cuda_backend()->assign_device(communicator)};
    } catch (const Error& e) {  // thrown alike on all ranks
      if (wanted == Backend::cuda) throw;
      refusal = e.what();
    }
  }
  if (wanted == Backend::automatic)
    return {.note = fmt::format("training on the CPU backend: {}", refusal)};
  bad_input("hardware.backend: \"cuda\", but {}; expected \"cpu\" or \"auto\" here", refusal);
}

HardwareProfile profile_for(const BackendChoice& choice, const HardwareConfig& config,
                            Communicator& communicator) {
  if (!choice.cuda) {
    HardwareConfig cpu = config;
    cpu.backend = Backend::cpu;
    return load_profile(cpu);
  }
  if (config.profile != "auto") {
    const HardwareProfile profile = load_profile(config);
    if (profile.kind != "cuda")
      bad_input(
          "hardware.profile: \"{}\" describes a device of kind \"{}\", and this run is on CUDA; "
          "expected \"auto\" or a CUDA profile of configs/hardware/ (or hardware.backend \"cpu\")",
          config.profile, profile.kind);
    return profile;
  }
  // Rank 0's for all: a placement must not depend on the rank that asks.
  HardwareProfile profile = cuda_backend()->derive_profile(choice.device);
  profile.name = communicator.broadcast_text(profile.name, 0);
  struct Numbers {
    int64_t device_bytes, reserve_bytes;
    double peak_f32, peak_bf16, memory_bandwidth;
  } n{profile.device_bytes, profile.reserve_bytes, profile.peak_f32, profile.peak_bf16,
      profile.memory_bandwidth};
  communicator.broadcast(&n, sizeof n, 0);
  profile.device_bytes = n.device_bytes;
  profile.reserve_bytes = n.reserve_bytes;
  profile.peak_f32 = n.peak_f32;
  profile.peak_bf16 = n.peak_bf16;
  profile.memory_bandwidth = n.memory_bandwidth;
  profile.devices_per_node = config.devices_per_node > 0 ? static_cast<int>(config.devices_per_node)
                                                         : communicator.ranks_on_node();
  if (config.link > 0) set_link(profile, config.link);
  return profile;
}

}  // namespace spillway
