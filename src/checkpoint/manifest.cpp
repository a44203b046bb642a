// manifest.json is one JSON object whose first key checks the rest of the file:
//   text  = '{"checksum": "' HASH '",' rest
//   HASH  = 16 hex digits, XXH3 of all bytes of `rest`
//   rest  = '\n "format": "spillway-checkpoint", "version": 1, "step": …, …}\n'
// `tensors` is an array of {name, dtype: "F32", shape: [live sizes], slices: [{shard, entry, begin,
// count, hash}]}; `shards` an array of {file, bytes, header_hash}. Hashes are hex text, since JSON
// readers round integers above 2^53.
#include "checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/hash.h"

namespace spillway {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFormat = "spillway-checkpoint";
constexpr int64_t kVersion = 1;
constexpr std::string_view kPrefix = "{\"checksum\": \"", kSuffix = "\",";
constexpr size_t kHexDigits = 16;

// Typed access to one JSON object; errors name the manifest and the key.
class Fields {
 public:
  Fields(const json& object, const std::string& origin, std::string where)
      : object_(object), origin_(origin), where_(std::move(where)) {
    if (!object.is_object()) bad_input("{}: {}: expected an object", origin_, where_);
  }
  const json& at(const char* key) const {
    const auto it = object_.find(key);
    if (it == object_.end()) bad_input("{}: {}: \"{}\" is missing", origin_, where_, key);
    return *it;
  }
  int64_t integer(const char* key, int64_t low = 0, int64_t high = INT64_MAX) const {
    const json& value = at(key);
    const bool fits =
        value.is_number_unsigned() ? value.get<uint64_t>() <= INT64_MAX : value.is_number_integer();
    if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high) {
      bad_input("{}: {}: \"{}\": expected an integer from {} to {}", origin_, where_, key, low,
                high);
    }
    return value.get<int64_t>();
  }
  std::string text(const char* key) const {
    const json& value = at(key);
    if (!value.is_string()) bad_input("{}: {}: \"{}\": expected a string", origin_, where_, key);
    return value.get<std::string>();
  }
  uint64_t hash(const char* key) const {
    const std::string digits = text(key);
    if (digits.size() != kHexDigits ||
        digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
      bad_input("{}: {}: \"{}\": expected 16 hex digits", origin_, where_, key);
    }
    return std::stoull(digits, nullptr, 16);
  }
  bool has(const char* key) const { return object_.contains(key); }
  const json& array(const char* key) const {
    const json& value = at(key);
    if (!value.is_array()) bad_input("{}: {}: \"{}\": expected an array", origin_, where_, key);
    return value;
  }

 private:
  const json& object_;
  const std::string& origin_;
  std::string where_;
};

Dims parse_shape(const json& sizes, const std::string& origin, const std::string& tensor) {
  Dims dims;
  int64_t count = 1;
  if (sizes.size() > 4) bad_input("{}: tensor \"{}\": more than 4 dimensions", origin, tensor);
  for (const json& size : sizes) {
    int64_t value = -1;
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX ||
        __builtin_mul_overflow(count, value = size.get<int64_t>(), &count) ||
        count > INT64_MAX / 8) {
      bad_input("{}: tensor \"{}\": impossible shape {}", origin, tensor, sizes.dump());
    }
    dims.d[dims.rank++] = value;
  }
  return dims;
}

StoredTensor parse_tensor(const json& value, const std::string& origin, size_t shards) {
  const Fields fields(value, origin, "tensors");
  StoredTensor tensor;
  tensor.name = fields.text("name");
  if (fields.text("dtype") != "F32") {
    bad_input("{}: tensor \"{}\": dtype \"{}\", expected \"F32\"", origin, tensor.name,
              fields.text("dtype"));
  }
  tensor.shape = parse_shape(fields.array("shape"), origin, tensor.name);
  for (const json& part : fields.array("slices")) {
    const Fields slice(part, origin, "tensor \"" + tensor.name + "\"");
    tensor.slices.push_back(
        {static_cast<int32_t>(slice.integer("shard", 0, static_cast<int64_t>(shards) - 1)),
         slice.text("entry"), slice.integer("begin"), slice.integer("count", 1),
         slice.hash("hash")});
  }
  return tensor;
}

