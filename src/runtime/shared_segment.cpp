#include "runtime/shared_segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"

namespace spillway {

void remove_stale_segments(const std::string& folder, const std::string& prefix) {
  DIR* dir = opendir(folder.c_str());
  if (!dir) return;
  while (const dirent* entry = readdir(dir)) {
    if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) != 0) continue;
    const std::string path = folder + "/" + entry->d_name;
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
    close(fd);
  }
  closedir(dir);
}

int open_segment(const std::string& path) {
  for (;;) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_SH) != 0)
      internal_error("watchdog: cannot create {}: {}", path, std::strerror(errno));
    struct stat opened, named;
    if (fstat(fd, &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino)
      return fd;
    close(fd);  // it was removed before the lock was there
  }
}

void remove_unused_segments(const std::string& folder, const std::string& prefix) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::set<std::string> unused;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    struct stat s;
    if (entry.path().filename().string().rfind(prefix, 0) == 0 &&
        stat(entry.path().c_str(), &s) == 0 && s.st_uid == geteuid())
      unused.insert(entry.path().string());
  }
  if (unused.empty()) return;
  // Descriptors before maps: a segment that is mapped in between still shows.
  for (const char* place : {"fd", "maps"})
    for (const auto& process : fs::directory_iterator("/proc", error)) {
      if (process.path().filename().string().find_first_not_of("0123456789") != std::string::npos)
        continue;
      if (std::strcmp(place, "fd") == 0) {
        std::error_code hidden;
        for (const auto& fd : fs::directory_iterator(process.path() / place, hidden))
          unused.erase(fs::read_symlink(fd.path(), hidden).string());
        continue;
      }
      std::ifstream maps(process.path() / place);
      for (std::string line; std::getline(maps, line);)
        if (const size_t at = line.find(folder); at != std::string::npos)
          unused.erase(line.substr(at));
    }
  for (const std::string& path : unused) unlink(path.c_str());
}

}  // namespace spillway
