// Samples, the shuffle, batches and their hashes, the prefetch thread.
// links: spillway_data
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "data/dataset.h"
#include "data/prefetch.h"
#include "data/shuffle.h"

namespace {
std::atomic<long> allocations{0};
}
// Not inlined: GCC would see malloc behind new and free behind delete, and warn of a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace spillway {
namespace {

TEST(Shuffle, IsAPermutationOfEverySize) {
  for (uint64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 65, 1000, 4097, 65536, 100003}) {
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<bool> seen(n);
      for (uint64_t i = 0; i < n; ++i) {
        const uint64_t image = shuffled(i, n, 42, epoch);
        ASSERT_LT(image, n);
        ASSERT_FALSE(seen[image]) << "n " << n << " epoch " << epoch;
        seen[image] = true;
      }
    }
  }
}

TEST(Shuffle, LooksRandom) {
  const uint64_t n = 10000;
  // Fixed points and successions of a random permutation are Poisson(1); positions of the first
  // half are hypergeometric with standard deviation 25.
  for (uint64_t seed = 0; seed < 20; ++seed) {
    int fixed = 0, successions = 0, half = 0, same_as_next_epoch = 0, same_as_next_seed = 0;
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t image = shuffled(i, n, seed, 0);
      fixed += image == i;
      successions += i > 0 && image == shuffled(i - 1, n, seed, 0) + 1;
      half += i < n / 2 && image < n / 2;
      same_as_next_epoch += image == shuffled(i, n, seed, 1);
      same_as_next_seed += image == shuffled(i, n, seed + 1, 0);
    }
    EXPECT_LE(fixed, 8) << seed;
    EXPECT_LE(successions, 8) << seed;
    EXPECT_NEAR(half, 2500, 150) << seed;
    EXPECT_LE(same_as_next_epoch, 8) << seed;
    EXPECT_LE(same_as_next_seed, 8) << seed;
  }
}

class Data : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/spillway_data_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write_ids(const std::string& name, int64_t n, uint16_t first, int64_t modulus) {
    std::vector<uint16_t> ids(n);
    for (int64_t i = 0; i < n; ++i) ids[i] = (first + i) % modulus;
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<char*>(ids.data()), n * 2);
    return path;
  }
  DataConfig config(std::vector<std::string> files, double validation = 0) {
    DataConfig c;
    c.train = std::move(files);
    c.tokenizer = "uint16";
    c.validation = validation;
    return c;
  }
  std::string folder_;
};

TEST_F(Data, SamplesCoverEveryFileWithOneTokenOfOverlap) {
  // Three files whose ids do not overlap: 1 + 3·8 tokens exactly, one more, one less.
  const Dataset data(config({write_ids("a", 25, 0, 1000), write_ids("b", 26, 100, 1000),
                             write_ids("c", 24, 200, 1000)}),
                     1000, 8, 1);
  ASSERT_EQ(data.train_samples(), 3 + 3 + 2);
  EXPECT_EQ(data.total_tokens(), 75);
  const int first[] = {0, 8, 16, 100, 108, 116, 200, 208};
  for (int64_t s = 0; s < 8; ++s) {
    int32_t tokens[9];
    data.read_train(s, tokens);
    for (int i = 0; i < 9; ++i) EXPECT_EQ(tokens[i], first[s] + i);
  }
}

TEST_F(Data, ValidationIsTheTailOfEveryFileAndNeverTrained) {
  const Dataset data(config({write_ids("a", 1000, 0, 5000), write_ids("b", 500, 2000, 5000)}, 0.1),
                     5000, 8, 1);
  std::set<int32_t> trained, held;
  int32_t tokens[9];
  for (int64_t s = 0; s < data.train_samples(); ++s) {
    data.read_train(s, tokens);
    trained.insert(tokens, tokens + 9);
  }
  for (int64_t s = 0; s < data.validation_samples(); ++s) {
    data.read_validation(s, tokens);
    held.insert(tokens, tokens + 9);
  }
  EXPECT_EQ(data.train_samples(), 112 + 56);
  EXPECT_EQ(data.validation_samples(), 12 + 6);
  EXPECT_EQ(*held.begin(), 900);
  for (int32_t id : held) EXPECT_FALSE(trained.contains(id)) << id;
  EXPECT_TRUE(held.contains(2450));
}

