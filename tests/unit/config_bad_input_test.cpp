// Every kind of bad configuration is one line that names file, key, what was found and what is due.
// links: spillway_config
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"

namespace spillway {
namespace {

const char* const kGood = R"({
  "model": {"family": "llama", "layers": 6, "hidden": 256, "heads": 4, "kv_heads": 2, "ffn": 704,
            "context": 256, "tied_head": true},
  "data": {"train": ["data/austen.txt"], "tokenizer": "bytes", "validation": 0.05},
  "train": {"steps": 600, "batch": 32, "micro_batch": 8, "precision": "bf16", "seed": 1,
            "eval_every": 100, "max_skipped": 10},
  "optimizer": {"lr": 1e-3, "schedule": "cosine", "warmup": 50, "min_lr": 1e-4,
                "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0},
  "memory": {"device": "auto", "host": "auto"}, "offload": "auto", "recompute": "auto",
  "place": {"qkv": "host", "moments@0-3,5": "device"},
  "parallel": {"zero": 1, "reduce_every": "all", "tree": "auto"},
  "hardware": {"profile": "auto", "backend": "auto", "nodes": "auto", "devices_per_node": "auto",
               "link": "2GB/s"},
  "checkpoint": {"every": 200, "keep": 3}, "output": "runs/austen" })";

// The message of the error that `text` with `overrides` ends in; empty if there is none.
std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_config(text, "x.json", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    EXPECT_LT(std::string(error.what()).size(), 600u) << error.what();
    return error.what();
  }
  return "";
}

void expect_error(const std::string& message, const std::vector<std::string>& parts) {
  EXPECT_NE(message, "") << "no error, though it should name " << parts.front();
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" not in: " << message;
}

struct Bad {
  const char* override_text;
  std::vector<std::string> parts;
};

TEST(BadInput, GoodIsGood) { EXPECT_EQ(error_of(kGood), ""); }

