// What a resumed run may change, and what can change a bit: x-resume and x-numerics of the schema.
#include <filesystem>
#include <map>

#include "base/hash.h"
#include "config/schema.h"
#include "config/values.h"

namespace spillway {
namespace {

// The same file under the same text, from whatever folder it was named.
std::string full_path(const std::string& path) {
  std::error_code error;
  const std::filesystem::path full =
      std::filesystem::weakly_canonical(std::filesystem::current_path(error) / path, error);
  return error ? path : full.string();
}

void rewrite_files(Config& config, std::string (*rewrite)(const std::string&)) {
  for (std::string& file : config.data.train) file = rewrite(file);
  for (std::string& file : config.data.validation_files) file = rewrite(file);
}

}  // namespace

std::vector<KeyChange> changes_that_forbid_resume(const std::string& saved_json,
                                                  const Config& now) {
  Config before = parse_config(saved_json, "the checkpoint's configuration", {}), after = now;
  rewrite_files(before, full_path);
  rewrite_files(after, full_path);
  const auto values_before = config_values(before), values_after = config_values(after);
  std::map<std::string, std::string> old_values;
  for (const auto& [key, value] : values_before) old_values[key] = value.dump();

  std::vector<KeyChange> changes;
  const auto note = [&](const std::string& key, std::string from, std::string to) {
    if (from == to || inherited_keyword(config_schema(), key, "x-resume")) return;
    changes.push_back({key, std::move(from), std::move(to)});
  };
  for (const auto& [key, value] : values_after) {
    const auto it = old_values.find(key);
    note(key, it == old_values.end() ? "not set" : it->second, value.dump());
    if (it != old_values.end()) old_values.erase(it);
  }
  for (const auto& [key, value] : old_values) note(key, value, "not set");
  return changes;
}

KeyValues numerics_values(const Config& config, int ranks) {
  Config named = config;
  rewrite_files(named, [](const std::string& path) {
    return std::filesystem::path(path).filename().string();
  });
  KeyValues values = {{"ranks", std::to_string(ranks)}};
  for (const auto& [key, value] : config_values(named)) {
    // The optimizer's state is the same wherever it stands.
    if (key == "parallel.zero" || !inherited_keyword(config_schema(), key, "x-numerics")) continue;
    values.emplace_back(key, value.dump());
  }
  return values;
}

uint64_t numerics_hash(const Config& config, int ranks) {
  const KeyValues values = numerics_values(config, ranks);
  Hasher hasher;
  hasher.value(static_cast<int64_t>(ranks));
  for (size_t i = 1; i < values.size(); ++i) {
    hasher.text(values[i].first);
    hasher.text(values[i].second);
  }
  return hasher.digest();
}

}  // namespace spillway
