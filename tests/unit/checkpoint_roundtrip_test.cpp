// Saved on any number of ranks, loaded in any slices: the same bits. And safetensors to the letter.
// links: spillway_checkpoint
#include <nlohmann/json.hpp>
#include <thread>

#include "base/hash.h"
#include "checkpoint_support.h"

namespace spillway {
namespace {

using Roundtrip = CheckpointTest;

TEST_F(Roundtrip, AnyShardingToAnyOther) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const TestState state = random_state(random, 1 + random() % 8, 1 + random() % 60);
    StateHashes first;
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const std::string path = save(posix_file_system(), output_, seed * 4 + ranks, state, ranks,
                                    random, 4 + random() % 5000);
      const CheckpointReader reader(posix_file_system(), path);
      reader.verify();
      for (const auto& [name, tensor] : state) {
        const int64_t total = tensor.shape.count();
        for (int trial = 0; trial < 8; ++trial) {
          const int64_t begin = random() % (total + 1), count = random() % (total - begin + 1);
          std::vector<float> got(count + 2, 7.0f);  // with a guard on both sides
          reader.read(name, begin, count, got.data() + 1);
          EXPECT_TRUE(same_bits(got.data() + 1, tensor.data.data() + begin, count)) << name;
          EXPECT_EQ(got.front(), 7.0f);
          EXPECT_EQ(got.back(), 7.0f);
        }
      }
      EXPECT_TRUE(holds(path, state));
      const StateHashes hashes = hash_state(reader);
      if (ranks == 1) first = hashes;
      EXPECT_EQ(hashes.state, first.state);
      EXPECT_EQ(hashes.weights, first.weights);
    }
  }
}

TEST_F(Roundtrip, TheRunStateComesBack) {
  Random random(1);
  const TestState state = random_state(random, 2, 5);
  const std::string path = save(posix_file_system(), output_, 1234, state, 2, random);
  EXPECT_EQ(path, output_ + "/checkpoints/step_00001234");
  const RunState run = CheckpointReader(posix_file_system(), path).manifest().run;
  const RunState expected = run_at(1234, 2);
  EXPECT_EQ(run.step, 1234u);
  EXPECT_EQ(run.data_position, expected.data_position);
  EXPECT_EQ(run.updates, expected.updates);
  EXPECT_EQ(run.skipped, expected.skipped);
  EXPECT_EQ(run.skipped_in_row, expected.skipped_in_row);
  EXPECT_EQ(run.ranks, 2);
  EXPECT_EQ(run.tree, expected.tree);
  EXPECT_EQ(run.numerics_hash, expected.numerics_hash);
  EXPECT_EQ(run.fingerprint, expected.fingerprint);
  EXPECT_EQ(run.config, expected.config);
}

TEST_F(Roundtrip, HashesSeeOneBitAndTellWeightsFromMoments) {
  Random random(2);
  TestState state = random_state(random, 3, 9);
  const auto hashes = [&](uint64_t step) {
    return hash_state(CheckpointReader(posix_file_system(),
                                       save(posix_file_system(), output_, step, state, 2, random)));
  };
  const StateHashes before = hashes(1);
  const auto flip = [&](const std::string& name) {
    uint32_t bits;
    std::memcpy(&bits, state[name].data.data(), 4);
    bits ^= 1;
    std::memcpy(state[name].data.data(), &bits, 4);
  };
  flip("blk.1.w.m");
  const StateHashes moment = hashes(2);
  EXPECT_NE(moment.state, before.state);
  EXPECT_EQ(moment.weights, before.weights);
  flip("blk.2.w");
  const StateHashes weight = hashes(3);
  EXPECT_NE(weight.state, moment.state);
  EXPECT_NE(weight.weights, moment.weights);
}

TEST_F(Roundtrip, InspectEndsWithTheHashes) {
  Random random(3);
  const TestState state = random_state(random, 2, 5);
  const std::string path = save(posix_file_system(), output_, 5, state, 2, random);
  const std::string text = inspect_checkpoint(posix_file_system(), path);
  const StateHashes hashes = hash_state(CheckpointReader(posix_file_system(), path));
  const std::string tail =
      "\nstate_hash " + hex(hashes.state) + "\nweights_hash " + hex(hashes.weights) + "\n";
  ASSERT_GT(text.size(), tail.size());
  EXPECT_EQ(text.substr(text.size() - tail.size()), tail);
  for (const auto& [name, tensor] : state) EXPECT_NE(text.find(name), std::string::npos);
}

