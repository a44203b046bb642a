// What the checker found. A report is one line: kind, what happened, instruction, source line.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace spillway::emulated {

struct Report {
  std::string kind;  // "race", "out of bounds", "uninitialised", …
  std::string text;
};

// Prints the report on standard error and keeps it; the same kind at the source line of the
// code address `place` is told once (nullptr: always). A process that ends with reports that nobody
// took exits with kReportExit.
void add_report(const std::string& kind, const void* place, const std::string& text);
template <class... Args>
void report(const std::string& kind, const void* place, fmt::format_string<Args...> format,
            Args&&... args) {
  add_report(kind, place, fmt::format(format, std::forward<Args>(args)...));
}
constexpr int kReportExit = 66;

// The reports since the last call; they no longer count at exit.
std::vector<Report> take_reports();

// "function (file:line)" of a code address of this executable. Calls addr2line.
std::string source_of(const void* code);
// File and line only, innermost inlined function first.
std::string line_of(const void* code);

// The emulation cannot go on: prints and ends the process with kReportExit.
[[noreturn]] void give_up(const std::string& text);

}  // namespace spillway::emulated
