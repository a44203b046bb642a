#include "base/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace spillway {
namespace {

// "host a, pid 12, since 2026-01-31 12:00:00 UTC"
std::string own_name() {
  char host[256] = "", since[32] = "";
  gethostname(host, sizeof host - 1);
  const time_t now = time(nullptr);
  tm utc = {};
  gmtime_r(&now, &utc);
  strftime(since, sizeof since, "%F %T UTC", &utc);
  return fmt::format("host {}, pid {}, since {}", host, getpid(), since);
}

std::string holder(int fd) {
  char text[400] = "";
  const ssize_t size = pread(fd, text, sizeof text - 1, 0);
  std::string name(text, size > 0 ? static_cast<size_t>(size) : 0);
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name.empty() ? "a process that has not said its name yet" : name;
}

// 0, or the error of locking the whole file for this open file.
int lock_file(int fd) {
  struct flock whole = {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (fcntl(fd, F_OFD_SETLK, &whole) == 0) return 0;
  return errno;
}

bool same_file(int fd, const std::string& path) {
  struct stat held = {}, named = {};
  return fstat(fd, &held) == 0 && stat(path.c_str(), &named) == 0 && held.st_dev == named.st_dev &&
         held.st_ino == named.st_ino;
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) : path_(folder + "/.lock") {
  for (;;) {
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) bad_input("{}: cannot be made: {}", path_, std::strerror(errno));
    const int error = lock_file(fd_);
    if (error == EAGAIN || error == EACCES) {
      const std::string name = holder(fd_);
      close(fd_);
      fd_ = -1;
      bad_input(
          "{}: another run writes into this folder ({}); wait for its end, or use another "
          "output",
          folder, name);
    }
    if (error != 0) {
      warning_ = fmt::format(
          "{}: no locks on this file system ({}): nothing keeps a second run out of this folder",
          path_, std::strerror(error));
      return;
    }
    if (same_file(fd_, path_)) break;
    close(fd_);  // its holder removed it between our two calls: that file is nobody's lock any more
  }
  const std::string name = own_name() + "\n";
  if (ftruncate(fd_, 0) != 0 ||
      pwrite(fd_, name.data(), name.size(), 0) != static_cast<ssize_t>(name.size())) {
    // A full disk: the lock holds all the same, without a name.
  }
}

FolderLock::~FolderLock() {
  if (fd_ < 0) return;
  if (warning_.empty() && same_file(fd_, path_)) unlink(path_.c_str());
  close(fd_);
}

}  // namespace spillway
