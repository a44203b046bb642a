// Any bytes are a Config that reads back from what is written, or an Error of one line.
// Leading lines "--set key=value" are overrides, the rest is the file.
// links: spillway_config
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/config.h"

namespace {

[[noreturn]] void report(const std::string& what) {
  std::cerr << what << "\n";
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::string_view kSet = "--set ";
  std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> overrides;
  while (text.substr(0, kSet.size()) == kSet) {
    const size_t end = std::min(text.find('\n'), text.size());
    overrides.emplace_back(text.substr(kSet.size(), end - kSet.size()));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  spillway::Config config;
  try {
    config = spillway::parse_config(text, "fuzz", overrides);
  } catch (const spillway::Error& error) {
    const std::string message = error.what();
    if (error.code() != spillway::ExitCode::bad_input) report("wrong exit code: " + message);
    if (message.find_first_of("\n\r") != std::string::npos) report("several lines: " + message);
    if (message.size() > 2000) report("long message");
    return 0;
  }
  const std::string written = spillway::to_json_text(config);
  if (!(spillway::parse_config(written, "written", {}) == config)) report("changed by: " + written);
  return 0;
}