TEST_F(Data, ValidationFilesOfTheirOwn) {
  DataConfig c = config({write_ids("a", 100, 0, 5000)});
  c.validation_files = {write_ids("v", 17, 3000, 5000)};
  const Dataset data(c, 5000, 8, 1);
  ASSERT_EQ(data.validation_samples(), 2);
  int32_t tokens[9];
  data.read_validation(1, tokens);
  EXPECT_EQ(tokens[0], 3008);
}

TEST_F(Data, TooFewTokensIsAnErrorWithTheFile) {
  const auto message = [](auto&& make) -> std::string {
    try {
      make();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::bad_input);
      return e.what();
    }
    return "accepted";
  };
  const std::string small = write_ids("small", 8, 0, 100), good = write_ids("good", 9, 0, 100);
  EXPECT_NE(message([&] {
              Dataset(config({good, small}), 100, 8, 1);
            }).find(small + ": 8 tokens"),
            std::string::npos);
  EXPECT_NE(message([&] { Dataset(config({good}, 0.2), 100, 8, 1); }).find(good + ": 8 tokens"),
            std::string::npos);
  EXPECT_NE(message([&] {
              Dataset(config({write_ids("x", 50, 0, 100)}, 0.1), 100, 8, 1);
            }).find("data.validation"),
            std::string::npos);
  EXPECT_NE(message([&] { Dataset(config({}), 100, 8, 1); }).find("data.train"), std::string::npos);
  DataConfig both = config({good}, 0.1);
  both.validation_files = {good};
  EXPECT_NE(message([&] { Dataset(both, 100, 8, 1); }).find("data.validation"), std::string::npos);
  const Dataset data(config({good}), 100, 8, 1);
  EXPECT_NE(message([&] {
              BatchReader(data, {6, 2, 0, 2});
            }).find("train.batch"),
            std::string::npos);
}

struct Buffers {
  std::vector<int32_t> tokens, targets, order;
  std::vector<uint64_t> hashes;
  Buffers(int64_t sequences, int64_t context)
      : tokens(sequences * context),
        targets(sequences * context),
        order(sequences * context),
        hashes(sequences) {}
  MicroBatch view() { return {tokens, targets, order, hashes}; }
};

TEST_F(Data, EverySampleOnceAnEpochOverFiles) {
  const Dataset data(config({write_ids("a", 401, 0, 30000), write_ids("b", 201, 5000, 30000),
                             write_ids("c", 105, 9000, 30000)}),
                     30000, 8, 5);
  const int64_t n = data.train_samples();
  ASSERT_EQ(n, 50 + 25 + 13);
  BatchReader reader(data, {8, 8, 0, 1});
  Buffers b(8, 8);
  std::vector<int32_t> stream;  // first token of every sequence, in order
  for (uint64_t step = 1; step <= 33; ++step) {
    reader.fill(step, 0, b.view());
    for (int j = 0; j < 8; ++j) stream.push_back(b.tokens[j * 8]);
  }
  ASSERT_EQ(stream.size(), 3u * n);
  for (int epoch = 0; epoch < 3; ++epoch) {
    const std::set<int32_t> seen(stream.begin() + epoch * n, stream.begin() + (epoch + 1) * n);
    EXPECT_EQ(static_cast<int64_t>(seen.size()), n) << epoch;
  }
  EXPECT_FALSE(std::equal(stream.begin(), stream.begin() + n, stream.begin() + n));
}

TEST_F(Data, TheTokenStreamDoesNotDependOnRanks) {
  const Dataset data(config({write_ids("a", 4001, 0, 997), write_ids("b", 2001, 3, 997)}), 997, 8,
                     5);
  const int64_t batch = 12;
  for (uint64_t step : {1, 2, 57, 100000}) {
    std::vector<uint64_t> reference;  // hash by sequence
    uint64_t reference_hash = 0;
    for (const auto& [ranks, micro_batch] :
         std::vector<std::pair<int, int64_t>>{{1, 12}, {1, 1}, {2, 3}, {3, 2}, {4, 1}, {12, 1}}) {
      std::vector<uint64_t> gathered, by_sequence(batch);
      for (int rank = 0; rank < ranks; ++rank) {
        BatchReader reader(data, {batch, micro_batch, rank, ranks});
        Buffers b(micro_batch, 8);
        for (int64_t micro = 0; micro < reader.shape().micro_batches(); ++micro) {
          reader.fill(step, micro, b.view());
          for (int64_t j = 0; j < micro_batch; ++j) {
            EXPECT_EQ(b.hashes[j], hash_bytes(b.tokens.data() + j * 8, 32));
            by_sequence[(micro * ranks + rank) * micro_batch + j] = b.hashes[j];
          }
          gathered.insert(gathered.end(), b.hashes.begin(), b.hashes.end());
        }
      }
      const uint64_t hash = token_hash(gathered, {batch, micro_batch, 0, ranks});
      EXPECT_EQ(hash, hash_bytes(by_sequence.data(), batch * 8));
      if (reference.empty()) {
        reference = by_sequence;
        reference_hash = hash;
      }
      EXPECT_EQ(by_sequence, reference) << "ranks " << ranks << " step " << step;
      EXPECT_EQ(hash, reference_hash);
    }
  }
}

