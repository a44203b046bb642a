// `train bench planner` and `train bench claims`: how good plans are, by their own certificates. No
// device is needed, and but for planning times the output depends on this code and the profiles
// alone.
#pragma once

#include <string>

namespace spillway {

// Models from GPT-2 124M to GPT-3 175B on 1 to 4,096 devices of every profile, each at several
// budgets from its minimum to all resident: step, bound, gap and planning time. `only`: cases whose
// name contains it.
void bench_planner(const std::string& only);

// What offload buys: GPT-3 175B on 64 A100 80 GB, and Llama-3 8B on one H200, by tokens a step,
// link and device memory, against the fastest plan without offload. `only`: tables whose heading
// contains it, and rows whose "TOKENS LINK" does ("64k 25GB/s"). Returns the tables.
std::string claims_tables(const std::string& only);

}  // namespace spillway
