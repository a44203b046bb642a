// 64-bit xxHash (XXH3), streaming, for plans, checkpoints, weights and token streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

namespace spillway {

class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void bytes(const void* data, size_t size);
  void text(std::string_view s) {
    value(s.size());
    bytes(s.data(), s.size());
  }
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void value(T v) { bytes(&v, sizeof v); }
  uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

uint64_t hash_bytes(const void* data, size_t size);
std::string hex(uint64_t hash);  // 16 lower-case digits

}  // namespace spillway
