#include "config/schema.h"

#include <cmath>

#include "base/error.h"
#include "config/config.h"

namespace spillway {

extern const char kSchemaText[];

namespace {

const Json* find(const Json& object, const std::string& key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

std::string text_of(const Json& object, const std::string& key) {
  const Json* value = find(object, key);
  return value && value->is_string() ? value->get<std::string>() : std::string();
}

bool fits_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "number") return value.is_number();
  if (type == "integer") {
    if (value.is_number_integer()) return true;
    if (!value.is_number_float()) return false;
    const double number = value.get<double>();  // 1e3 is an integer too
    return std::floor(number) == number && std::fabs(number) <= 9007199254740992.0;
  }
  internal_error("schema: unknown type {}", type);
}

std::string found(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case Json::value_t::string:
      return "the string " + shown(value);
    case Json::value_t::object:
    case Json::value_t::array: {
      const std::string text = shown(value);
      if (text.rfind("an ", 0) == 0) return text;
      return (value.is_object() ? "the object " : "the array ") + text;
    }
    default:
      return shown(value);
  }
}

std::string in_range(const Json& schema) {
  const Json *low = find(schema, "minimum"), *above = find(schema, "exclusiveMinimum");
  const Json *high = find(schema, "maximum"), *below = find(schema, "exclusiveMaximum");
  std::string text;
  if (low) text += " of at least " + low->dump();
  if (above) text += " above " + above->dump();
  if (high || below) text += (text.empty() ? "" : " and");
  if (high) text += " at most " + high->dump();
  if (below) text += " below " + below->dump();
  return text;
}

// What a schema expects, for "expected …".
std::string described(const Json& schema) {
  if (const Json* constant = find(schema, "const")) return constant->dump();
  if (const Json* branches = find(schema, "anyOf")) {
    std::string text;
    for (const Json& branch : *branches) text += (text.empty() ? "" : ", or ") + described(branch);
    return text;
  }
  if (const Json* values = find(schema, "enum")) return alternatives(*values);
  const std::string type = text_of(schema, "type"), format = text_of(schema, "format");
  if (format == "bytes") return "a size with its unit such as \"512MiB\"";
  if (format == "rate") return "a rate with its unit such as \"2GB/s\"";
  if (type == "integer") return "an integer" + in_range(schema);
  if (type == "number") return "a number" + in_range(schema);
  if (type == "boolean") return "true or false";
  if (type == "object") return "an object";
  if (type == "array") return "an array of " + text_of(schema.at("items"), "type") + "s";
  return "a string";
}

bool out_of_range(const Json& value, const Json& schema) {
  // 64 bits of mantissa hold every int64 and uint64 exactly on x86; elsewhere within one part in
  // 2^53, and no bound of the schema is that close.
  const auto number = [](const Json& v) -> long double {
    if (v.is_number_unsigned()) return v.get<uint64_t>();
    if (v.is_number_integer()) return v.get<int64_t>();
    return v.get<double>();
  };
  const long double x = number(value);
  if (const Json* bound = find(schema, "minimum"); bound && x < number(*bound)) return true;
  if (const Json* bound = find(schema, "maximum"); bound && x > number(*bound)) return true;
  if (const Json* bound = find(schema, "exclusiveMinimum"); bound && x <= number(*bound))
    return true;
  if (const Json* bound = find(schema, "exclusiveMaximum"); bound && x >= number(*bound))
    return true;
  return !std::isfinite(x);
}

bool has_size_format(const Json& schema) {
  const std::string format = text_of(schema, "format");
  if (format == "bytes" || format == "rate") return true;
  const Json* branches = find(schema, "anyOf");
  return branches && has_size_format((*branches)[0]);
}

[[noreturn]] void wrong(const Json& value, const Json& schema, const std::string& path,
                        const std::string& origin) {
  std::string hint;
  if (value.is_number() && has_size_format(schema)) {
    hint = "; the unit is missing: B, KB ... TB (powers of 1,000) or KiB ... TiB (of 1,024)";
  } else if (value.is_string()) {
    // Only words: a number where a word is due is no misspelling.
    std::vector<std::string> words;
    const Json* values = find(schema, "enum");
    if (values) {
      for (const Json& word : *values)
        if (word.is_string()) words.push_back(word.get<std::string>());
    } else if (const Json* branches = find(schema, "anyOf")) {
      for (const Json& branch : *branches)
        if (!text_of(branch, "const").empty()) words.push_back(text_of(branch, "const"));
    }
    if (!words.empty()) {
      const std::string word = value.get<std::string>().substr(0, 64);
      hint = "; did you mean \"" + nearest(word, words) + "\"?";
    }
  }
  bad_input("{}: {}: expected {}, found {}{}", origin, path.empty() ? "the document" : path,
            described(schema), found(value), hint);
}

