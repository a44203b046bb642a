#include "report.h"

#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

namespace spillway::emulated {
namespace {

constexpr size_t kPrinted = 40;  // a broken kernel would fill the screen

struct Reports {
  std::vector<Report> untaken;
  std::set<std::pair<std::string, std::string>> told;  // kind and line
  size_t printed = 0;
};

void exit_with_reports();

Reports& reports() {
  static Reports* const all = [] {
    std::atexit(exit_with_reports);
    return new Reports;
  }();
  return *all;
}

void exit_with_reports() {
  if (reports().untaken.empty()) return;
  std::fprintf(stderr, "emulated CUDA: %zu reports\n", reports().untaken.size());
  std::fflush(nullptr);
  _exit(kReportExit);
}

// Where the executable was loaded.
uintptr_t load_base() {
  static const uintptr_t base = [] {
    uintptr_t found = 0;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* out) {
          *static_cast<uintptr_t*>(out) = info->dlpi_addr;
          return 1;  // the first is the executable
        },
        &found);
    return found;
  }();
  return base;
}

struct Source {
  std::string function, line;
};

std::string without_parameters(const std::string& function) {
  int depth = 0;  // of template arguments
  for (size_t i = 0; i < function.size(); ++i) {
    depth += (function[i] == '<') - (function[i] == '>');
    if (function[i] == '(' && depth == 0) return function.substr(0, i);
  }
  return function;
}

const Source& find_source(const void* code) {
  static std::map<const void*, Source>* const known = new std::map<const void*, Source>;
  const auto [entry, is_new] = known->try_emplace(code);
  Source& source = entry->second;
  if (!is_new) return source;
  source = {"?", fmt::format("{}", code)};
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  const std::string command = fmt::format("addr2line -e '{}' -f -i -C {:#x} 2>/dev/null", self,
                                          reinterpret_cast<uintptr_t>(code) - load_base());
  std::FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return source;
  std::string text;
  for (int c; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  pclose(pipe);
  // Pairs of lines, innermost inlined function first: the first that is not the twin's own.
  std::istringstream lines(text);
  std::string function, line;
  while (std::getline(lines, function) && std::getline(lines, line)) {
    if (function.starts_with("??")) break;
    const std::string unnamed = "(anonymous namespace)::";
    for (size_t at; (at = function.find(unnamed)) != std::string::npos;)
      function.erase(at, unnamed.size());
    source.function = without_parameters(function);
    line = line.substr(0, line.find(' '));
    source.line = line.substr(line.rfind('/') + 1);
    if (line.find("/emulated_cuda/port/") == std::string::npos) break;
  }
  return source;
}

}  // namespace

void add_report(const std::string& kind, const void* place, const std::string& text) {
  Reports& all = reports();
  if (place && !all.told.insert({kind, line_of(place)}).second) return;
  all.untaken.push_back({kind, text});
  if (++all.printed > kPrinted) return;
  std::fprintf(stderr, "emulated CUDA: %s: %s\n", kind.c_str(), text.c_str());
}

std::vector<Report> take_reports() {
  Reports& all = reports();
  all.told.clear();
  all.printed = 0;
  return std::exchange(all.untaken, {});
}

std::string source_of(const void* code) {
  const Source& source = find_source(code);
  return fmt::format("{} ({})", source.function, source.line);
}

std::string line_of(const void* code) { return find_source(code).line; }

void give_up(const std::string& text) {
  std::fprintf(stderr, "emulated CUDA: cannot go on: %s\n", text.c_str());
  std::fflush(nullptr);
  _exit(kReportExit);
}

}  // namespace spillway::emulated