// What is wrong with the order and the tiling, or "".
std::string disorder(const Manifest& manifest) {
  std::set<std::pair<int32_t, std::string>> entries;
  for (size_t t = 0; t < manifest.tensors.size(); ++t) {
    const StoredTensor& tensor = manifest.tensors[t];
    if (t > 0 && !(manifest.tensors[t - 1].name < tensor.name)) {
      return fmt::format("tensor \"{}\" comes twice or out of order", tensor.name);
    }
    int64_t next = 0;
    for (const StoredSlice& slice : tensor.slices) {
      if (slice.begin != next || slice.count > tensor.shape.count() - next) {
        return fmt::format(
            "tensor \"{}\" of {} elements: found a slice of {} from element {}, expected the next "
            "from {}",
            tensor.name, tensor.shape.count(), slice.count, slice.begin, next);
      }
      if (!entries.emplace(slice.shard, slice.entry).second) {
        return fmt::format("two slices stand in entry \"{}\" of shard {}", slice.entry,
                           slice.shard);
      }
      next += slice.count;
    }
    if (next != tensor.shape.count()) {
      return fmt::format("tensor \"{}\": {} of {} elements are there", tensor.name, next,
                         tensor.shape.count());
    }
  }
  return "";
}

RunState parse_run(const Fields& fields, const std::string& origin) {
  RunState run;
  run.step = fields.integer("step");
  run.data_position = fields.integer("data_position");
  run.updates = fields.integer("updates");
  run.skipped = fields.integer("skipped");
  run.skipped_in_row = fields.integer("skipped_in_row");
  run.ranks = static_cast<int32_t>(fields.integer("ranks", 1, 1 << 24));
  run.tree = static_cast<int32_t>(fields.integer("tree", 1, 1 << 24));
  run.numerics_hash = fields.hash("numerics_hash");
  const json& fingerprint = fields.at("fingerprint");
  const Fields names(fingerprint, origin, "fingerprint");
  for (const auto& item : fingerprint.items()) {
    run.fingerprint[item.key()] = names.text(item.key().c_str());
  }
  run.config = fields.text("config");
  if (fields.has("gemm_algorithms")) run.gemm_algorithms = fields.text("gemm_algorithms");
  return run;
}

}  // namespace

std::string shard_name(int32_t shard) { return fmt::format("rank_{:05}.safetensors", shard); }
std::string step_folder(uint64_t step) { return fmt::format("step_{:08}", step); }

void sort_and_check(Manifest& manifest) {
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  for (StoredTensor& tensor : manifest.tensors) {
    std::sort(tensor.slices.begin(), tensor.slices.end(),
              [](const StoredSlice& a, const StoredSlice& b) { return a.begin < b.begin; });
  }
  const std::string wrong = disorder(manifest);
  if (!wrong.empty()) internal_error("checkpoint of step {}: {}", manifest.run.step, wrong);
}