TEST_F(Roundtrip, ShardsAreSafetensors) {
  Random random(4);
  const TestState state = random_state(random, 4, 9);
  for (int ranks : {1, 3}) {
    const std::string path = save(posix_file_system(), output_, ranks, state, ranks, random);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string file = slurp(path + "/" + shard_name(rank));
      uint64_t length = 0;
      ASSERT_GE(file.size(), 8u);
      std::memcpy(&length, file.data(), 8);
      ASSERT_LE(8 + length, file.size());
      EXPECT_EQ((8 + length) % 8, 0u);
      const std::string header = file.substr(8, length);
      EXPECT_EQ(header[0], '{');  // the format's own rule
      std::vector<std::pair<int64_t, int64_t>> spans;
      const nlohmann::json object = nlohmann::json::parse(header);
      for (const auto& item : object.items()) {
        if (item.key() == "__metadata__") {
          for (const auto& pair : item.value().items()) EXPECT_TRUE(pair.value().is_string());
          continue;
        }
        EXPECT_EQ(item.value().size(), 3u);
        EXPECT_EQ(item.value()["dtype"], "F32");
        int64_t count = 1;
        for (const auto& size : item.value()["shape"]) count *= size.get<int64_t>();
        const auto& span = item.value()["data_offsets"];
        spans.emplace_back(span[0], span[1]);
        EXPECT_EQ(spans.back().second - spans.back().first, count * 4) << item.key();
        if (ranks == 1) {  // a whole tensor keeps its name and shape
          const Dims& shape = state.at(item.key()).shape;
          ASSERT_EQ(item.value()["shape"].size(), static_cast<size_t>(shape.rank));
          EXPECT_EQ(item.value()["shape"][0], shape[0]);
        }
      }
      std::sort(spans.begin(), spans.end());
      int64_t next = 0;
      for (const auto& [begin, end] : spans) {
        EXPECT_EQ(begin, next);
        next = end;
      }
      EXPECT_EQ(static_cast<size_t>(next), file.size() - 8 - length);
    }
  }
}

TEST_F(Roundtrip, SlicesThatDoNotTileAreRefused) {
  const float data[11] = {};
  const auto slice = [&](int64_t begin, int64_t count) {
    return TensorSlice{"w", Dims(10), begin, count};
  };
  const auto attempt = [&](const std::vector<TensorSlice>& slices) {
    const std::string folder = begin_checkpoint(posix_file_system(), output_, 1);
    std::vector<ShardReport> reports;
    for (size_t r = 0; r < slices.size(); ++r) {
      ShardWriter writer(posix_file_system(), folder, static_cast<int32_t>(r), {slices[r]});
      writer.append(data, slices[r].count * 4);
      reports.push_back(writer.finish());
    }
    publish_checkpoint(posix_file_system(), output_, run_at(1, 2), reports);
  };
  EXPECT_NO_THROW(attempt({slice(4, 6), slice(0, 4)}));
  EXPECT_THROW(attempt({slice(0, 4), slice(5, 5)}), Error);
  EXPECT_THROW(attempt({slice(0, 6), slice(5, 5)}), Error);
  EXPECT_THROW(attempt({slice(0, 4), slice(4, 5)}), Error);
  EXPECT_THROW(attempt({slice(0, 11)}), Error);
  EXPECT_THROW(attempt({slice(0, 10), slice(0, 10)}), Error);
}

TEST_F(Roundtrip, AShardTakesExactlyTheBytesOfItsSlices) {
  const float data[10] = {};
  const std::string folder = begin_checkpoint(posix_file_system(), output_, 1);
  const std::vector<TensorSlice> slices = {
      {"a", Dims(4), 0, 4}, {"b", Dims(8), 3, 0}, {"c", Dims(6), 2, 3}};
  for (const int64_t bytes : {0, 4, 16, 27, 28, 32}) {
    SCOPED_TRACE(bytes);
    ShardWriter writer(posix_file_system(), folder, 0, slices);
    const auto write = [&] {
      for (int64_t done = 0; done < bytes; done += 5)
        writer.append(data, std::min<int64_t>(5, bytes - done));
      return writer.finish();
    };
    if (bytes != 28) {
      EXPECT_THROW(write(), Error);
      continue;
    }
    const ShardReport report = write();
    EXPECT_EQ(report.tensors[0].slices[0].hash, hash_bytes(data, 16));
    EXPECT_EQ(report.tensors[2].slices[0].hash, hash_bytes(data, 12));
  }
}

TEST_F(Roundtrip, UnknownTensorOrRangeIsNamed) {
  Random random(6);
  const TestState state = random_state(random, 1, 1);
  const CheckpointReader reader(posix_file_system(),
                                save(posix_file_system(), output_, 1, state, 1, random));
  float x[4];
  EXPECT_NE(refused([&] { reader.read("nope", 0, 1, x); }).find("nope"), std::string::npos);
  EXPECT_NE(refused([&] { reader.read("blk.0.w", 0, 2, x); }).find("blk.0.w"), std::string::npos);
  refused([&] { reader.read("blk.0.w", -1, 1, x); });
  refused([&] { reader.read("blk.0.w", 2, INT64_MAX, x); });
}

TEST_F(Roundtrip, SavingTheSameStepAgainReplacesIt) {
  Random random(7);
  const TestState before = random_state(random, 2, 9), after = random_state(random, 2, 9);
  save(posix_file_system(), output_, 3, before, 3, random);
  const std::string path = save(posix_file_system(), output_, 3, after, 2, random);
  EXPECT_TRUE(holds(path, after));
  EXPECT_EQ(posix_file_system().list(output_ + "/checkpoints").size(), 1u);
}

}  // namespace
}  // namespace spillway
