// Keys of `place`:
//   key    = name [ "@" part { "," part } ]
//   name   = a lower-case letter or "_", then letters, digits, "_"
//   part   = "embed" | "head" | block | block "-" block      (blocks count from 0)
#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "config/config.h"
#include "config/json_text.h"

namespace spillway {
namespace {

constexpr size_t kMaxKeyBytes = 1024;

bool is_name(std::string_view name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || is_digit(c); });
}

}  // namespace

std::pair<std::string, std::vector<int32_t>> parse_place_key(std::string_view key, int64_t layers) {
  const std::string shown_key = "place." + in_quotes(key);
  const size_t at = key.find('@');
  const std::string_view name = key.substr(0, at);
  if (key.size() > kMaxKeyBytes) bad_input("{}: longer than {} bytes", shown_key, kMaxKeyBytes);
  if (!is_name(name)) {
    bad_input("{}: expected a tensor's name, alone or with layers such as \"qkv@0-3,5\"",
              shown_key);
  }
  std::vector<int32_t> result;
  if (at == std::string_view::npos) {
    for (int64_t layer = 0; layer <= layers + 1; ++layer)
      result.push_back(static_cast<int32_t>(layer));
    return {std::string(name), result};
  }

  const auto block = [&](std::string_view digits) {
    int64_t number = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (digits.empty() || digits[0] == '-' || end != digits.data() + digits.size() ||
        error != std::errc()) {
      bad_input(
          "{}: expected a block's number, a range, \"embed\" or \"head\" after the @, found {}",
          shown_key, in_quotes(digits));
    }
    if (number >= layers) {
      bad_input("{}: block {} does not exist: the model has blocks 0 to {}", shown_key, number,
                layers - 1);
    }
    return static_cast<int32_t>(number);
  };
  for (size_t begin = at + 1; begin <= key.size();) {
    const size_t comma = std::min(key.find(',', begin), key.size());
    const std::string_view part = key.substr(begin, comma - begin);
    begin = comma + 1;
    if (part == "embed") {
      result.push_back(0);
    } else if (part == "head") {
      result.push_back(static_cast<int32_t>(layers) + 1);
    } else if (const size_t dash = part.find('-'); dash != std::string_view::npos && dash > 0) {
      const int32_t first = block(part.substr(0, dash)), last = block(part.substr(dash + 1));
      if (first > last) bad_input("{}: the range {} runs backward", shown_key, in_quotes(part));
      for (int32_t k = first; k <= last; ++k) result.push_back(k + 1);
    } else {
      result.push_back(block(part) + 1);
    }
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return {std::string(name), result};
}

const std::vector<std::string>& pin_values(std::string_view name) {
  static const std::vector<std::string> places = {"device", "host", "recompute"};
  static const std::vector<std::string> positions = {"end", "rotated", "host", "host_rotated"};
  return name == "update" ? positions : places;
}

}  // namespace spillway
