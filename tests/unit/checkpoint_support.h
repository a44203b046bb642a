// What the checkpoint tests share: random states, their shards, saving them, comparing them.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "checkpoint/writer.h"

namespace spillway {

using Random = std::mt19937_64;

struct TestTensor {
  Dims shape;
  std::vector<float> data;
};
using TestState = std::map<std::string, TestTensor>;

// Weights of odd shapes, each with moments; elements are random bits, NaNs included.
inline TestState random_state(Random& random, int weights, int64_t max_side) {
  TestState state;
  for (int i = 0; i < weights; ++i) {
    const std::string name = "blk." + std::to_string(i) + ".w";
    const auto side = [&] { return static_cast<int64_t>(1 + random() % max_side); };
    const Dims shape = i % 3 == 0 ? Dims(side()) : Dims(side(), side());
    for (const char* suffix : {"", ".m", ".v"}) {
      TestTensor tensor{shape, std::vector<float>(shape.count())};
      for (float& x : tensor.data) {
        const uint32_t bits = static_cast<uint32_t>(random());
        std::memcpy(&x, &bits, sizeof bits);
      }
      state[name + suffix] = std::move(tensor);
    }
  }
  return state;
}

// A slice and where its elements stand.
struct DealtSlice {
  TensorSlice slice;
  const float* data = nullptr;
};

inline std::vector<TensorSlice> slices_of(const std::vector<DealtSlice>& dealt) {
  std::vector<TensorSlice> slices;
  for (const DealtSlice& d : dealt) slices.push_back(d.slice);
  return slices;
}

// Gives `append` all bytes of the slices, in pieces.
template <class Append>
void append_all(const std::vector<DealtSlice>& dealt, int64_t piece, Append&& append) {
  for (const DealtSlice& d : dealt)
    for (int64_t done = 0; done < d.slice.count * 4; done += piece)
      append(reinterpret_cast<const char*>(d.data) + done,
             std::min(piece, d.slice.count * 4 - done));
}

// Deals every tensor to `ranks` in random contiguous parts, some of them empty.
inline std::vector<std::vector<DealtSlice>> deal(const TestState& state, int ranks,
                                                 Random& random) {
  std::vector<std::vector<DealtSlice>> slices(ranks);
  for (const auto& [name, tensor] : state) {
    const int64_t total = tensor.shape.count();
    std::vector<int64_t> cuts = {0, total};
    for (int r = 1; r < ranks; ++r) cuts.push_back(random() % (total + 1));
    std::sort(cuts.begin(), cuts.end());
    std::vector<int> order(ranks);
    for (int r = 0; r < ranks; ++r) order[r] = r;
    std::shuffle(order.begin(), order.end(), random);
    for (int r = 0; r < ranks; ++r) {
      const int64_t begin = cuts[r], count = cuts[r + 1] - cuts[r];
      slices[order[r]].push_back({{name, tensor.shape, begin, count}, tensor.data.data() + begin});
    }
  }
  return slices;
}

inline RunState run_at(uint64_t step, int ranks) {
  RunState run;
  run.step = step;
  run.data_position = step * 32;
  run.updates = step - step / 10;
  run.skipped = step / 10;
  run.ranks = ranks;
  run.numerics_hash = 0xfedcba9876543210u + step;
  run.fingerprint = {{"isa", "avx2"}, {"onednn", "3.1 \"quoted\""}};
  run.config = "{\"model\": {\"family\": \"llama\"},\n \"output\": \"\xc3\xa9\"}";
  return run;
}

// The three steps as `ranks` ranks would take them, one after the other.
inline std::string save(FileSystem& files, const std::string& output, uint64_t step,
                        const TestState& state, int ranks, Random& random, int64_t piece = 1000) {
  const auto slices = deal(state, ranks, random);
  const std::string folder = begin_checkpoint(files, output, step);
  std::vector<ShardReport> reports;
  for (int r = 0; r < ranks; ++r) {
    ShardWriter writer(files, folder, r, slices_of(slices[r]));
    append_all(slices[r], piece, [&](const void* data, int64_t n) { writer.append(data, n); });
    reports.push_back(writer.finish());
  }
  return publish_checkpoint(files, output, run_at(step, ranks), reports);
}

inline bool same_bits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

// Whether a checkpoint holds exactly `state`, bit for bit.
inline bool holds(const std::string& path, const TestState& state) {
  const CheckpointReader reader(posix_file_system(), path);
  reader.verify();
  if (reader.manifest().tensors.size() != state.size()) return false;
  for (const auto& [name, tensor] : state) {
    const StoredTensor* stored = find_tensor(reader.manifest(), name);
    if (!stored || !(stored->shape == tensor.shape)) return false;
    std::vector<float> got(tensor.data.size());
    reader.read(name, 0, static_cast<int64_t>(got.size()), got.data());
    if (!same_bits(got.data(), tensor.data.data(), static_cast<int64_t>(got.size()))) return false;
  }
  return true;
}

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void spill(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// A folder of its own for every test; the seed is printed when one fails.
class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    // In memory where possible: thousands of saves need not wait for a disk.
    for (std::string name : {"/dev/shm/spillway_XXXXXX", "/tmp/spillway_XXXXXX"}) {
      if (mkdtemp(name.data())) {
        output_ = name;
        return;
      }
    }
    FAIL() << "no temporary folder";
  }
  void TearDown() override { std::filesystem::remove_all(output_); }
  // The message of the Error(bad_input) that `f` throws.
  template <class F>
  std::string refused(F&& f) {
    try {
      f();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::bad_input) << e.what();
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
      return e.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }
  std::string output_;
};

}  // namespace spillway
