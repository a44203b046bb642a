#include "train/state.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/hash.h"
#include "base/philox.h"

namespace spillway {
namespace {

constexpr int64_t kChunk = 1 << 16;  // elements on their way at once

uint16_t to_bf16(float value) {  // round to nearest even
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// The part of a parameter's state that a home holds.
enum class Part { weights, moment1, moment2 };

struct HomeOf {
  const Param* param = nullptr;
  Part part = Part::weights;
};

std::map<TensorId, HomeOf> owners(const Graph& g) {
  std::map<TensorId, HomeOf> result;
  for (const Param& p : g.params) {
    result[p.home()] = {&p, Part::weights};
    if (p.master != kNone) result[p.master] = {&p, Part::weights};
    if (p.moment1 != kNone) result[p.moment1] = {&p, Part::moment1};
    if (p.moment2 != kNone) result[p.moment2] = {&p, Part::moment2};
  }
  return result;
}

std::string stored_name(const Graph& g, const HomeOf& owner) {
  const std::string& name = g.tensors[owner.param->param].name;
  return owner.part == Part::weights ? name : name + (owner.part == Part::moment1 ? ".m" : ".v");
}

// source(owner, begin, count, out): live elements as f32.
using Source = std::function<void(const HomeOf&, int64_t, int64_t, float*)>;

void fill_homes(const Schedule& train, const std::vector<Home>& homes, Executor& executor,
                const Source& source) {
  const Graph& g = train.graph;
  const auto owner_of = owners(g);
  std::vector<float> values(kChunk);
  std::vector<uint16_t> halves(kChunk);
  for (const Home& home : homes) {
    const HomeOf& owner = owner_of.at(home.tensor);
    const Dtype dtype = g.tensors[home.tensor].dtype;
    const int64_t live = owner.param->live.count();
    for (int64_t done = 0; done < home.count; done += kChunk) {
      const int64_t n = std::min(kChunk, home.count - done);
      const int64_t begin = home.begin + done;
      const int64_t real = std::clamp<int64_t>(live - begin, 0, n);
      std::fill(values.begin() + real, values.begin() + n, 0.0f);
      if (real > 0) source(owner, begin, real, values.data());
      const void* bytes = values.data();
      if (dtype == Dtype::bf16) {
        std::transform(values.begin(), values.begin() + n, halves.begin(), to_bf16);
        bytes = halves.data();
      }
      executor.device().upload(
          executor.address(home.buffer, 0, home.offset + done * size_of(dtype)), bytes,
          n * size_of(dtype));
    }
  }
}

void draw_normal(uint64_t key, int64_t begin, int64_t count, double std, float* out) {
  constexpr double kTwoPi = 6.283185307179586;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = philox(key, static_cast<uint64_t>(begin + i), 0);
    const double radius = std::sqrt(-2.0 * std::log(uniform_open(bits[0])));
    out[i] = static_cast<float>(std * radius * std::cos(kTwoPi * uniform_open(bits[1])));
  }
}

}  // namespace

void initialise_state(const Schedule& train, const std::vector<Home>& homes, Executor& executor,
                      uint64_t seed) {
  const Graph& g = train.graph;
  fill_homes(train, homes, executor,
             [&](const HomeOf& owner, int64_t begin, int64_t count, float* out) {
               const Init init = owner.part == Part::weights ? owner.param->init : Init::zeros;
               if (init != Init::normal) {
                 std::fill_n(out, count, init == Init::ones ? 1.0f : 0.0f);
                 return;
               }
               const std::string& name = g.tensors[owner.param->param].name;
               draw_normal(hash_bytes(name.data(), name.size()) ^ (seed * 0x9E3779B97F4A7C15u),
                           begin, count, owner.param->std, out);
             });
}

void restore_state(const Schedule& train, const std::vector<Home>& homes, Executor& executor,
                   const CheckpointReader& reader) {
  const Graph& g = train.graph;
  for (const Param& p : g.params) {
    const std::string& name = g.tensors[p.param].name;
    const StoredTensor* stored = find_tensor(reader.manifest(), name);
    if (stored == nullptr) bad_input("{}: has no tensor '{}' of this model", reader.path(), name);
    if (!(stored->shape == p.live))
      bad_input("{}: tensor '{}' has {} elements, this model's has {}", reader.path(), name,
                stored->shape.count(), p.live.count());
  }
  fill_homes(train, homes, executor,
             [&](const HomeOf& owner, int64_t begin, int64_t count, float* out) {
               reader.read(stored_name(g, owner), begin, count, out);
             });
}

std::vector<TensorSlice> checkpoint_slices(const Schedule& train, const std::vector<Home>& homes) {
  const auto owner_of = owners(train.graph);
  std::vector<TensorSlice> slices;
  for (const SavedSlice& s : saved_slices(train, homes)) {
    const HomeOf& owner = owner_of.at(homes[s.home].tensor);
    slices.push_back({stored_name(train.graph, owner), owner.param->live, s.begin, s.count});
  }
  return slices;
}

}  // namespace spillway
