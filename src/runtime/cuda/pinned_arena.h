// The host tier of the CUDA backend: one range of addresses, bound to the device's NUMA node,
// touched and pinned piece by piece.
#pragma once

#include <functional>
#include <string>

#include "runtime/arena.h"
#include "runtime/cuda/cuda_error.h"

namespace spillway::cuda {

struct PinnedOptions {
  // One pinned piece: drivers refuse single pieces that are too large. A multiple of 2 MiB.
  int64_t chunk_bytes = int64_t{1} << 30;
  double quiet_seconds = 2;  // before the first line of progress, and between lines
};

// Never grows; pinned bytes are those asked for, rounded up to 2 MiB and a page of alignment.
class PinnedArena {
 public:
  PinnedArena() = default;
  ~PinnedArena();  // unpins, unless `leak` was called

  // Once. `device` is the one whose NUMA node the pages go to. Throws Error(does_not_fit) that
  // names bytes, limits and the setting.
  // Progress, if it takes long, and pages that cannot be bound are told through `say`, if set.
  void reserve(int64_t bytes, int device, const PinnedOptions& options, const Place& place,
               const std::function<void(const std::string&)>& say);
  char* begin() const { return arena_.begin(); }
  bool contains(const void* data, int64_t bytes) const { return arena_.contains(data, bytes); }
  int64_t bytes() const { return arena_.bytes(); }
  // One copy must not cross the border of two pinned pieces: bytes from `data` up to the next one.
  int64_t to_border(const void* data) const;
  void leak() { leaked_ = true; }

 private:
  Arena arena_;
  int64_t chunk_ = 0, pinned_ = 0;  // bytes pinned, from pages_begin()
  bool leaked_ = false;
};

}  // namespace spillway::cuda
