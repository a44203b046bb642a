#include "base/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <cstring>

namespace spillway {

// Small values are gathered: a call of the library for each costs more than the hash.
struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  size_t held = 0;
  std::array<char, 1024> gathered;
  ~State() { XXH3_freeState(xxh); }
  void flush() {
    XXH3_64bits_update(xxh, gathered.data(), held);
    held = 0;
  }
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_64bits_reset(state_->xxh); }
Hasher::~Hasher() = default;

void Hasher::bytes(const void* data, size_t size) {
  State& s = *state_;
  if (size > s.gathered.size() - s.held) s.flush();
  if (size > s.gathered.size()) {
    XXH3_64bits_update(s.xxh, data, size);
    return;
  }
  if (size > 0) std::memcpy(s.gathered.data() + s.held, data, size);
  s.held += size;
}

uint64_t Hasher::digest() const {
  state_->flush();
  return XXH3_64bits_digest(state_->xxh);
}

uint64_t hash_bytes(const void* data, size_t size) { return XXH3_64bits(data, size); }
std::string hex(uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace spillway
