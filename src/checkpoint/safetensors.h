// Hugging Face's safetensors header: builds and reads it. See safetensors.cpp for the format.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"

namespace spillway {

struct SafetensorsEntry {  // always f32
  std::string name;
  Dims shape;
  int64_t begin = 0, bytes = 0;  // in the file
};

// Length word, JSON and padding; sets `begin` and `bytes` of the entries, which follow it in order
// without gaps. Data starts at a multiple of 64 bytes.
std::string safetensors_header(std::vector<SafetensorsEntry>& entries,
                               const std::map<std::string, std::string>& metadata);

// The header as it stands in the file. Throws Error(bad_input) naming `origin` if the file cannot
// hold what its length word says.
std::string read_safetensors_header(const ReadableFile& file, const std::string& origin);

// Entries of a header as read above, by name. Throws Error(bad_input) if they are not f32 or do not
// lie within the `file_bytes` of the file.
std::map<std::string, SafetensorsEntry> parse_safetensors_header(std::string_view header,
                                                                 int64_t file_bytes,
                                                                 const std::string& origin);

}  // namespace spillway
