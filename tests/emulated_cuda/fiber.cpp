#include "fiber.h"

#include <sys/mman.h>

#include "report.h"

#if !defined(__x86_64__)
#error "the fiber switch is written for x86-64"
#endif

asm(R"(
.text
.globl spillway_switch_fiber
.type spillway_switch_fiber,@function
spillway_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size spillway_switch_fiber,.-spillway_switch_fiber
)");

namespace spillway::emulated {

void* FiberStacks::prepare(size_t index, void (*entry)()) {
  constexpr size_t kThreads = 1024;  // of a block
  if (!memory_) {
    void* reserved = mmap(nullptr, kThreads * kBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) give_up("no address space for the stacks of a block");
    memory_ = static_cast<unsigned char*>(reserved);
    constexpr size_t kGuard = 4096;  // a kernel that needs more stack faults
    for (size_t i = 0; i < kThreads; ++i) mprotect(memory_ + i * kBytes, kGuard, PROT_NONE);
  }
  // Equal offsets in all stacks would fall into the same few cache sets.
  constexpr size_t kColours = 37, kStride = 64;
  unsigned char* top = memory_ + (index + 1) * kBytes - kStride * (index % kColours);
  void** stack = reinterpret_cast<void**>(top);
  *--stack = nullptr;  // the return address of `entry`; keeps the stack aligned as after a call
  *--stack = reinterpret_cast<void*>(entry);
  return stack - 6;  // registers that the switch pops
}

}  // namespace spillway::emulated
