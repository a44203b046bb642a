#include "base/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace spillway {

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_64bits_reset(state_->xxh); }
Hasher::~Hasher() = default;
void Hasher::bytes(const void* data, size_t size) { XXH3_64bits_update(state_->xxh, data, size); }
uint64_t Hasher::digest() const { return XXH3_64bits_digest(state_->xxh); }

uint64_t hash_bytes(const void* data, size_t size) { return XXH3_64bits(data, size); }
std::string hex(uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace spillway
