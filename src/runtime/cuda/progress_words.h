// One word a lane in pinned memory that the device itself advances, and the instructions behind the
// newest tickets: where a lane stands, readable from any thread without asking the driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <vector>

#include "runtime/cuda/cuda_error.h"
#include "runtime/device.h"

namespace spillway::cuda {

class ProgressWords {
 public:
  // `depth`: tickets a lane may be ahead of its word while their instructions are still known.
  ProgressWords(int lanes, int depth, const Place& place);
  ~ProgressWords();  // frees, unless `leak` was called
  ProgressWords(const ProgressWords&) = delete;
  ProgressWords& operator=(const ProgressWords&) = delete;

  // Before what `ticket` stands for is given to the stream.
  void issued(int lane, Ticket ticket, const Instr* instr);
  // Behind it: the device writes `ticket` once everything before on `stream` is done.
  void advance(int lane, Ticket ticket, cudaStream_t stream, const Place& place);

  Ticket completed(int lane) const;
  const Instr* running(int lane) const;  // behind the newest completed one; nullptr if idle
  void leak() { leaked_ = true; }

 private:
  struct alignas(64) Word {
    uint64_t value;
  };
  using WriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned int);

  int depth_;
  Word* words_ = nullptr;
  WriteValue write_value_ = nullptr;
  std::vector<std::atomic<const Instr*>> instrs_;  // by lane and ticket modulo depth
  std::vector<std::atomic<Ticket>> newest_;
  bool leaked_ = false;
};

}  // namespace spillway::cuda
