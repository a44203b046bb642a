// Host memory of one tier: anonymous memory in huge pages, touched before the first step, between
// two guards.
#pragma once

#include <cstdint>

namespace spillway {

// [begin(), begin() + bytes) is readable and writable and zero; begin() is 256-byte aligned, and
// the end, rounded up to 256 bytes, is the first byte of a page that faults. Neither copied nor
// moved.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Once. `tier` is for messages. Throws Error(does_not_fit) with tier, bytes and limit.
  void reserve(const char* tier, int64_t bytes);

  // The two halves of `reserve`, for who binds pages to a NUMA node or pins them in between: `map`
  // only takes addresses; `touch` brings pages_begin() + [from, to) into memory, in parallel.
  void map(const char* tier, int64_t bytes);
  void touch(int64_t from, int64_t to) const;
  char* pages_begin() const { return pages_; }     // 2 MiB aligned, at or below begin()
  int64_t pages_bytes() const { return usable_; }  // a multiple of 2 MiB, up to the guard

  bool reserved() const { return mapping_ != nullptr; }
  char* begin() const { return begin_; }
  int64_t bytes() const { return bytes_; }
  bool contains(const void* data, int64_t size) const {
    const char* p = static_cast<const char*>(data);
    return size >= 0 && size <= bytes_ && p >= begin_ && p <= begin_ + (bytes_ - size);
  }

 private:
  void* mapping_ = nullptr;
  int64_t mapped_ = 0;
  char* pages_ = nullptr;
  int64_t usable_ = 0;
  char* begin_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace spillway