TEST_F(Data, RowsAreStablySortedAndTargetsAreOneFurther) {
  std::mt19937_64 random(9);
  for (int64_t vocab : {2, 5, 300, 5000}) {
    std::vector<uint16_t> ids(500);
    for (auto& id : ids) id = random() % vocab;
    const std::string path = folder_ + "/r";
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<char*>(ids.data()), 1000);
    const Dataset data(config({path}), vocab, 7, random());
    BatchReader reader(data, {6, 3, 0, 1});
    Buffers b(3, 7);
    reader.fill(1 + random() % 50, 1, b.view());
    std::vector<int32_t> expected(21);
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(),
                     [&](int32_t x, int32_t y) { return b.tokens[x] < b.tokens[y]; });
    EXPECT_EQ(b.order, expected) << vocab;
    for (int row = 0; row < 3; ++row) {
      for (int i = 0; i < 6; ++i) EXPECT_EQ(b.targets[row * 7 + i], b.tokens[row * 7 + i + 1]);
    }
  }
}

TEST_F(Data, ValidationBatchesCoverEachSampleOnce) {
  DataConfig c = config({write_ids("a", 100, 0, 5000)});
  c.validation_files = {write_ids("v", 57, 3000, 5000)};  // 7 samples
  const Dataset data(c, 5000, 8, 1);
  for (int ranks : {1, 2, 3}) {
    std::vector<int32_t> firsts;
    for (int rank = 0; rank < ranks; ++rank) {
      BatchReader reader(data, {2 * ranks, 2, rank, ranks});
      Buffers b(2, 8);
      int64_t live = 0;
      for (int64_t i = 0; i < reader.validation_batches(); ++i) {
        const int64_t here = reader.fill_validation(i, b.view());
        for (int64_t j = 0; j < 2; ++j) {
          if (j < here) {
            firsts.push_back(b.tokens[j * 8]);
          } else {
            EXPECT_EQ(b.targets[j * 8 + 3], -1);
          }
        }
        live += here;
        EXPECT_TRUE(std::is_sorted(b.order.begin(), b.order.end(), [&](int32_t x, int32_t y) {
          return b.tokens[x] < b.tokens[y];
        }));
      }
    }
    std::sort(firsts.begin(), firsts.end());
    EXPECT_EQ(firsts, (std::vector<int32_t>{3000, 3008, 3016, 3024, 3032, 3040, 3048})) << ranks;
  }
}

TEST_F(Data, PrefetcherGivesTheReadersBatchesInAnyOrderAndAllocatesNothing) {
  const Dataset data(config({write_ids("a", 4001, 0, 997)}), 997, 8, 5);
  const BatchShape shape{12, 3, 1, 2};
  BatchReader reader(data, shape);
  Buffers b(3, 8);
  std::mt19937_64 random(13);
  Prefetcher prefetcher(data, shape, 1);
  uint64_t step = 1;
  for (int trial = 0; trial < 500; ++trial) {
    const long before = allocations;
    const StepBatch& batch = prefetcher.get(step);
    EXPECT_EQ(batch.step, step);
    for (int64_t micro = 0; micro < 2; ++micro) {
      reader.fill(step, micro, b.view());
      EXPECT_TRUE(std::equal(b.tokens.begin(), b.tokens.end(), &batch.tokens[micro * 24]));
      EXPECT_TRUE(std::equal(b.targets.begin(), b.targets.end(), &batch.targets[micro * 24]));
      EXPECT_TRUE(std::equal(b.order.begin(), b.order.end(), &batch.token_order[micro * 24]));
      EXPECT_TRUE(std::equal(b.hashes.begin(), b.hashes.end(), &batch.hashes[micro * 3]));
    }
    EXPECT_EQ(allocations, before);
    step = random() % 4 ? step + 1 : 1 + random() % 20;
  }
}

}  // namespace
}  // namespace spillway