void check_string(const std::string& text, const Json& value, const Json& schema,
                  const std::string& path, const std::string& origin) {
  const std::string format = text_of(schema, "format");
  if (format == "bytes") {
    parse_bytes(text, origin + ": " + path);
  } else if (format == "rate") {
    parse_rate(text, origin + ": " + path);
  }
  if (const Json* bound = find(schema, "minLength"); bound && text.size() < bound->get<size_t>()) {
    bad_input("{}: {}: expected a name, found an empty string", origin, path);
  }
  if (const Json* bound = find(schema, "maxLength"); bound && text.size() > bound->get<size_t>()) {
    bad_input("{}: {}: {} bytes long, at most {} are allowed", origin, path, text.size(),
              bound->get<size_t>());
  }
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      bad_input("{}: {}: has a control character: {}", origin, path, shown(value));
    }
  }
}

void check_object(const Json& value, const Json& schema, const std::string& path,
                  const std::string& origin, bool complete) {
  static const Json kNoProperties = Json::object();
  const Json* properties = find(schema, "properties");
  if (!properties) properties = &kNoProperties;
  const Json* other = find(schema, "additionalProperties");
  for (const auto& [key, item] : value.items()) {
    const Json* child = find(*properties, key);
    if (child) {
      check_json(item, *child, joined(path, key), origin, complete);
    } else if (other && other->is_object()) {
      const bool plain = key.find('.') == std::string::npos && !key.empty();
      check_json(item, *other, joined(path, plain ? in_quotes(key) : "?"), origin, complete);
    } else {
      unknown_key(schema, path, key, item, origin);
    }
  }
  const Json* required = find(schema, "required");
  // Of a model: "if" there is no preset, "then" these. A preset is resolved before all is required.
  if (const Json* then = find(schema, "then")) required = find(*then, "required");
  if (!complete || !required) return;
  for (const Json& name : *required) {
    if (value.contains(name.get<std::string>())) continue;
    const std::string full = joined(path, name.get<std::string>());
    bad_input("{}: {} is missing: {}", origin, full,
              text_of(*find(*properties, name.get<std::string>()), "description"));
  }
}

// Every key path whose last name is `name`, and every key that others call `name`.
void paths_named(const Json& schema, const std::string& path, const std::string& name,
                 std::vector<std::string>& same, std::vector<std::string>& elsewhere) {
  const Json* object = object_branch(schema);
  const Json* properties = object ? find(*object, "properties") : nullptr;
  if (!properties) return;
  for (const auto& [key, child] : properties->items()) {
    const std::string full = joined(path, key);
    if (key == name) same.push_back(full);
    if (const Json* names = find(child, "x-names-elsewhere")) {
      for (const Json& other : *names)
        if (other == name) elsewhere.push_back(full);
    }
    paths_named(child, full, name, same, elsewhere);
  }
}

// The path that shares the most of its beginning with `path`: a key of the same section first.
std::string closest_section(const std::vector<std::string>& paths, const std::string& path) {
  std::string best;
  size_t best_shared = 0;
  for (const std::string& candidate : paths) {
    size_t shared = 0;
    while (shared < std::min(path.size(), candidate.size()) && path[shared] == candidate[shared])
      ++shared;
    if (best.empty() || shared > best_shared) best = candidate, best_shared = shared;
  }
  return best;
}

}  // namespace

const Json& config_schema() {
  static const Json schema = parse_json(kSchemaText, "configs/schema.json");
  return schema;
}

const Json& profile_schema() { return config_schema().at("$defs").at("hardware_profile"); }

