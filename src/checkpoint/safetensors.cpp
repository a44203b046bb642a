// safetensors:
//   file    length header data
//   length  uint64, little-endian: bytes of `header`
//   header  JSON {"NAME": {"dtype": "F32", "shape": […], "data_offsets": [begin, end]}, …,
//           "__metadata__": {"KEY": "TEXT"}} and spaces
//   data    the tensors, back to back without gaps; offsets count from its start
#include "checkpoint/safetensors.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace spillway {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kAlignment = 64;
constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeader = 100'000'000;  // what other readers accept

}  // namespace

std::string safetensors_header(std::vector<SafetensorsEntry>& entries,
                               const std::map<std::string, std::string>& metadata) {
  ordered_json object = ordered_json::object();
  if (!metadata.empty()) object["__metadata__"] = metadata;
  int64_t offset = 0;
  for (SafetensorsEntry& entry : entries) {
    entry.bytes = entry.shape.count() * size_of(Dtype::f32);
    entry.begin = offset;
    offset += entry.bytes;
    ordered_json shape = ordered_json::array();
    for (int i = 0; i < entry.shape.rank; ++i) shape.push_back(entry.shape[i]);
    object[entry.name] = {
        {"dtype", "F32"}, {"shape", shape}, {"data_offsets", {entry.begin, offset}}};
  }
  std::string text = object.dump();
  const int64_t start = round_up(kLengthBytes + static_cast<int64_t>(text.size()), kAlignment);
  text.resize(start - kLengthBytes, ' ');
  if (static_cast<int64_t>(text.size()) > kMaxHeader) {
    internal_error("safetensors header of {} bytes, at most {} are readable", text.size(),
                   kMaxHeader);
  }
  for (SafetensorsEntry& entry : entries) entry.begin += start;
  const uint64_t length = text.size();
  std::string header(kLengthBytes, '\0');
  std::memcpy(header.data(), &length, kLengthBytes);
  return header + text;
}

std::string read_safetensors_header(const ReadableFile& file, const std::string& origin) {
  uint64_t length = 0;
  if (file.size() < kLengthBytes) bad_input("{}: truncated: {} bytes", origin, file.size());
  file.read(0, &length, kLengthBytes);
  if (length > static_cast<uint64_t>(kMaxHeader) ||
      static_cast<int64_t>(length) > file.size() - kLengthBytes) {
    bad_input("{}: byte 0: a header of {} bytes in a file of {}", origin, length, file.size());
  }
  std::string header(kLengthBytes + length, '\0');
  file.read(0, header.data(), static_cast<int64_t>(header.size()));
  return header;
}

std::map<std::string, SafetensorsEntry> parse_safetensors_header(std::string_view header,
                                                                 int64_t file_bytes,
                                                                 const std::string& origin) {
  const json root = json::parse(header.substr(kLengthBytes), nullptr, false);
  if (!root.is_object()) bad_input("{}: the header is not a JSON object", origin);
  const int64_t start = static_cast<int64_t>(header.size());
  std::map<std::string, SafetensorsEntry> entries;
  for (const auto& item : root.items()) {
    if (item.key() == "__metadata__") continue;
    const json& value = item.value();
    const auto wrong = [&](const char* what) {
      bad_input("{}: entry \"{}\": {}", origin, item.key(), what);
    };
    if (!value.is_object() || value.value("dtype", json()) != "F32") wrong("expected dtype F32");
    const json shape = value.value("shape", json()), span = value.value("data_offsets", json());
    if (!shape.is_array() || shape.size() > 4) wrong("expected a shape of at most 4 dimensions");
    if (!span.is_array() || span.size() != 2 || !span[0].is_number_unsigned() ||
        !span[1].is_number_unsigned()) {
      wrong("expected two data_offsets");
    }
    SafetensorsEntry entry;
    entry.name = item.key();
    int64_t count = 1;
    for (const json& size : shape) {
      if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX ||
          __builtin_mul_overflow(count, size.get<int64_t>(), &count) || count > INT64_MAX / 8) {
        wrong("impossible shape");
      }
      entry.shape.d[entry.shape.rank++] = size.get<int64_t>();
    }
    const uint64_t begin = span[0].get<uint64_t>(), end = span[1].get<uint64_t>();
    if (begin > end || end > static_cast<uint64_t>(file_bytes - start) ||
        static_cast<int64_t>(end - begin) != count * size_of(Dtype::f32)) {
      wrong("data_offsets do not fit shape and file");
    }
    entry.begin = start + static_cast<int64_t>(begin);
    entry.bytes = static_cast<int64_t>(end - begin);
    entries.emplace(entry.name, entry);
  }
  return entries;
}

}  // namespace spillway
