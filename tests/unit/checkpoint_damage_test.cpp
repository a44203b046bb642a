// Damage of every kind is found, named, and never resumed from; what to keep is never removed.
// links: spillway_checkpoint
#include <nlohmann/json.hpp>
#include <set>

#include "base/hash.h"
#include "checkpoint_support.h"

namespace spillway {
namespace {

using Damage = CheckpointTest;
namespace fs = std::filesystem;

TEST_F(Damage, NothingAtAllIsNotAnError) {
  EXPECT_FALSE(find_resume(posix_file_system(), output_, "latest").has_value());
  EXPECT_FALSE(find_resume(posix_file_system(), output_ + "/absent", "latest").has_value());
  fs::create_directories(output_ + "/checkpoints/.tmp_step_00000005");
  fs::create_directories(output_ + "/checkpoints/other");
  EXPECT_FALSE(find_resume(posix_file_system(), output_, "latest").has_value());
}

// Every bit of every file matters: flips one, expects the checkpoint before to be chosen.
TEST_F(Damage, AFlippedBitAnywhereIsFound) {
  Random random(1);
  const TestState state = random_state(random, 3, 12);
  save(posix_file_system(), output_, 10, state, 1, random);
  const std::string path = save(posix_file_system(), output_, 20, state, 3, random);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) names.push_back(entry.path());
  ASSERT_EQ(names.size(), 4u);
  for (int trial = 0; trial < 1000; ++trial) {
    const std::string& name = names[random() % names.size()];
    const std::string good = slurp(name);
    std::string bad = good;
    const size_t at = random() % bad.size();
    bad[at] ^= static_cast<char>(1 << random() % 8);
    spill(name, bad);
    const auto choice = find_resume(posix_file_system(), output_, "latest");
    ASSERT_TRUE(choice.has_value());
    EXPECT_EQ(choice->step, 10u) << name << " byte " << at;
    ASSERT_EQ(choice->skipped.size(), 1u);
    EXPECT_EQ(choice->skipped[0].path, path);
    EXPECT_NE(choice->skipped[0].reason.find(name), std::string::npos) << choice->skipped[0].reason;
    EXPECT_NE(refused([&] { find_resume(posix_file_system(), output_, path); }).find(name),
              std::string::npos);
    refused([&] { inspect_checkpoint(posix_file_system(), path); });
    spill(name, good);
  }
  EXPECT_EQ(find_resume(posix_file_system(), output_, "latest")->step, 20u);
}

TEST_F(Damage, TruncatedLengthenedOrMissingFiles) {
  Random random(2);
  const TestState state = random_state(random, 3, 12);
  save(posix_file_system(), output_, 10, state, 1, random);
  const std::string path = save(posix_file_system(), output_, 20, state, 2, random);
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path(), good = slurp(name);
    for (int trial = 0; trial < 30; ++trial) {
      const size_t left = trial == 0 ? 0 : trial == 1 ? good.size() - 1 : random() % good.size();
      spill(name, good.substr(0, left));
      EXPECT_EQ(find_resume(posix_file_system(), output_, "latest")->step, 10u) << name << left;
    }
    spill(name, good + " ");
    EXPECT_EQ(find_resume(posix_file_system(), output_, "latest")->step, 10u) << name;
    fs::remove(name);
    EXPECT_EQ(find_resume(posix_file_system(), output_, "latest")->step, 10u) << name;
    fs::create_directory(name);
    EXPECT_EQ(find_resume(posix_file_system(), output_, "latest")->step, 10u) << name;
    fs::remove(name);
    spill(name, good);
  }
  EXPECT_EQ(find_resume(posix_file_system(), output_, "latest")->step, 20u);
}

TEST_F(Damage, SomeButNoneValidIsAnErrorWithReasons) {
  Random random(3);
  const TestState state = random_state(random, 2, 5);
  const std::string first = save(posix_file_system(), output_, 1, state, 1, random);
  const std::string second = save(posix_file_system(), output_, 2, state, 1, random);
  fs::remove(first + "/manifest.json");
  spill(second + "/manifest.json", "{\"format\": \"pt\"}");
  const std::string message = refused([&] { find_resume(posix_file_system(), output_, "latest"); });
  EXPECT_NE(message.find(first), std::string::npos) << message;
  EXPECT_NE(message.find(second), std::string::npos) << message;
  EXPECT_NE(message.find("not a Spillway manifest"), std::string::npos) << message;
  refused([&] { find_resume(posix_file_system(), output_, output_ + "/nowhere"); });
}

