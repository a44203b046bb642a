// Sizes and rates with units:
//   size = digits [ "." digits ] [ " " ] unit      unit = "B" | K M G T "B" | K M G T "iB"
//   rate = size "/s"
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "config/json_text.h"
#include "config/values.h"

namespace spillway {
namespace {

struct Unit {
  const char* name;
  int64_t bytes;
};
constexpr Unit kUnits[] = {
    {"TiB", int64_t{1} << 40},
    {"TB", 1'000'000'000'000},
    {"GiB", int64_t{1} << 30},
    {"GB", 1'000'000'000},
    {"MiB", int64_t{1} << 20},
    {"MB", 1'000'000},
    {"KiB", int64_t{1} << 10},
    {"KB", 1'000},
    {"B", 1},
};

int64_t parse_size(std::string_view text, std::string_view suffix, const std::string& key,
                   const char* example) {
  const auto wrong = [&](const std::string& why) {
    bad_input("{}: expected {}, found {}: {}", key, example, in_quotes(text), why);
  };
  if (text.empty()) wrong("it is empty");
  std::string_view number = text;
  number.remove_suffix(text.size() - std::min(text.size(), text.find_first_not_of("0123456789.")));
  if (text[0] == '-') wrong("it is negative");
  if (number.empty()) wrong("it does not start with a number");
  if (number.front() == '.' || number.back() == '.' || number.find('.') != number.rfind('.') ||
      number.size() > 40) {
    wrong("the number is malformed");
  }
  std::string_view unit = text.substr(number.size());
  if (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  if (unit.size() < suffix.size() || unit.substr(unit.size() - suffix.size()) != suffix) {
    wrong(unit.empty() ? "the unit is missing" : fmt::format("\"{}\" is missing", suffix));
  }
  unit.remove_suffix(suffix.size());
  for (const Unit& known : kUnits) {
    if (unit != known.name) continue;
    long double value = 0;
    std::from_chars(number.data(), number.data() + number.size(), value);
    value = std::round(value * known.bytes);
    // The double nearest to the largest int64 is above it.
    if (value > 4.0e18L) wrong("it is too large");
    if (value < 1) wrong("it must be at least one byte");
    return static_cast<int64_t>(value);
  }
  wrong(unit.empty() ? "the unit is missing"
                     : "the unit is unknown: use B, KB ... TB (powers of 1,000) or KiB ... TiB "
                       "(of 1,024)");
  return 0;
}

}  // namespace

int64_t parse_bytes(std::string_view text, const std::string& key) {
  return parse_size(text, "", key, "a size with its unit such as \"512MiB\"");
}

double parse_rate(std::string_view text, const std::string& key) {
  return static_cast<double>(parse_size(text, "/s", key, "a rate with its unit such as \"2GB/s\""));
}

std::string exact_bytes(int64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes != 0 && bytes % unit.bytes == 0)
      return fmt::format("{}{}", bytes / unit.bytes, unit.name);
  }
  return fmt::format("{}B", bytes);
}

std::string format_bytes(int64_t bytes) {
  const double size = std::fabs(static_cast<double>(bytes));
  for (const Unit& unit : kUnits) {
    const std::string_view name = unit.name;
    if (name.size() == 3 && size >= static_cast<double>(unit.bytes)) {
      return fmt::format("{:.2f} {}", static_cast<double>(bytes) / static_cast<double>(unit.bytes),
                         name);
    }
  }
  return fmt::format("{} B", bytes);
}

std::string size_at_least(int64_t bytes) {
  constexpr double kMiB = 1 << 20;
  for (double hundredths = std::ceil(static_cast<double>(bytes) * 100 / kMiB);; ++hundredths) {
    const std::string text = fmt::format("{:.2f}MiB", hundredths / 100);
    if (parse_bytes(text, "memory") >= bytes) return text;
  }
}

}  // namespace spillway
