// The schema and the C++ extraction name the same keys, words and defaults; resolved configs read
// back; overrides, presets, and what a resume may change.
// links: spillway_config
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "base/error.h"
#include "config/schema.h"
#include "config/values.h"

namespace spillway {
namespace {

const std::string kSmall =
    "{\"model\": {\"family\": \"llama\", \"layers\": 2, \"hidden\": 64, \"heads\": 4, \"ffn\": 96, "
    "\"context\": 32}, \"data\": {\"train\": [\"x\"]}}";

Config small(const std::vector<std::string>& overrides = {}) {
  return parse_config(kSmall, "small", overrides);
}

TEST(Schema, EveryKeyIsReadAndNoOther) {
  std::set<std::string> in_schema, in_code;
  for (const std::string& key : schema_keys(config_schema())) in_schema.insert(key);
  // For editors, and resolved before anything is read.
  EXPECT_EQ(in_schema.erase("$schema") + in_schema.erase("model.preset"), 2u);
  Config config;
  for_each_field(config, [&](const std::string& key, auto&&) {
    EXPECT_TRUE(in_code.insert(key).second) << key << " twice";
  });
  EXPECT_EQ(in_schema, in_code);

  std::set<std::string> profile_schema_keys, profile_code;
  for (const auto& [key, node] : profile_schema()["properties"].items())
    profile_schema_keys.insert(key);
  EXPECT_EQ(profile_schema_keys.erase("description"), 1u);
  EXPECT_EQ(profile_schema_keys.erase("tiers"), 1u);
  HardwareProfile profile;
  for_each_profile_field(profile,
                         [&](const std::string& key, auto&&) { profile_code.insert(key); });
  EXPECT_EQ(profile_schema_keys, profile_code);
}

TEST(Schema, EveryKeyIsDescribedAndBounded) {
  for (const std::string& key : schema_keys(config_schema())) {
    const Json* node = schema_at(config_schema(), key);
    ASSERT_NE(node, nullptr) << key;
    EXPECT_TRUE(node->contains("description")) << key;
    const auto bounded = [&](const Json& branch) {
      if (branch.value("type", "") == "integer" && !branch.contains("enum")) {
        EXPECT_TRUE(branch.contains("minimum") && branch.contains("maximum")) << key;
      }
    };
    bounded(*node);
    if (node->contains("anyOf"))
      for (const Json& branch : (*node)["anyOf"]) bounded(branch);
    // The standard value passes its own check.
    if (node->contains("default")) check_json((*node)["default"], *node, key, "schema", true);
  }
}

template <class E>
void expect_words(const std::string& key) {
  EXPECT_EQ((*schema_at(config_schema(), key))["enum"].get<std::vector<std::string>>(),
            words_of<E>())
      << key;
}

TEST(Schema, WordsAreThoseOfTheEnumerations) {
  expect_words<Family>("model.family");
  expect_words<Precision>("train.precision");
  expect_words<LrSchedule>("optimizer.schedule");
  expect_words<Mode>("offload");
  expect_words<Mode>("recompute");
  expect_words<Backend>("hardware.backend");
}

// A Config made in code means what an empty file means.
TEST(Schema, DefaultsAreThoseOfTheTypes) {
  const Config config;
  for_each_field(config, [&](const std::string& key, const auto& field) {
    const Json& node = *schema_at(config_schema(), key);
    if (!node.contains("default")) {
      EXPECT_EQ(key.find("model.") == 0 || key == "data.train", true) << key << " has no default";
      return;
    }
    EXPECT_EQ(value_json(field), node["default"]) << key;
  });
}

TEST(Config, DefaultsThatDependOnOtherKeys) {
  const Config config = small();
  EXPECT_EQ(config.model.kv_heads, 4);
  EXPECT_EQ(config.model.head_dim, 16);
  EXPECT_EQ(config.model.vocab, 257);
  EXPECT_EQ(config.model.padded_vocab(), 384);
  EXPECT_FALSE(config.model.tied_head);
  EXPECT_TRUE(small({"model.family=gpt2"}).model.tied_head);
  EXPECT_EQ(small({"data.tokenizer=gpt2.bin"}).model.vocab, 50257);
  EXPECT_EQ(small({"data.tokenizer=uint32", "model.vocab=1000"}).model.vocab, 1000);
}

TEST(Config, Overrides) {
  const Config config =
      small({"optimizer.lr=3e-4", "train.steps=1e3", "place.qkv=host", "output=2024",
             "memory.device=1GiB", "data.train=[\"a\", \"b\"]", "place.qkv@1=device",
             "place.qkv=recompute", "optimizer.lr=1e-4", "parallel.reduce_every=4",
             "hardware.link=2GB/s", "model.rope.theta=500000"});
  EXPECT_EQ(config.optimizer.lr, 1e-4);
  EXPECT_EQ(config.train.steps, 1000);
  EXPECT_EQ(config.output, "2024");
  EXPECT_EQ(config.memory.device, int64_t{1} << 30);
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"a", "b"}));
  const std::vector<std::pair<std::string, std::string>> pins = {{"qkv@1", "device"},
                                                                 {"qkv", "recompute"}};
  EXPECT_EQ(config.place, pins);  // set again: last, so that it wins
  EXPECT_EQ(config.parallel.reduce_every, 4);
  EXPECT_EQ(config.hardware.link, 2e9);
  EXPECT_EQ(config.model.rope.theta, 5e5);
}