TEST_F(Damage, ShardsOfAnotherCheckpointAreFound) {
  Random random(4);
  const TestState a = random_state(random, 2, 5);
  TestState b = a;
  for (auto& [name, tensor] : b) tensor.data[0] = 1.0f;
  const std::string first = save(posix_file_system(), output_, 1, a, 1, random);
  const std::string second = save(posix_file_system(), output_, 2, b, 1, random);
  fs::copy_file(first + "/" + shard_name(0), second + "/" + shard_name(0),
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(find_resume(posix_file_system(), output_, "latest")->step, 1u);
  fs::rename(second, output_ + "/elsewhere");
  fs::copy(first, second);
  EXPECT_EQ(find_resume(posix_file_system(), output_, "latest")->step, 1u);
  EXPECT_NE(refused([&] {
              fs::remove_all(first);
              find_resume(posix_file_system(), output_, "latest");
            }).find("named after"),
            std::string::npos);
}

std::string with_checksum(const std::string& rest) {
  return "{\"checksum\": \"" + hex(hash_bytes(rest.data(), rest.size())) + "\"," + rest;
}

// Manifests whose checksum is right but whose contents are not: refused or consistent, no crash.
TEST_F(Damage, ForeignManifestsAreRefused) {
  Random random(5);
  const std::string path =
      save(posix_file_system(), output_, 1, random_state(random, 2, 6), 2, random);
  const std::string text = slurp(path + "/manifest.json");
  const nlohmann::json good = nlohmann::json::parse(text);
  const auto manifest_of = [](nlohmann::json object) {
    object.erase("checksum");
    return with_checksum(object.dump().substr(1));
  };
  EXPECT_NO_THROW(parse_manifest(manifest_of(good), "m"));

  const auto change = [&](auto&& edit) {
    nlohmann::json object = good;
    edit(object);
    return refused([&] { parse_manifest(manifest_of(object), "m"); });
  };
  using J = nlohmann::json&;
  EXPECT_NE(change([](J j) { j["format"] = "other"; }).find("\"other\""), std::string::npos);
  EXPECT_NE(change([](J j) { j["version"] = 2; }).find("version 2"), std::string::npos);
  EXPECT_NE(change([](J j) { j.erase("step"); }).find("\"step\" is missing"), std::string::npos);
  change([](J j) { j["step"] = -1; });
  change([](J j) { j["step"] = 1.5; });
  change([](J j) { j["step"] = UINT64_MAX; });
  change([](J j) { j["ranks"] = 0; });
  change([](J j) { j["numerics_hash"] = "xyz"; });
  change([](J j) { j["fingerprint"] = 3; });
  change([](J j) { j["config"] = nullptr; });
  change([](J j) { j["shards"][0]["file"] = "../../etc/passwd"; });
  change([](J j) { j["shards"][0]["bytes"] = -5; });
  change([](J j) { j["shards"].clear(); });
  change([](J j) { j["tensors"][0]["dtype"] = "BF16"; });
  change([](J j) { j["tensors"][0]["shape"] = {1LL << 40, 1LL << 40}; });
  change([](J j) { j["tensors"][0]["shape"] = {-1}; });
  change([](J j) { j["tensors"][0]["shape"] = {1, 1, 1, 1, 1}; });
  change([](J j) { j["tensors"][0]["slices"].clear(); });
  change([](J j) { j["tensors"][0]["slices"][0]["begin"] = 1; });
  change([](J j) { j["tensors"][0]["slices"][0]["count"] = INT64_MAX; });
  change([](J j) { j["tensors"][0]["slices"][0]["count"] = 0; });
  change([](J j) { j["tensors"][0]["slices"][0]["shard"] = 2; });
  change([](J j) { j["tensors"][1] = j["tensors"][0]; });
  change([](J j) { std::swap(j["tensors"][0], j["tensors"][1]); });
  refused([&] { parse_manifest(with_checksum(std::string(100000, '[')), "m"); });
  refused([&] { parse_manifest(with_checksum("\"a\": 1} junk"), "m"); });
  refused([&] { parse_manifest("", "m"); });
}

TEST_F(Damage, RandomManifestsNeverCrashTheReader) {
  Random random(6);
  const TestState state = random_state(random, 2, 6);
  const std::string path = save(posix_file_system(), output_, 1, state, 2, random);
  const std::string name = path + "/manifest.json";
  const std::string rest = slurp(name).substr(32);
  int refusals = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::string text = rest;
    for (int edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 20);
          break;
        case 2:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
          break;
        default:  // another digit, so that numbers stay numbers
          for (size_t i = at; i < text.size(); ++i) {
            if (text[i] >= '0' && text[i] <= '9') {
              text[i] = static_cast<char>('0' + random() % 10);
              break;
            }
          }
      }
    }
    spill(name, with_checksum(text));
    try {
      const CheckpointReader reader(posix_file_system(), path);
      reader.verify();
      hash_state(reader);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::bad_input) << e.what();
      ++refusals;
    }
  }
  EXPECT_GT(refusals, 1500);
}

