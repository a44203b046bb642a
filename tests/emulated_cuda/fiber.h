// Stacks of their own for the threads of a block, and the switch between them (under 10 ns; the
// library's ucontext makes system calls).
#pragma once

#include <cstddef>

namespace spillway::emulated {

// Saves the callee-saved registers and the stack pointer of the running fiber in `*from`, and
// continues the fiber whose stack pointer is `to`.
extern "C" void spillway_switch_fiber(void** from, void* to);

class FiberStacks {
 public:
  static constexpr size_t kBytes = 128 << 10;
  // Stack pointer of a fiber that will start in `entry`, which never returns; it lives in place
  // `index` until that is prepared again.
  void* prepare(size_t index, void (*entry)());

 private:
  unsigned char* memory_ = nullptr;
};

}  // namespace spillway::emulated