TEST(Config, Presets) {
  const std::string data = ", \"data\": {\"train\": [\"x\"]}}";
  const Config named = parse_config("{\"model\": \"llama3-8b\"" + data, "t", {});
  EXPECT_EQ(named.model.hidden, 4096);
  EXPECT_EQ(named.model.vocab, 128256);
  EXPECT_EQ(named.model.rope.theta, 5e5);
  const Config changed = parse_config(
      "{\"model\": {\"preset\": \"llama3-8b\", \"context\": 4096, \"rope\": {\"llama3_scaling\": "
      "true}}" +
          data,
      "t", {"model.layers=4"});
  EXPECT_EQ(changed.model.context, 4096);
  EXPECT_EQ(changed.model.layers, 4);
  EXPECT_EQ(changed.model.rope.theta, 5e5);
  EXPECT_TRUE(changed.model.rope.llama3_scaling);
  EXPECT_EQ(
      parse_config("{\"model\": \"llama3-8b\"" + data, "t", {"model.context=64"}).model.context,
      64);
  EXPECT_EQ(
      parse_config("{\"model\": \"llama3-8b\"" + data, "t", {"model=quickstart"}).model.layers, 6);
}

TEST(Config, ShippedFilesLoad) {
  const std::string root = std::string(SPILLWAY_SOURCE_DIR) + "/configs";
  for (const char* name : {"gpt2-124m", "llama3-8b", "qwen3-0.6b", "quickstart"}) {
    const auto names = preset_names("models");
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
  for (const std::string& name : preset_names("models")) {
    const Config config =
        parse_config("{\"model\": \"" + name + "\", \"data\": {\"train\": [\"x\"]}}", name, {});
    EXPECT_GT(config.model.layers, 0);
  }
  const auto runs = preset_names("runs");
  EXPECT_GE(runs.size(), 3u);
  for (const std::string& name : runs) {
    const Config config = load_config(root + "/runs/" + name + ".json", {});
    EXPECT_FALSE(load_profile(config.hardware).kind.empty()) << name;
    EXPECT_EQ(parse_config(to_json_text(config), name, {}), config) << name;
  }
}

TEST(Config, DataFilesAreFoundBesideTheConfigs) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path("/");
  const Config config = small({"data.train=[\"data/austen.txt\", \"no/such.txt\"]"});
  std::filesystem::current_path(before);
  EXPECT_EQ(config.data.train[0], config_root() + "/data/austen.txt");
  EXPECT_EQ(config.data.train[1], "no/such.txt");
}

