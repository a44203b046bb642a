// What work declares to the checker: runtime.h.
#include <cuda_runtime_api.h>

#include <string>

#include "history.h"
#include "memory.h"
#include "pinned.h"
#include "report.h"
#include "runtime.h"

namespace spillway::emulated {
namespace {

// Copies may take over the padding between neighbours; what they may not is miss a whole buffer.
constexpr uintptr_t kPadding = 256;

// The device's view of a range inside one live allocation; 0 after a report, or if pageable.
uintptr_t checked(const void* p, size_t bytes, bool writing) {
  const char* const verb = writing ? "writes" : "reads";
  uintptr_t a = address_of(p);
  if (!is_managed(a)) {
    const uintptr_t view = pinned::view_of(a);
    if (!view) return 0;
    if (bytes > pinned::bytes_from(a)) {
      report("out of bounds", nullptr, "'{}' {} {} bytes, {} from the end of pinned memory",
             history::current_name(), verb, bytes, pinned::bytes_from(a));
      return 0;
    }
    a = view;
  }
  const Allocation* near = allocation_near(a);
  if (near && !near->freed && a + bytes <= near->end()) {
    if (!declared::allows(a, bytes, writing))
      report("undeclared access", nullptr, "'{}' {} {} bytes that are no operand for that: {}",
             history::current_name(), verb, bytes, describe_address(a));
    return a;
  }
  const bool inside = near && a < near->end();
  report(inside && near->freed ? "use after free" : "out of bounds", nullptr,
         "'{}' {} {} bytes from {}: {}", history::current_name(), verb, bytes, p,
         describe_address(inside && !near->freed ? near->end() : a));
  return 0;
}

}  // namespace

void reads(const void* p, size_t bytes) {
  if (bytes == 0) return;
  const uintptr_t a = checked(p, bytes, false);
  if (!a) return;
  history::read(a, bytes);
  if (!is_device(a) || written::all(a, bytes)) return;
  written::for_each_hole(a, bytes, [](uintptr_t begin, uintptr_t end) {
    report("uninitialised", nullptr, "'{}' reads {} bytes that nothing wrote, from {} on",
           history::current_name(), end - begin, describe_address(begin));
  });
  written::set(a, bytes);
}

void writes(const void* p, size_t bytes) {
  if (bytes == 0) return;
  const uintptr_t a = checked(p, bytes, true);
  if (!a) return;
  history::write(a, bytes);
  if (is_device(a)) written::set(a, bytes);
}

void reads(const void* p, size_t bytes, size_t rows, size_t pitch) {
  if (bytes == pitch) return reads(p, bytes * rows);
  for (size_t r = 0; r < rows; ++r) reads(static_cast<const char*>(p) + r * pitch, bytes);
}

void writes(const void* p, size_t bytes, size_t rows, size_t pitch) {
  if (bytes == pitch) return writes(p, bytes * rows);
  for (size_t r = 0; r < rows; ++r) writes(static_cast<const char*>(p) + r * pitch, bytes);
}

void* view_of(const void* p) {
  const uintptr_t view = is_managed(address_of(p)) ? 0 : pinned::view_of(address_of(p));
  return view ? reinterpret_cast<void*>(view) : const_cast<void*>(p);
}

bool copy(void* to, const void* from, size_t bytes) {
  const uintptr_t source = checked(from, bytes, false);
  const uintptr_t target = checked(to, bytes, true);
  const auto managed = [](const void* p) {
    return is_managed(address_of(p)) || pinned::view_of(address_of(p)) != 0;
  };
  if ((managed(from) && !source) || (managed(to) && !target)) return false;
  if (source) history::read(source, bytes);
  if (target) history::write(target, bytes);
  if (target && is_device(target)) written::set(target, bytes);
  if (source && is_device(source))
    written::for_each_hole(source, bytes, [&](uintptr_t begin, uintptr_t end) {
      if (end - begin >= kPadding)
        report("uninitialised", nullptr, "'{}' copies {} bytes that nothing wrote, from {} on",
               history::current_name(), end - begin, describe_address(begin));
      if (target && is_device(target)) written::clear(target + (begin - source), end - begin);
    });
  __builtin_memmove(view_of(to), view_of(from), bytes);
  return true;
}

}  // namespace spillway::emulated