std::string to_text(const Manifest& manifest) {
  const RunState& run = manifest.run;
  ordered_json body;
  body["format"] = kFormat;
  body["version"] = kVersion;
  body["step"] = run.step;
  body["data_position"] = run.data_position;
  body["updates"] = run.updates;
  body["skipped"] = run.skipped;
  body["skipped_in_row"] = run.skipped_in_row;
  body["ranks"] = run.ranks;
  body["tree"] = run.tree;
  body["numerics_hash"] = hex(run.numerics_hash);
  body["fingerprint"] = ordered_json::object();
  for (const auto& [key, value] : run.fingerprint) body["fingerprint"][key] = value;
  body["config"] = run.config;
  if (!run.gemm_algorithms.empty()) body["gemm_algorithms"] = run.gemm_algorithms;
  body["shards"] = ordered_json::array();
  for (size_t i = 0; i < manifest.shards.size(); ++i) {
    body["shards"].push_back({{"file", shard_name(static_cast<int32_t>(i))},
                              {"bytes", manifest.shards[i].bytes},
                              {"header_hash", hex(manifest.shards[i].header_hash)}});
  }
  body["tensors"] = ordered_json::array();
  for (const StoredTensor& tensor : manifest.tensors) {
    ordered_json shape = ordered_json::array(), slices = ordered_json::array();
    for (int i = 0; i < tensor.shape.rank; ++i) shape.push_back(tensor.shape[i]);
    for (const StoredSlice& slice : tensor.slices) {
      slices.push_back({{"shard", slice.shard},
                        {"entry", slice.entry},
                        {"begin", slice.begin},
                        {"count", slice.count},
                        {"hash", hex(slice.hash)}});
    }
    body["tensors"].push_back(
        {{"name", tensor.name}, {"dtype", "F32"}, {"shape", shape}, {"slices", slices}});
  }
  const std::string rest = body.dump(1).substr(1) + "\n";  // without the opening brace
  return fmt::format("{}{}{}{}", kPrefix, hex(hash_bytes(rest.data(), rest.size())), kSuffix, rest);
}

Manifest parse_manifest(std::string_view text, const std::string& origin) {
  const size_t start = kPrefix.size() + kHexDigits + kSuffix.size();
  if (text.size() < start || text.substr(0, kPrefix.size()) != kPrefix ||
      text.substr(start - kSuffix.size(), kSuffix.size()) != kSuffix) {
    bad_input("{}: not a Spillway manifest: expected it to start with {}…", origin, kPrefix);
  }
  const std::string_view rest = text.substr(start);
  const std::string found = hex(hash_bytes(rest.data(), rest.size()));
  const std::string_view expected = text.substr(kPrefix.size(), kHexDigits);
  if (found != expected) {
    bad_input("{}: damaged: its checksum is {}, expected {}", origin, found, expected);
  }
  const json root = json::parse(text, nullptr, false);
  if (root.is_discarded()) bad_input("{}: not JSON", origin);
  const Fields fields(root, origin, "manifest");
  if (fields.text("format") != kFormat) {
    bad_input("{}: format \"{}\", expected \"{}\"", origin, fields.text("format"), kFormat);
  }
  if (fields.integer("version") != kVersion) {
    bad_input("{}: format version {}, expected {}", origin, fields.integer("version"), kVersion);
  }
  Manifest manifest;
  manifest.run = parse_run(fields, origin);
  for (const json& value : fields.array("shards")) {
    const Fields shard(value, origin, "shards");
    const std::string name = shard_name(static_cast<int32_t>(manifest.shards.size()));
    if (shard.text("file") != name) {
      bad_input("{}: shard file \"{}\", expected \"{}\"", origin, shard.text("file"), name);
    }
    manifest.shards.push_back({shard.integer("bytes"), shard.hash("header_hash")});
  }
  for (const json& value : fields.array("tensors")) {
    manifest.tensors.push_back(parse_tensor(value, origin, manifest.shards.size()));
  }
  const std::string wrong = disorder(manifest);
  if (!wrong.empty()) bad_input("{}: {}", origin, wrong);
  return manifest;
}

const StoredTensor* find_tensor(const Manifest& manifest, const std::string& name) {
  const auto it = std::lower_bound(
      manifest.tensors.begin(), manifest.tensors.end(), name,
      [](const StoredTensor& tensor, const std::string& value) { return tensor.name < value; });
  return it != manifest.tensors.end() && it->name == name ? &*it : nullptr;
}

bool is_moment(const Manifest& manifest, const std::string& name) {
  const size_t dot = name.size() - 2;
  return name.size() > 2 && name[dot] == '.' && (name.back() == 'm' || name.back() == 'v') &&
         find_tensor(manifest, name.substr(0, dot)) != nullptr;
}

}  // namespace spillway
