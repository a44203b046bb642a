// The functions that `-fsanitize=thread` makes a kernel call at every access, and those that
// `-fsanitize=alignment` makes it call at a misaligned one. The compiler's own run-time libraries
// are not linked.
#include <cstddef>
#include <cstdint>

#include "block.h"
#include "report.h"
#include "shadow.h"

// The place of the access, not of the instruction after the call.
#define CALLER (static_cast<const char*>(__builtin_return_address(0)) - 1)

namespace shadow = spillway::emulated::shadow;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define ACCESSES(bytes)                                                                   \
  void __tsan_read##bytes(void* p) { shadow::read(p, bytes, CALLER); }                    \
  void __tsan_write##bytes(void* p) { shadow::write(p, bytes, CALLER); }                  \
  void __tsan_unaligned_read##bytes(void* p) { shadow::read(p, bytes, CALLER); }          \
  void __tsan_unaligned_write##bytes(void* p) { shadow::write(p, bytes, CALLER); }        \
  void __tsan_volatile_read##bytes(void* p) { shadow::read(p, bytes, CALLER); }           \
  void __tsan_volatile_write##bytes(void* p) { shadow::write(p, bytes, CALLER); }         \
  void __tsan_unaligned_volatile_read##bytes(void* p) { shadow::read(p, bytes, CALLER); } \
  void __tsan_unaligned_volatile_write##bytes(void* p) { shadow::write(p, bytes, CALLER); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void* p, size_t bytes) { shadow::read(p, bytes, CALLER); }
void __tsan_write_range(void* p, size_t bytes) { shadow::write(p, bytes, CALLER); }

// Blocks run one at a time, so a plain operation is atomic.
#define ATOMICS(bits, T)                                                                   \
  T __tsan_atomic##bits##_load(const volatile T* p, int) {                                 \
    shadow::atomic(const_cast<T*>(p), sizeof(T), CALLER);                                  \
    return *p;                                                                             \
  }                                                                                        \
  void __tsan_atomic##bits##_store(volatile T* p, T v, int) {                              \
    shadow::atomic(const_cast<T*>(p), sizeof(T), CALLER);                                  \
    *p = v;                                                                                \
  }                                                                                        \
  T __tsan_atomic##bits##_fetch_add(volatile T* p, T v, int) {                             \
    shadow::atomic(const_cast<T*>(p), sizeof(T), CALLER);                                  \
    const T old = *p;                                                                      \
    *p = static_cast<T>(old + v);                                                          \
    return old;                                                                            \
  }                                                                                        \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* e, T v, int, int) { \
    shadow::atomic(const_cast<T*>(p), sizeof(T), CALLER);                                  \
    const T old = *p;                                                                      \
    const bool same = old == *e;                                                           \
    if (same) *p = v;                                                                      \
    *e = old;                                                                              \
    return same;                                                                           \
  }
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

// The layout that the compiler gives this data.
struct AlignmentCheck {
  const char* file;
  uint32_t line, column;
  const void* type;
  unsigned char log_alignment, kind;
};

void __ubsan_handle_type_mismatch_v1(AlignmentCheck* check, uintptr_t p) {
  using namespace spillway::emulated;
  if (!on_device) return;
  report("misaligned", CALLER, "{}: an access of alignment {} at address {:#x}; {}",
         line_of(CALLER), 1 << check->log_alignment, p, where_running());
}

}  // extern "C"