// Random configs: what is written reads back to the same, and writing it again gives the same text.
TEST(Config, RoundTrip) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const auto real = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const auto maybe = [&] { return pick(0, 1) == 1; };
  int wsd = 0, scaled = 0, gpt2 = 0;
  for (int trial = 0; trial < 300; ++trial) {
    Json root = Json::object();
    Json& model = root["model"];
    const bool is_gpt2 = pick(0, 3) == 0;
    gpt2 += is_gpt2;
    const int64_t heads = pick(1, 8), head_dim = 2 * pick(1, 64);
    model = {{"family", is_gpt2 ? "gpt2" : "llama"},
             {"layers", pick(1, 96)},
             {"hidden", heads * head_dim},
             {"heads", heads},
             {"ffn", pick(1, 10000)},
             {"context", pick(1, 8192)}};
    if (maybe()) model["vocab"] = pick(257, 200000);
    if (maybe()) model["tied_head"] = maybe();
    if (maybe()) model["norm_eps"] = real(1e-8, 1e-3);
    if (!is_gpt2) {
      if (maybe()) model["kv_heads"] = 1;
      if (maybe()) model["head_dim"] = 2 * pick(1, 128);
      if (maybe()) model["qkv_bias"] = maybe();
      if (maybe()) model["qk_norm"] = maybe();
      if (maybe()) model["rope"] = {{"theta", real(1, 1e6)}};
      if (maybe()) {
        ++scaled;
        model["rope"]["llama3_scaling"] = true;
        model["rope"]["factor"] = real(1, 64);
        model["rope"]["original_context"] = pick(1, 100000);
      }
    }
    root["data"] = {{"train", {"a b.txt", "\xC3\xA9\"\\.txt"}}};
    if (maybe()) root["data"]["validation"] = real(0, 0.99);
    if (pick(0, 3) == 0) root["data"]["validation"] = {"v1", "v2"};
    const int64_t micro = pick(1, 8), steps = pick(100, 100000);
    root["train"] = {{"steps", steps}, {"micro_batch", micro}, {"batch", micro * pick(1, 16) * 4}};
    if (maybe()) root["train"]["seed"] = pick(0, INT64_MAX);
    if (maybe()) root["train"]["precision"] = "bf16";
    if (maybe()) root["train"]["loss_chunk"] = pick(0, 10000);
    Json& optimizer =
        root["optimizer"] = {{"lr", real(1e-9, 1)}, {"betas", {real(0, 1), real(0, 1)}}};
    if (maybe()) {
      ++wsd;
      optimizer["schedule"] = "wsd";
      optimizer["decay"] = pick(1, 50);
      optimizer["warmup"] = pick(0, 50);
    }
    if (maybe()) optimizer["eps"] = real(1e-20, 1e-3);
    if (maybe()) root["memory"]["device"] = std::to_string(pick(1, int64_t{1} << 40)) + "B";
    if (maybe()) root["memory"]["host"] = fmt::format("{:.3f} GiB", real(0.01, 2000));
    if (maybe()) root["offload"] = "off";
    if (maybe())
      root["place"] = {{"qkv", "host"}, {"a_1@0", "recompute"}, {"moments@embed,head", "device"}};
    if (maybe())
      root["parallel"] = {{"zero", pick(0, 3)}, {"reduce_every", 4}, {"tree", pick(1, 64)}};
    if (maybe()) root["parallel"]["zero"] = "auto";
    if (maybe())
      root["hardware"] = {{"link", fmt::format("{:.2f}MB/s", real(0.1, 1e5))},
                          {"nodes", pick(1, 64)}};
    if (maybe()) root["checkpoint"] = {{"every", pick(0, 1000)}, {"keep", pick(1, 10)}};
    const std::string text = root.dump();
    SCOPED_TRACE(text);
    const Config config = parse_config(text, "random", {});
    const std::string written = to_json_text(config);
    const Config again = parse_config(written, "written", {});
    ASSERT_EQ(again, config) << written;
    ASSERT_EQ(to_json_text(again), written);
    ASSERT_EQ(numerics_hash(again, 2), numerics_hash(config, 2));
    ASSERT_TRUE(changes_that_forbid_resume(written, config).empty());
  }
  EXPECT_GT(wsd, 50);
  EXPECT_GT(scaled, 50);
  EXPECT_GT(gpt2, 20);
}