TEST(BadInput, OneKey) {
  const Bad cases[] = {
      // unknown keys
      {"model.hiden=256", {"unknown key \"model.hiden\"", "\"model.hidden\""}},
      {"optimiser.lr=1", {"unknown key \"optimiser\"", "\"optimizer\""}},
      {"lr=1", {"unknown key \"lr\"", "\"optimizer.lr\""}},
      {"model.num_hidden_layers=4", {"\"model.num_hidden_layers\"", "\"model.layers\""}},
      {"model.rope_theta=1e6", {"\"model.rope_theta\"", "\"model.rope.theta\""}},
      {"train.learning_rate=1", {"\"train.learning_rate\"", "\"optimizer.lr\""}},
      {"optimizer.lr.x=1", {"optimizer.lr has no keys of its own"}},
      // wrong types
      {"model.layers=\"6\"", {"model.layers", "an integer", "the string \"6\""}},
      {"model.layers=6.5", {"model.layers", "an integer", "6.5"}},
      {"model.layers=null", {"model.layers", "an integer", "null"}},
      {"model.tied_head=1", {"model.tied_head", "true or false", "found 1"}},
      {"data.train=data/austen.txt", {"data.train", "an array", "the string"}},
      {"data.train=[1]", {"data.train[0]", "a string", "found 1"}},
      {"train=5", {"train", "an object", "found 5"}},
      {"output={}", {}},  // a string that looks like JSON is still a name
      {"optimizer.betas=[0.9]", {"optimizer.betas", "2 values", "found 1"}},
      {"optimizer.betas=[0.9,1.0]", {"optimizer.betas[1]", "below 1", "1.0"}},
      {"model=7", {"model", "a string", "an object", "found 7"}},
      // sizes and rates
      {"memory.device=512", {"memory.device", "512MiB", "found 512", "unit is missing"}},
      {"memory.device=\"512\"", {"memory.device", "512MiB", "unit is missing"}},
      {"memory.device=-1GB", {"memory.device", "\"-1GB\"", "negative"}},
      {"memory.device=0GB", {"memory.device", "\"0GB\"", "at least one byte"}},
      {"memory.host=12XB", {"memory.host", "\"12XB\"", "unit is unknown"}},
      {"memory.host=1.2.3GB", {"memory.host", "malformed"}},
      {"memory.host=99999999TiB", {"memory.host", "too large"}},
      {"memory.host=nan", {"memory.host", "\"nan\"", "512MiB"}},
      {"memory.host=0x10GB", {"memory.host", "unit is unknown"}},
      {"hardware.link=2GB", {"hardware.link", "2GB/s", "\"/s\" is missing"}},
      {"hardware.link=0B/s", {"hardware.link", "at least one byte"}},
      // numbers
      {"optimizer.lr=NaN", {"optimizer.lr", "a number", "NaN"}},
      {"optimizer.lr=Infinity", {"optimizer.lr", "a number", "Infinity"}},
      {"optimizer.lr=1e999", {"optimizer.lr", "a number"}},
      {"optimizer.lr=0", {"optimizer.lr", "above 0", "found 0"}},
      {"optimizer.lr=-1", {"optimizer.lr", "above 0", "found -1"}},
      {"optimizer.min_lr=1", {"optimizer.min_lr", "optimizer.lr 0.001", "found 1"}},
      {"model.layers=0", {"model.layers", "at least 1", "found 0"}},
      {"model.hidden=-256", {"model.hidden", "at least 1", "found -256"}},
      {"model.hidden=99999999999999999999", {"model.hidden", "at most"}},
      {"train.steps=0", {"train.steps", "at least 1"}},
      {"train.batch=-8", {"train.batch", "at least 1"}},
      {"train.seed=-1", {"train.seed", "at least 0"}},
      {"checkpoint.keep=0", {"checkpoint.keep", "at least 1"}},
      {"data.validation=1", {"data.validation", "below 1", "found 1"}},
      {"data.validation=[]", {"data.validation", "1 to"}},
      {"data.train=[]", {"data.train", "1 to", "found 0"}},
      {"output=", {"output", "empty string"}},
      // words
      {"optimizer.schedule=cosin", {"optimizer.schedule", "\"linear\"", "did you mean \"cosine\""}},
      {"train.precision=bf15", {"train.precision", "did you mean \"bf16\""}},
      {"model.family=lama", {"model.family", "did you mean \"llama\""}},
      {"data.tokenizer=byte", {"data.tokenizer", "did you mean \"bytes\""}},
      {"hardware.backend=gpu", {"hardware.backend", "\"cuda\""}},
      {"offload=on", {"offload", "\"auto\" or \"off\""}},
      {"parallel.zero=4", {"parallel.zero", "0, 1, 2 or 3", "found 4"}},
      {"parallel.zero=autp", {"parallel.zero", "0, 1, 2 or 3", "did you mean \"auto\""}},
      {"parallel.reduce_every=al", {"parallel.reduce_every", "did you mean \"all\""}},
      {"model=llama3-8", {"model", "\"llama3-8\"", "did you mean \"llama3-8b\""}},
      {"model=../hardware/cpu", {"model", "unknown name"}},
      {"place.qkv=hots", {"place", "qkv", "did you mean \"host\""}},
      // rules between keys
      {"model.heads=5", {"model.heads", "5", "model.hidden 256", "nearest that does is 4"}},
      {"model.kv_heads=3", {"model.kv_heads", "3", "model.heads 4", "nearest that does is"}},
      {"model.head_dim=33", {"model.head_dim", "even", "33"}},
      {"train.micro_batch=7",
       {"train.micro_batch", "7", "train.batch 32", "nearest that does is 8"}},
      {"optimizer.warmup=601", {"optimizer.warmup", "601", "train.steps 600"}},
      {"optimizer.schedule=wsd", {"optimizer.decay is missing", "wsd"}},
      {"optimizer.decay=5", {"optimizer.decay", "wsd"}},
      {"parallel.reduce_every=3", {"parallel.reduce_every", "3", "4 micro-batches"}},
      {"model.vocab=256", {"model.vocab", "256", "257"}},
      {"data.tokenizer=uint16", {"model.vocab is missing", "uint16"}},
      {"data.validation=0", {"train.eval_every", "data.validation"}},
      {"model.rope.factor=4", {"model.rope.factor", "llama3_scaling"}},
      {"model.context=1048576", {}},
      {"place.moments=recompute", {"place.\"moments\"", "cannot be recomputed"}},
      {"place.moments=rotated", {"place.\"moments\"", "\"device\" or \"host\""}},
      {"place.update=device", {"place.\"update\"", "\"host_rotated\""}},
      {"place.qkv@9=host", {"place.\"qkv@9\"", "block 9", "0 to 5"}},
      {"place.qkv@3-1=host", {"place.\"qkv@3-1\"", "backward"}},
      {"place.qkv@=host", {"place.\"qkv@\"", "block's number"}},
      {"place.@3=host", {"place.\"@3\"", "name"}},
      {"place.a.b=host", {"place.\"a.b\"", "name"}},
      {"memory.device=atuo", {"memory.device", "512MiB", "did you mean \"auto\""}},
      {"place.QKV=host", {"place.\"QKV\"", "name"}},
      // --set itself
      {"optimizer.lr", {"--set", "key=value"}},
      {"=3", {"--set", "key=value"}},
      {"\xff=3", {"--set", "UTF-8"}},
      {"output=a\nb", {"output", "control character"}},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.override_text);
    const std::string message = error_of(kGood, {bad.override_text});
    if (bad.parts.empty()) {
      EXPECT_EQ(message, "");
    } else {
      expect_error(message, bad.parts);
    }
  }
}

