// Keeps a second run out of an output folder.
#pragma once

#include <string>

namespace spillway {

// Holds `<folder>/.lock` from construction on. The lock is the kernel's (a lock of the open file,
// which network file systems pass on to their server), so it ends with the process, however that
// ends; the file's text only says who holds it. The file goes with a destructor's release, and
// stays, without meaning, after a crash.
class FolderLock {
 public:
  // `folder` exists. Throws Error(bad_input) that names the holder if another process has it, or if
  // the file cannot be made.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // "", or why nobody is kept out: the file system has no locks.
  const std::string& warning() const { return warning_; }

 private:
  std::string path_;
  std::string warning_;
  int fd_ = -1;
};

}  // namespace spillway
