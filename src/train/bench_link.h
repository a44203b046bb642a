// Copies and a GEMM on a device, alone and together, by a program made for it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device.h"
#include "train/session.h"

namespace spillway {

struct LinkRates {
  double h2d = 0, d2h = 0;            // bytes/s, each way alone
  double h2d_both = 0, d2h_both = 0;  // both ways at once
  double h2d_gemm = 0, d2h_gemm = 0;  // both ways while a GEMM runs all the time
  double gemm = 0, gemm_copies = 0;   // FLOP/s alone, and while both ways copy
  int64_t size = 0;                   // the GEMM's m, n and k
  int64_t copy_bytes = 0;             // of one copy
  // The GEMM's result had the same bits from other addresses and under concurrent copies.
  bool gemm_bits_same = false;
  // Device memory in use beside the arena after each phase of start-up, and after everything ran.
  std::vector<std::pair<std::string, int64_t>> foreign;
};

// Starts a device of its own, for which no other may hold the memory. Best of `repeat` rounds.
LinkRates measure_link(const Workload& workload, Communicator& communicator,
                       const BackendChoice& backend, Dtype dtype, int64_t repeat);

}  // namespace spillway