TEST(BadInput, WhatIsNotSupportedIsNamed) {
  const Bad cases[] = {
      {"parallel.tensor=2", {"tensor parallelism", "parallel.tensor = "}},
      {"parallel.pipeline=2", {"pipeline parallelism"}},
      {"parallel.context=2", {"context parallelism"}},
      {"parallel.expert=2", {"expert parallelism"}},
      {"train.precision=fp8", {"fp8"}},
      {"model.dropout=0.1", {"dropout", "model.dropout = "}},
      {"train.dropout=0.1", {"dropout"}},
      {"train.z_loss=1e-4", {"z-loss"}},
      {"data.tokenizer=megatron", {"Megatron token files"}},
      {"data.train=[\"a/b.idx\"]", {"Megatron token files", "a/b.idx"}},
      {"memory.nvme=1TB", {"NVMe"}},
      {"place.moments=nvme", {"NVMe"}},
      {"model.num_experts=8", {"mixture of experts"}},
      {"model.sliding_window=4096", {"sliding-window"}},
      {"model.rope_scaling={\"rope_type\":\"yarn\",\"factor\":4}", {"RoPE scaling", "yarn"}},
      {"model.rope.rope_type=yarn", {"RoPE scaling", "yarn"}},
      {"optimizer.rotated=true", {"rotated update"}},
      {"model.pretrained=meta-llama/Llama-3", {"Hugging Face import"}},
      {"checkpoint.export=hf", {"Hugging Face export"}},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.override_text);
    const std::string message = error_of(kGood, {bad.override_text});
    expect_error(message, {"not supported yet: "});
    expect_error(message, bad.parts);
  }
}

// The same keys in the file, where nested values keep their JSON types.
TEST(BadInput, InTheFile) {
  const auto with = [](const std::string& model) {
    return "{\"model\": {\"family\": \"llama\", \"layers\": 2, \"hidden\": 64, \"heads\": 4, "
           "\"ffn\": 96, "
           "\"context\": 32" +
           model + "}, \"data\": {\"train\": [\"x\"]}}";
  };
  EXPECT_EQ(error_of(with("")), "");
  expect_error(error_of(with(", \"rope_scaling\": {\"rope_type\": \"yarn\"}")),
               {"x.json: not supported yet: RoPE scaling", "{\"rope_type\":\"yarn\"}"});
  expect_error(error_of(with(", \"attention_dropout\": 0.0")), {"not supported yet: dropout"});
  expect_error(error_of(with(", \"layers\": 3")), {"x.json: duplicate key \"model.layers\""});
  expect_error(error_of(with(", \"rope\": {\"theta\": 1e4, \"theta\": 1e5}")),
               {"duplicate key \"model.rope.theta\""});
  expect_error(error_of(with(", \"rope\": {\"llama3_scaling\": true, \"high_freq_factor\": 1}")),
               {"model.rope.high_freq_factor", "low_freq_factor"});
}

