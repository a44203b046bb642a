// The layer between the emulated CUDA libraries and the checker: work on streams, executed in a
// random legal order, whose accesses the checker sees. cuBLASLt and NCCL are built on it as the
// runtime's own copies and launches are.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tests/emulated_cuda/declared.h"

namespace spillway::emulated {

struct Work {
  std::string name;  // of the call; the instruction of the innermost NVTX range is put before it
  // Runs when everything before it on its stream has run. It declares its accesses as it makes
  // them (reads, writes below). Calls no CUDA function.
  std::function<void()> run;
  // If set: whether `run` can go on without blocking, e.g. because its peers have arrived. Polled
  // often, by any thread, and must not block.
  std::function<bool()> ready;
  // Nothing inside this process can make it ready, so that a wait for it is no deadlock.
  bool waits_for_peers = false;
  std::shared_ptr<const declared::Ranges> declared = nullptr;  // set by enqueue
  const void* code = nullptr;  // of a kernel; reports add its source line to the name
};

// Puts work at the end of a stream (nullptr: the legacy default stream). Returns its number.
uint64_t enqueue(cudaStream_t stream, Work work);

// Declares what the running work reads or writes: checks bounds, that what is read was written, and
// the order against other streams. `reads` before the bytes are looked at, `writes` at any time.
// Both take device pointers and pinned host pointers; pageable memory is not checked.
void reads(const void* p, size_t bytes);
void writes(const void* p, size_t bytes);
// The same for `rows` pieces of `bytes`, `pitch` bytes apart.
void reads(const void* p, size_t bytes, size_t rows, size_t pitch);
void writes(const void* p, size_t bytes, size_t rows, size_t pitch);

// Moves bytes between any two kinds of memory, with the declarations that belong to it. Padding
// that nothing wrote stays unwritten at its target. False: reported, nothing moved.
bool copy(void* to, const void* from, size_t bytes);

// Where the running work finds the bytes of `p`: pinned host memory may be protected against the
// host while work is under way, so it is reached by a second mapping. Other pointers: themselves.
void* view_of(const void* p);

// Guards one call of an emulated library: takes the lock, lets the device make some progress, and
// fails if the environment asks for an error at this call (see faults.h).
class Call {
 public:
  explicit Call(const char* name);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  // True: return an error of the library's own kind, having done nothing.
  bool fails() const { return fails_; }
  // Runs work until done() holds; the lock is released while only peers can make progress. `what`
  // names the wait if nothing can ever end it.
  void wait_until(const std::function<bool()>& done, const char* what);

 private:
  bool fails_;
};

}  // namespace spillway::emulated
