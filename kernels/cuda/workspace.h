// An op's workspace, taken piece by piece in the order and sizes of its formula (graph/ops).
#pragma once

#include <cstdint>

#include "graph/kernel_abi.h"

namespace spillway::cuda {

class Workspace {
 public:
  Workspace(const char* op, const KernelArgs& args)
      : op_(op), at_(static_cast<char*>(args.workspace)), left_(args.workspace_bytes) {}

  // `bytes` from a multiple of 256 on. Throws Error(internal) if the formula gave too few.
  void* take(int64_t bytes);
  template <class T>
  T* take_array(int64_t count) {
    return static_cast<T*>(take(count * static_cast<int64_t>(sizeof(T))));
  }

 private:
  const char* op_;
  char* at_;
  int64_t left_;
};

}  // namespace spillway::cuda