TEST(BadInput, Gpt2HasNoLlamaFeatures) {
  const std::string text =
      "{\"model\": {\"family\": \"gpt2\", \"layers\": 2, \"hidden\": 64, \"heads\": 4, \"ffn\": "
      "96, "
      "\"context\": 32}, \"data\": {\"train\": [\"x\"]}}";
  EXPECT_EQ(error_of(text), "");
  EXPECT_EQ(error_of(text, {"model.qk_norm=false"}), "");
  for (const char* change : {"model.qk_norm=true", "model.qkv_bias=true", "model.kv_heads=2",
                             "model.head_dim=32", "model.rope.theta=1e6"}) {
    SCOPED_TRACE(change);
    const std::string key = std::string(change).substr(0, std::string(change).find('='));
    expect_error(error_of(text, {change}), {key.substr(0, 10), "does not apply", "\"gpt2\""});
  }
}

TEST(BadInput, MissingKeys) {
  expect_error(error_of("{}"), {"x.json: model is missing"});
  expect_error(error_of("{\"model\": \"quickstart\"}"), {"x.json: data is missing"});
  expect_error(error_of("{\"model\": \"quickstart\", \"data\": {}}"), {"data.train is missing"});
  expect_error(error_of("{\"model\": {\"family\": \"llama\"}, \"data\": {\"train\": [\"x\"]}}"),
               {"model.layers is missing"});
  expect_error(error_of("{\"model\": {}, \"data\": {\"train\": [\"x\"]}}"),
               {"model.family is missing"});
}

TEST(BadInput, NotJson) {
  expect_error(error_of(""), {"x.json: not a JSON document", "empty"});
  expect_error(error_of(" \n\t"), {"x.json: not a JSON document", "empty"});
  expect_error(error_of("{\"model\": nul}"), {"not a JSON document at byte 13"});
  expect_error(error_of("{\"optimizer\": {\"lr\": NaN}}"), {"not a JSON document at byte 21"});
  expect_error(error_of("{\"optimizer\": {\"lr\": -Infinity}}"), {"not a JSON document at byte"});
  expect_error(error_of("{\"optimizer\": {\"lr\": 1e999}}"), {"not a JSON document at byte"});
  expect_error(error_of("{\"a\": 1,}"), {"not a JSON document at byte 8"});
  expect_error(error_of("{\"model\""), {"not a JSON document at byte 8"});
  expect_error(error_of("{} {}"), {"not a JSON document at byte 3"});
  expect_error(error_of("{} // no"), {"not a JSON document at byte 3"});
  expect_error(error_of("model: quickstart\n"), {"not a JSON document at byte 0"});
  expect_error(error_of(std::string("{\"a\": \"\xff\"}")), {"not a JSON document at byte 7"});
  expect_error(error_of("{\"a\": \"" + std::string(100000, 'x')), {"not a JSON document at byte"});
  expect_error(error_of("[]"), {"x.json", "an object", "array"});
  expect_error(error_of("3"), {"x.json", "an object", "found 3"});
  expect_error(error_of(std::string(1 << 20, '[')), {"nested more than 64 levels"});
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  expect_error(error_of(deep), {"nested more than 64 levels"});
  std::string many = "{";
  for (int i = 0; i < 100000; ++i) many += "\"k" + std::to_string(i) + "\":1,";
  expect_error(error_of(many), {"more than 65536 keys"});
  expect_error(error_of("{\"data\":{\"train\":[\"a\\u0000b\"]},\"model\":\"quickstart\"}"),
               {"data.train[0]", "control character"});
}

