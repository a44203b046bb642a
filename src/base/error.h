// Errors that reach the user, and the documented exit codes of `train`.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace spillway {

enum class ExitCode : int {
  done = 0,
  internal = 1,      // a bug of ours, or an unexpected system failure
  bad_input = 2,     // config, data, checkpoint or command line
  does_not_fit = 3,  // a memory tier is too small
  no_progress = 4,   // peer lost, stuck, ranks diverged, or max_skipped reached
  resume_me = 75,    // stopped at a checkpoint on request
};

// One line for the user; `main` prints it to standard error and exits with `code`.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message)
      : std::runtime_error(one_line(message)), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  // What is quoted from a user's file or command line may hold line breaks.
  static std::string one_line(std::string text) {
    for (char& c : text)
      if (c == '\n' || c == '\r') c = ' ';
    return text;
  }

  ExitCode code_;
};

// Throw an Error of the named kind; the message follows fmt's syntax and says file, key or offset,
// what was found, what was expected, and what to do.
template <class... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void bad_input(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ExitCode::bad_input, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void internal_error(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ExitCode::internal, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace spillway
