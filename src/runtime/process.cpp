#include "runtime/process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace spillway {

Process look_at(int64_t pid) {
  char path[64], text[1024];
  std::snprintf(path, sizeof path, "/proc/%lld/stat", static_cast<long long>(pid));
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return {};
  text[n] = 0;
  const char* at = std::strrchr(text, ')');  // the name before it may hold anything
  if (!at || at[1] != ' ') return {};
  Process process;
  process.state = at[2];
  at += 2;
  for (int field = 3; field < 22 && at; ++field) {
    at = std::strchr(at, ' ');
    if (at) ++at;
  }
  if (at) process.start_time = std::atoll(at);
  return process;
}

bool is_open_mpi_launcher(int64_t pid) {
  char path[64], name[32] = "";
  std::snprintf(path, sizeof path, "/proc/%lld/comm", static_cast<long long>(pid));
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t bytes = read(fd, name, sizeof name - 1);
  close(fd);
  if (bytes <= 0) return false;
  name[std::strcspn(name, "\n")] = 0;
  const char* known[] = {"mpirun", "mpiexec", "orterun", "orted", "prterun", "prted"};
  return std::any_of(std::begin(known), std::end(known),
                     [&](const char* k) { return std::strcmp(k, name) == 0; });
}

void see_off_launcher(int64_t launcher, int64_t start_time, double patience) {
  if (!is_open_mpi_launcher(launcher)) return;
  if (fork() != 0) return;
  setsid();
  close_range(0, ~0u, 0);  // the launcher waits for the end of its ranks' output, too
  const auto there = [&] {
    const Process process = look_at(launcher);
    return process.state != 0 && process.state != 'Z' && process.start_time == start_time;
  };
  for (double waited = 0; there() && waited < patience; waited += 0.1) usleep(100'000);
  if (there()) kill(static_cast<pid_t>(launcher), SIGKILL);
  _exit(0);
}

}  // namespace spillway
