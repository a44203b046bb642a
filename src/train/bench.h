// `train bench`: figures for the README, taken as ratios within one run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace spillway {

struct BenchOptions {
  std::string what;    // see below
  std::string config;  // all but gemm; default configs/runs/gpt2-124m-bench.json
  std::vector<std::string> set;
  int64_t repeat = 5;
  std::string only;    // planner, claims: what names must contain
  int64_t cases = 30;  // predict
  uint64_t seed = 1;   // predict
  std::string json;    // device: file for what was measured, or ""
};

// gemm:    GFLOP/s of packed matrix products on three large shapes, ours beside oneDNN's.
// step:    median step time of a config, GFLOP/s, and the share of the best GEMM of the same run.
// overlap: the link paced so that a step's copies, both ways together, take 60 % of the
// all-resident
//          step; activations and moments stream. Step time against all-resident, interleaved, and
//          the share of copy seconds that ran under compute.
// device:  what a hardware profile says of the device, measured (bench_device.h).
// predict: planned beside measured step times of random configs (bench_predict.h).
// checkpoint: what saving costs (bench_checkpoint.h).
// planner, claims: how good plans are (bench_planner.h).
// Throws Error(bad_input) for another word.
ExitCode bench_command(const BenchOptions& options);

}  // namespace spillway
