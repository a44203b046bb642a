// Strict JSON for what users write: at most 16 MiB, no duplicate keys, no endless nesting.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace spillway {

using Json = nlohmann::ordered_json;  // keeps the order of the file: later pins of `place` win

constexpr int64_t kMaxJsonBytes = int64_t{16} << 20;

// The whole file. Throws bad_input if it is absent, unreadable, no regular file, or longer than
// kMaxJsonBytes; of a longer one not a byte is read.
std::string read_json_file(const std::string& path);

// Throws bad_input with `origin` and the byte offset where the text stops being JSON, or with the
// full path of a key that is there twice.
Json parse_json(std::string_view text, const std::string& origin);

// A value as one short line for a message.
std::string shown(const Json& value);

// A word of the user's between quotation marks, control characters escaped, shortened.
std::string in_quotes(std::string_view word);

// "a", "b" or "c" of JSON values, for messages.
std::string alternatives(const Json& values);

bool is_utf8(const std::string& text);

}  // namespace spillway