// One change of each key, and whether it may happen on resume and changes the numerics' hash.
TEST(Config, ResumeAndNumerics) {
  struct Case {
    const char* change;
    bool forbidden, numeric;
  };
  const Case cases[] = {
      {"model.layers=3", true, true},
      {"model.ffn=97", true, true},
      {"model.qk_norm=true", true, true},
      {"model.rope.theta=5e5", true, true},
      {"model.rope.llama3_scaling=true", true, true},
      {"data.train=[\"y\"]", true, true},
      {"data.validation=0.1", true, true},
      {"train.steps=10", true, true},
      {"train.batch=16", true, true},
      {"train.micro_batch=2", true, true},
      {"train.precision=bf16", true, true},
      {"train.seed=2", true, true},
      {"train.loss_chunk=64", true, true},
      {"train.eval_batches=1", true, false},
      {"train.max_skipped=1", true, false},
      {"optimizer.lr=1e-4", true, true},
      {"optimizer.betas=[0.9,0.99]", true, true},
      {"optimizer.clip=0", true, true},
      {"optimizer.schedule=linear", true, true},
      {"parallel.reduce_every=2", true, true},
      {"parallel.tree=2", true, true},
      {"parallel.zero=0", false, false},
      {"memory.device=1GB", false, false},
      {"memory.host=1GB", false, false},
      {"offload=off", false, false},
      {"recompute=off", false, false},
      {"place.qkv=host", false, false},
      {"hardware.link=1GB/s", false, false},
      {"hardware.profile=h100-80", false, false},
      {"checkpoint.every=5", false, false},
      {"checkpoint.keep=5", false, false},
      {"output=elsewhere", false, false},
  };
  const Config before = small();
  const std::string saved = to_json_text(before);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.change);
    const Config now = small({c.change});
    ASSERT_NE(now, before);
    const std::vector<KeyChange> changes = changes_that_forbid_resume(saved, now);
    EXPECT_EQ(!changes.empty(), c.forbidden);
    EXPECT_EQ(numerics_hash(now, 1) != numerics_hash(before, 1), c.numeric);
  }
  EXPECT_NE(numerics_hash(before, 1), numerics_hash(before, 2));

  const auto changes = changes_that_forbid_resume(saved, small({"train.seed=7"}));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].key, "train.seed");
  EXPECT_EQ(changes[0].before, "1");
  EXPECT_EQ(changes[0].after, "7");
  // The same data named in another way, and the same data in another folder.
  EXPECT_TRUE(changes_that_forbid_resume(saved, small({"data.train=[\"./x\"]"})).empty());
  EXPECT_FALSE(changes_that_forbid_resume(saved, small({"data.train=[\"z/x\"]"})).empty());
  EXPECT_EQ(numerics_hash(small({"data.train=[\"z/x\"]"}), 1), numerics_hash(before, 1));
  EXPECT_THROW(changes_that_forbid_resume("{", before), Error);
}

// What the fuzzer kept: none of it may end in anything but a Config or an Error.
TEST(Config, FuzzCorpus) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(SPILLWAY_SOURCE_DIR) +
                                                               "/tests/fuzz/corpus/config")) {
    std::stringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    ++files;
    try {
      const Config config = parse_config(text.str(), "corpus", {});
      EXPECT_EQ(parse_config(to_json_text(config), "written", {}), config) << entry.path();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input) << entry.path() << ": " << error.what();
    }
  }
  EXPECT_GE(files, 10);
}

}  // namespace
}  // namespace spillway