TEST(BadInput, Files) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / ("config_test_" + std::to_string(getpid())))
          .string();
  std::filesystem::create_directory(folder);
  const auto load_error = [](const std::string& path) {
    try {
      load_config(path, {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input);
      return std::string(error.what());
    }
    return std::string();
  };
  expect_error(load_error(folder + "/absent.json"), {"absent.json", "No such file"});
  expect_error(load_error(folder), {folder, "a folder"});
  expect_error(load_error("/dev/zero"), {"/dev/zero", "no regular file"});

  // Sparse: it takes no room, and reading it would take an address space that is not there.
  const std::string huge = folder + "/huge.json";
  std::ofstream(huge) << "{}";
  std::filesystem::resize_file(huge, uint64_t{1} << 40);
  expect_error(load_error(huge), {"huge.json", "1099511627776 bytes", "16777216", "not read"});
  std::filesystem::resize_file(huge, (16 << 20) + 1);
  expect_error(load_error(huge), {"huge.json", "16777217 bytes", "not read"});

  std::ofstream(huge, std::ios::trunc) << kGood;
  EXPECT_EQ(load_error(huge), "");
  std::filesystem::remove_all(folder);
}

TEST(BadInput, PlaceKeys) {
  using Layers = std::vector<int32_t>;
  EXPECT_EQ(parse_place_key("qkv", 3), std::make_pair(std::string("qkv"), Layers{0, 1, 2, 3, 4}));
  EXPECT_EQ(parse_place_key("qkv@0", 3).second, Layers{1});
  EXPECT_EQ(parse_place_key("qkv@0-2", 3).second, (Layers{1, 2, 3}));
  EXPECT_EQ(parse_place_key("qkv@2,0-1,1", 3).second, (Layers{1, 2, 3}));
  EXPECT_EQ(parse_place_key("moments@head,embed", 3).second, (Layers{0, 4}));
  for (const char* key :
       {"", "@", "qkv@", "qkv@3", "qkv@0-3", "qkv@-1", "qkv@1-", "qkv@1,", "qkv@,1", "qkv@0-1-2",
        "qkv@x", "qkv@1@2", "a.b", "q kv", "7", "qkv@ 1", "qkv@99999999999999999999"}) {
    EXPECT_THROW(parse_place_key(key, 3), Error) << key;
  }
  EXPECT_THROW(parse_place_key("qkv@" + std::string(5000, '1'), 3), Error);
}

TEST(Units, Sizes) {
  EXPECT_EQ(parse_bytes("300B", "k"), 300);
  EXPECT_EQ(parse_bytes("2KB", "k"), 2000);
  EXPECT_EQ(parse_bytes("2KiB", "k"), 2048);
  EXPECT_EQ(parse_bytes("1.5 GB", "k"), 1500000000);
  EXPECT_EQ(parse_bytes("1.5GiB", "k"), 1610612736);
  EXPECT_EQ(parse_bytes("80TB", "k"), 80000000000000);
  EXPECT_EQ(parse_bytes("1TiB", "k"), int64_t{1} << 40);
  EXPECT_EQ(parse_rate("2GB/s", "k"), 2e9);
  EXPECT_EQ(parse_rate("0.25 GB/s", "k"), 2.5e8);
  EXPECT_EQ(format_bytes(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes(100), "100 B");
  EXPECT_EQ(format_bytes(-2048), "-2.00 KiB");
  for (const char* text :
       {"",      "B",    "GB",   "1",    "1 ",  "1gb",   "1kB",   "1K",    "1  GB", " 1GB", "1GB ",
        "1e3GB", "+1GB", "1.GB", ".5GB", "inf", "infGB", "nanGB", "1,5GB", "0.1B",  "auto"}) {
    EXPECT_THROW(parse_bytes(text, "k"), Error) << text;
  }
}

}  // namespace
}  // namespace spillway
