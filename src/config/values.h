// JSON ↔ members, by the kinds of field in config/fields.h. Values read here have passed the
// schema.
#pragma once

#include <algorithm>
#include <type_traits>

#include "config/fields.h"
#include "config/json_text.h"

namespace spillway {

std::string exact_bytes(int64_t bytes);  // "512MiB": the largest unit that divides

template <class T>
void read_value(const Json& json, T& value) {
  if constexpr (std::is_enum_v<T>) {
    const auto& words = words_of<T>();
    const auto it = std::find(words.begin(), words.end(), json.get<std::string>());
    value = static_cast<T>(it - words.begin());
  } else {
    value = json.get<T>();
  }
}
template <class T>
void read_value(const Json& json, SizeField<T> field) {
  const auto text = json.get<std::string>();
  field.bytes = field.word && text == field.word ? field.word_value : parse_bytes(text, "size");
}
template <class T>
void read_value(const Json& json, RateField<T> field) {
  const auto text = json.get<std::string>();
  field.rate = field.word && text == field.word ? 0 : parse_rate(text, "rate");
}
template <class T>
void read_value(const Json& json, WordOrInteger<T> field) {
  field.number = json.is_string() ? field.stands_for : json.get<int64_t>();
}
template <class T>
void read_value(const Json& json, PairField<T> field) {
  field.first = json[0].get<double>();
  field.second = json[1].get<double>();
}
template <class D>
void read_value(const Json& json, ValidationField<D> field) {
  if (json.is_array()) {
    field.data.validation = 0;
    field.data.validation_files = json.get<std::vector<std::string>>();
  } else {
    field.data.validation = json.get<double>();
    field.data.validation_files.clear();
  }
}
template <class T>
void read_value(const Json& json, SharesField<T> field) {
  field.shares.clear();
  for (const Json& pair : json)
    field.shares.push_back({pair[0].get<double>(), pair[1].get<double>()});
}
template <class T>
void read_value(const Json& json, OpRatesField<T> field) {
  field.rates.clear();
  for (const Json& entry : json) {
    auto& rate = field.rates.emplace_back();
    rate.op = entry.at("op").get<std::string>();
    rate.bf16 = entry.at("precision").get<std::string>() == "bf16";
    rate.seconds = entry.at("seconds").get<double>();
    rate.flops_per_second = entry.value("flops_per_second", 0.0);
    rate.bytes_per_second = entry.value("bytes_per_second", 0.0);
  }
}
template <class P>
void read_value(const Json& json, PlaceField<P> field) {
  field.pins.clear();
  for (const auto& [key, where] : json.items())
    field.pins.emplace_back(key, where.template get<std::string>());
}

template <class T>
Json value_json(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return words_of<T>()[static_cast<size_t>(value)];
  } else {
    return value;
  }
}
template <class T>
Json value_json(const SizeField<T>& field) {
  if (field.word && field.bytes == field.word_value) return field.word;
  return exact_bytes(field.bytes);
}
template <class T>
Json value_json(const RateField<T>& field) {
  if (field.word && field.rate == 0) return field.word;
  return exact_bytes(static_cast<int64_t>(field.rate)) + "/s";
}
template <class T>
Json value_json(const WordOrInteger<T>& field) {
  if (field.number == field.stands_for) return field.word;
  return field.number;
}
template <class T>
Json value_json(const PairField<T>& field) {
  return Json::array({field.first, field.second});
}
template <class D>
Json value_json(const ValidationField<D>& field) {
  if (!field.data.validation_files.empty()) return field.data.validation_files;
  return field.data.validation;
}
template <class T>
Json value_json(const SharesField<T>& field) {
  Json pairs = Json::array();
  for (const auto& entry : field.shares) pairs.push_back(Json::array({entry.size, entry.share}));
  return pairs;
}
template <class T>
Json value_json(const OpRatesField<T>& field) {
  Json entries = Json::array();
  for (const auto& rate : field.rates) {
    Json& entry = entries.emplace_back();
    entry["op"] = rate.op;
    entry["precision"] = rate.bf16 ? "bf16" : "f32";
    entry["seconds"] = rate.seconds;
    if (rate.flops_per_second > 0) entry["flops_per_second"] = rate.flops_per_second;
    if (rate.bytes_per_second > 0) entry["bytes_per_second"] = rate.bytes_per_second;
  }
  return entries;
}
template <class P>
Json value_json(const PlaceField<P>& field) {
  Json pins = Json::object();
  for (const auto& [key, where] : field.pins) pins[key] = where;
  return pins;
}

// Every key of a resolved config that applies to it, with its value, in the schema's order.
std::vector<std::pair<std::string, Json>> config_values(const Config& config);

}  // namespace spillway
