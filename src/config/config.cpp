#include "config/config.h"

#include <filesystem>

#include "base/error.h"
#include "config/rules.h"
#include "config/schema.h"
#include "config/values.h"

namespace spillway {
namespace {

// The JSON at a dotted path; nullptr if it is not there.
const Json* json_at(const Json& root, const std::string& path) {
  const Json* at = &root;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    if (!at->is_object()) return nullptr;
    const auto it = at->find(path.substr(begin, end - begin));
    if (it == at->end()) return nullptr;
    at = &*it;
    begin = end + 1;
  }
  return at;
}

// JSON if it is and if the schema can take it so; else a string: --set output=7 is a name.
Json override_value(const std::string& text, const Json& schema) {
  const auto type = schema.find("type");
  if (type != schema.end() && *type == "string") {
    if (text.size() < 2 || text.front() != '"' || text.back() != '"') return text;
  }
  try {
    return parse_json(text, "value");
  } catch (const Error&) {
    return text;
  }
}

void apply_override(Json& root, const std::string& text) {
  const std::string origin = "--set " + in_quotes(text);
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    bad_input("{}: expected key=value such as optimizer.lr=3e-4", origin);
  }
  const std::string value_text = text.substr(equals + 1);
  if (!is_utf8(text)) bad_input("{}: is not UTF-8", origin);
  Json* at = &root;
  const Json* schema = &config_schema();
  std::string path;
  for (size_t begin = 0;;) {
    const size_t dot = text.find('.', begin);
    const Json* object = object_branch(*schema);
    if (!object) bad_input("{}: {} has no keys of its own", origin, path);
    const bool free_keys = (*object)["additionalProperties"].is_object();
    const bool last = free_keys || dot == std::string::npos || dot > equals;
    const std::string key = text.substr(begin, (last ? equals : dot) - begin);
    // A preset's name makes way for an object that says the same.
    if (path == "model" && at->is_string()) *at = Json{{"preset", *at}};
    if (!at->is_object()) bad_input("{}: {} is no object in the file", origin, path);
    const auto properties = object->find("properties");
    const auto child = properties == object->end() ? Json::const_iterator() : properties->find(key);
    if (properties != object->end() && child != properties->end()) {
      schema = &*child;
    } else if (free_keys) {
      schema = &(*object)["additionalProperties"];
    } else {
      unknown_key(*object, path, key, Json(value_text), origin);
    }
    path = joined(path, key);
    if (last) {
      Json value = override_value(value_text, *schema);
      check_json(value, *schema, path, origin, false);
      at->erase(key);  // a pin that is set again comes last
      (*at)[key] = std::move(value);
      return;
    }
    at = &(*at)[key];
    if (at->is_null()) *at = Json::object();
    begin = dot + 1;
  }
}

// `base` with the keys of `changes` replaced, objects key by key.
void overlay(Json& base, const Json& changes) {
  for (const auto& [key, value] : changes.items()) {
    if (value.is_object() && base.contains(key) && base[key].is_object()) {
      overlay(base[key], value);
    } else {
      base[key] = value;
    }
  }
}

// Replaces a preset's name, or "preset" and overrides, by the model they mean.
void expand_model(Json& root, const std::string& origin) {
  Json& model = root["model"];
  Json changes = Json::object();
  std::string name;
  if (model.is_string()) {
    name = model.get<std::string>();
  } else if (model.contains("preset")) {
    changes = model;
    name = changes["preset"].get<std::string>();
    changes.erase("preset");
  } else {
    return;
  }
  const std::string key = model.is_string() ? "model" : "model.preset";
  const std::string path = preset_path("models", name, key, origin);
  Json preset = parse_json(read_json_file(path), path);
  const Json& schema = *object_branch(*schema_at(config_schema(), "model"));
  check_json(preset, schema, "model", path, true);
  if (preset.contains("preset")) bad_input("{}: a preset cannot name another preset", path);
  overlay(preset, changes);
  model = std::move(preset);
}

// The file as the user means it: from the current folder, else from the folder of configs/.
std::string found_data_file(const std::string& path) {
  std::error_code ignored;
  if (path.empty() || path[0] == '/' || std::filesystem::exists(path, ignored)) return path;
  const std::string shipped = config_root() + "/" + path;
  return std::filesystem::exists(shipped, ignored) ? shipped : path;
}

// Whether a key means anything to this config; a key that does not is left out of resolved configs.
bool applies(const Config& config, const std::string& key) {
  const bool llama = config.model.family == Family::llama;
  if (key == "model.qkv_bias" || key == "model.qk_norm") return llama;
  if (key.rfind("model.rope.", 0) == 0) {
    if (key == "model.rope.theta" || key == "model.rope.llama3_scaling") return llama;
    return llama && config.model.rope.llama3_scaling;
  }
  if (key == "optimizer.decay") return config.optimizer.schedule == LrSchedule::wsd;
  return true;
}

}  // namespace

std::vector<std::pair<std::string, Json>> config_values(const Config& config) {
  std::vector<std::pair<std::string, Json>> values;
  for_each_field(config, [&](const std::string& key, const auto& field) {
    if (applies(config, key)) values.emplace_back(key, value_json(field));
  });
  return values;
}

Config parse_config(std::string_view text, const std::string& origin,
                    const std::vector<std::string>& overrides) {
  Json root = parse_json(text, origin);
  check_json(root, config_schema(), "", origin, false);
  for (const std::string& override_text : overrides) apply_override(root, override_text);
  if (root.contains("model")) expand_model(root, origin);
  check_json(root, config_schema(), "", origin, true);

  Config config;
  for_each_field(config, [&](const std::string& key, auto&& field) {
    const Json* value = json_at(root, key);
    if (!value) {
      const Json* schema = schema_at(config_schema(), key);
      if (!schema) internal_error("the schema has no key {}", key);
      const auto standard = schema->find("default");
      if (standard == schema->end()) return;  // depends on other keys: fill_model
      value = &*standard;
    }
    read_value(*value, field);
  });
  fill_model(config, root, origin);
  check_rules(config, root, origin);
  for (std::string& file : config.data.train) file = found_data_file(file);
  for (std::string& file : config.data.validation_files) file = found_data_file(file);
  return config;
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_config(read_json_file(path), path, overrides);
}

std::string to_json_text(const Config& config) {
  Json root = Json::object();
  for (auto& [key, value] : config_values(config)) {
    Json* at = &root;
    for (size_t begin = 0; begin <= key.size();) {
      const size_t end = std::min(key.find('.', begin), key.size());
      at = &(*at)[key.substr(begin, end - begin)];
      begin = end + 1;
    }
    *at = std::move(value);
  }
  return root.dump(2) + "\n";
}

}  // namespace spillway
