// Sees every memory access of a kernel (tsan_hooks.cpp) and checks it: bounds, alignment, bytes
// that nothing wrote, and races between the threads and blocks of the launch. What the launch
// touched goes to history.h at its end, where it is ordered against other work.
//
// For every byte the last write and the last reads are kept as a Cell. Two accesses of one launch
// are ordered if one thread made both, if a barrier of their block lies between, or a __syncwarp of
// their warp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway::emulated::shadow {

void begin_kernel(unsigned char* shared, size_t shared_bytes);
void end_kernel();
void begin_block();
void barrier_passed();
void warp_synchronised(unsigned warp);

// Accesses of the running thread; nothing happens outside kernels. `code` names the source line.
void read(const void* p, size_t bytes, const void* code);
void write(const void* p, size_t bytes, const void* code);
void atomic(const void* p, size_t bytes, const void* code);  // ordered among themselves
// On behalf of another lane of the running warp.
void read_for_lane(unsigned lane, const void* p, size_t bytes, const void* code);

// cp.async: until it ends, the bytes of shared memory belong to nobody.
void begin_copy(void* shared, size_t bytes, const void* code);
void end_copy(void* shared, size_t bytes, const void* code);

}  // namespace spillway::emulated::shadow