std::string joined(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

const Json* object_branch(const Json& node) {
  if (text_of(node, "type") == "object") return &node;
  if (const Json* branches = find(node, "anyOf")) {
    for (const Json& branch : *branches)
      if (text_of(branch, "type") == "object") return &branch;
  }
  return nullptr;
}

const Json* schema_at(const Json& node, const std::string& path) {
  const Json* at = &node;
  for (size_t begin = 0; at && begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const Json* object = object_branch(*at);
    const Json* properties = object ? find(*object, "properties") : nullptr;
    at = properties ? find(*properties, path.substr(begin, end - begin)) : nullptr;
    begin = end + 1;
  }
  return at;
}

const Json* inherited_keyword(const Json& schema, const std::string& path,
                              const std::string& keyword) {
  for (std::string at = path;;) {
    const Json* node = schema_at(schema, at);
    if (const Json* value = node ? find(*node, keyword) : nullptr) return value;
    const size_t dot = at.rfind('.');
    if (dot == std::string::npos) return nullptr;
    at.resize(dot);
  }
}

std::vector<std::string> schema_keys(const Json& schema) {
  std::vector<std::string> keys;
  const Json* object = object_branch(schema);
  const Json* properties = object ? find(*object, "properties") : nullptr;
  if (!properties) return keys;
  for (const auto& [key, child] : properties->items()) {
    const std::vector<std::string> below = schema_keys(child);
    if (below.empty()) keys.push_back(key);
    for (const std::string& name : below) keys.push_back(joined(key, name));
  }
  return keys;
}

void unknown_key(const Json& schema, const std::string& path, const std::string& key,
                 const Json& value, const std::string& origin) {
  const std::string full = joined(path, key);
  for (const Json* node : {&schema, &config_schema()}) {
    const Json* features = find(*node, "x-not-supported");
    if (!features) continue;
    if (const std::string feature = text_of(*features, key); !feature.empty()) {
      bad_input("{}: not supported yet: {} ({} = {})", origin, feature, full, shown(value));
    }
  }
  std::vector<std::string> same, elsewhere, siblings;
  // A profile's keys are no keys of a config, and the other way round.
  const bool profile = &schema == &profile_schema();
  paths_named(profile ? schema : config_schema(), "", key, same, elsewhere);
  std::string suggestion = closest_section(elsewhere, path);
  if (suggestion.empty()) suggestion = closest_section(same, path);
  if (suggestion.empty()) {
    if (const Json* properties = find(schema, "properties"))
      for (const auto& [name, child] : properties->items()) siblings.push_back(name);
    suggestion = joined(path, nearest(key.substr(0, 64), siblings));
  }
  bad_input("{}: unknown key {}; did you mean \"{}\"?", origin, in_quotes(full), suggestion);
}

void check_json(const Json& value, const Json& schema, const std::string& path,
                const std::string& origin, bool complete) {
  if (const Json* features = find(schema, "x-not-supported")) {
    // Of an object they are keys, of anything else values.
    const std::string word = value.is_string()           ? value.get<std::string>()
                             : value.is_number_integer() ? value.dump()
                                                         : std::string();
    if (const std::string feature = text_of(*features, word); !feature.empty()) {
      bad_input("{}: not supported yet: {} ({} = {})", origin, feature, path, shown(value));
    }
  }
  if (const Json* branches = find(schema, "anyOf")) {
    for (const Json& branch : *branches) {
      if (const Json* constant = find(branch, "const"); constant && *constant == value) return;
    }
    for (const Json& branch : *branches) {
      const std::string type = text_of(branch, "type");
      if (type.empty() || !fits_type(value, type)) continue;
      // "atuo" is a misspelt word rather than a malformed size.
      if (has_size_format(branch) &&
          value.get_ref<const std::string&>().find_first_of("0123456789") == std::string::npos) {
        break;
      }
      return check_json(value, branch, path, origin, complete);
    }
    wrong(value, schema, path, origin);
  }
  if (!fits_type(value, text_of(schema, "type"))) wrong(value, schema, path, origin);
  if (const Json* values = find(schema, "enum")) {
    for (const Json& allowed : *values)
      if (allowed == value) return;
    wrong(value, schema, path, origin);
  }
  if (value.is_number() && out_of_range(value, schema)) wrong(value, schema, path, origin);
  if (value.is_string()) check_string(value.get<std::string>(), value, schema, path, origin);
  if (value.is_object()) check_object(value, schema, path, origin, complete);
  if (value.is_array()) {
    const size_t low = schema.at("minItems").get<size_t>(),
                 high = schema.at("maxItems").get<size_t>();
    if (value.size() < low || value.size() > high) {
      bad_input(
          "{}: {}: expected {}, found {}", origin, path,
          low == high ? fmt::format("{} values", low) : fmt::format("{} to {} values", low, high),
          value.size());
    }
    for (size_t i = 0; i < value.size(); ++i) {
      check_json(value[i], schema.at("items"), fmt::format("{}[{}]", path, i), origin, complete);
    }
  }
}

}  // namespace spillway