TEST_F(Damage, RandomShardHeadersNeverCrashTheReader) {
  Random random(7);
  const TestState state = random_state(random, 2, 6);
  const std::string path = save(posix_file_system(), output_, 1, state, 1, random);
  const std::string name = path + "/" + shard_name(0), good = slurp(name);
  uint64_t length = 0;
  std::memcpy(&length, good.data(), 8);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string header = good.substr(0, 8 + length);
    for (int edits = 1 + random() % 3; edits > 0; --edits) {
      header[8 + random() % length] =
          random() % 2 ? static_cast<char>('0' + random() % 10) : static_cast<char>(random());
    }
    try {
      for (const auto& [entry_name, entry] :
           parse_safetensors_header(header, static_cast<int64_t>(good.size()), "s")) {
        EXPECT_GE(entry.begin, static_cast<int64_t>(header.size()));
        EXPECT_LE(entry.begin + entry.bytes, static_cast<int64_t>(good.size()));
        EXPECT_EQ(entry.bytes, entry.shape.count() * 4);
      }
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::bad_input);
    }
  }
}

TEST_F(Damage, RetentionKeepsTheNewestGoodOnes) {
  Random random(8);
  const TestState state = random_state(random, 1, 3);
  for (int trial = 0; trial < 150; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    fs::remove_all(output_ + "/checkpoints");
    std::set<uint64_t> good, all;
    for (int n = 1 + random() % 8; n > 0; --n) {
      const uint64_t step = 1 + random() % 30;
      const std::string path = save(posix_file_system(), output_, step, state, 1, random);
      all.insert(step);
      good.erase(step);
      switch (random() % 4) {
        case 0:
          fs::remove(path + "/manifest.json");
          break;
        case 1:
          fs::resize_file(path + "/" + shard_name(0), 100);
          break;
        default:
          good.insert(step);
      }
    }
    const uint64_t written = 1 + random() % 30;
    save(posix_file_system(), output_, written, state, 1, random);
    all.insert(written);
    good.insert(written);
    fs::create_directories(output_ + "/checkpoints/.tmp_step_00000099/x");
    fs::create_directories(output_ + "/checkpoints/notes");

    const int64_t keep = random() % 5;
    const int64_t keep_every = random() % 4 * 3;
    const auto removed = apply_retention(posix_file_system(), output_, {keep, keep_every}, written);

    std::set<uint64_t> left;
    for (const auto& folder : list_checkpoints(posix_file_system(), output_)) {
      left.insert(folder.step);
    }
    // The rule by counting: the newest max(keep, 1) good ones stay, and what is newer than the
    // oldest of them; everything stays while there are no more than that.
    std::vector<uint64_t> newest(good.rbegin(), good.rend());
    const size_t kept = std::min<size_t>(std::max<int64_t>(keep, 1), newest.size());
    const uint64_t limit =
        newest.size() < static_cast<size_t>(std::max<int64_t>(keep, 1)) ? 0 : newest[kept - 1];
    for (uint64_t step : all) {
      const bool for_good = keep_every > 0 && step % static_cast<uint64_t>(keep_every) == 0;
      EXPECT_EQ(left.contains(step), step >= limit || step == written || for_good)
          << "step " << step;
    }
    EXPECT_EQ(removed.size(), all.size() - left.size());
    EXPECT_FALSE(fs::exists(output_ + "/checkpoints/.tmp_step_00000099"));
    EXPECT_TRUE(fs::exists(output_ + "/checkpoints/notes"));
    EXPECT_EQ(find_resume(posix_file_system(), output_, "latest")->step, *good.rbegin());
  }
}

}  // namespace
}  // namespace spillway
