#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace spillway {
namespace {

// One call moves at most this much: Linux caps a single read or write below 2 GiB anyway.
constexpr int64_t kMaxTransfer = int64_t{1} << 30;

[[noreturn]] void fail_with(int error, const char* action, const std::string& path) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EEXIST:
    case ENOTEMPTY:
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENAMETOOLONG:
    case ELOOP:
      bad_input("{}: cannot {}: {}", path, action, std::strerror(error));
    default:
      internal_error("{}: cannot {}: {}", path, action, std::strerror(error));
  }
}

class PosixWritable final : public WritableFile {
 public:
  PosixWritable(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~PosixWritable() override {
    if (fd_ >= 0) ::close(fd_);
  }
  void write(const void* data, int64_t bytes) override {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t done = ::write(fd_, from, std::min(bytes, kMaxTransfer));
      if (done < 0) {
        if (errno == EINTR) continue;
        fail_with(errno, "write", path_);
      }
      from += done;
      bytes -= done;
      written_ += done;
    }
    // The disk starts on what is there while more is being made; `sync` then waits for less. A mere
    // hint: file systems that do not know it ignore it.
    if (written_ - started_ >= kStart) {
      ::sync_file_range(fd_, started_, written_ - started_, SYNC_FILE_RANGE_WRITE);
      started_ = written_;
    }
  }
  void sync() override {
    if (::fsync(fd_) != 0) fail_with(errno, "sync", path_);
  }
  void close() override {
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0 && errno != EINTR) fail_with(errno, "close", path_);
  }

 private:
  static constexpr int64_t kStart = int64_t{4} << 20;
  int fd_;
  std::string path_;
  int64_t written_ = 0, started_ = 0;  // bytes
};

class PosixReadable final : public ReadableFile {
 public:
  PosixReadable(int fd, int64_t size, std::string path)
      : fd_(fd), size_(size), path_(std::move(path)) {}
  ~PosixReadable() override { ::close(fd_); }
  int64_t size() const override { return size_; }
  void read(int64_t offset, void* out, int64_t bytes) const override {
    char* to = static_cast<char*>(out);
    while (bytes > 0) {
      const ssize_t done = ::pread(fd_, to, std::min(bytes, kMaxTransfer), offset);
      if (done < 0) {
        if (errno == EINTR) continue;
        fail_with(errno, "read", path_);
      }
      if (done == 0) bad_input("{}: ends at byte {}, expected {} more", path_, offset, bytes);
      to += done;
      offset += done;
      bytes -= done;
    }
  }

 private:
  int fd_;
  int64_t size_;
  std::string path_;
};

class PosixFileSystem final : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) fail_with(errno, "create", path);
    return std::make_unique<PosixWritable>(fd, path);
  }

  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    // O_NONBLOCK: a named pipe must be an error below, not a wait for its writer.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) fail_with(errno, "open", path);
    struct stat info = {};
    const bool known = ::fstat(fd, &info) == 0;
    if (!known || !S_ISREG(info.st_mode)) {
      ::close(fd);
      bad_input("{}: cannot open: not a regular file", path);
    }
    return std::make_unique<PosixReadable>(fd, info.st_size, path);
  }

  bool exists(const std::string& path) override {
    struct stat info = {};
    if (::stat(path.c_str(), &info) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    fail_with(errno, "look up", path);
  }

  void make_folder(const std::string& path) override {
    for (size_t end = 1; end <= path.size(); ++end) {
      if (end < path.size() && path[end] != '/') continue;
      const std::string part = path.substr(0, end);
      if (::mkdir(part.c_str(), 0777) == 0) continue;
      const int error = errno;
      struct stat info = {};
      if (::stat(part.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) continue;
      fail_with(error, "create the folder", part);
    }
  }

  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) {
      fail_with(errno, ("rename to " + to).c_str(), from);
    }
  }

  void remove(const std::string& path) override {
    if (::remove(path.c_str()) != 0 && errno != ENOENT) fail_with(errno, "remove", path);
  }

  void sync_folder(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) fail_with(errno, "open the folder", path);
    const bool synced = ::fsync(fd) == 0;
    const int error = errno;
    ::close(fd);
    // Some network file systems have no such call for folders and keep names durable themselves.
    if (!synced && error != EINVAL) fail_with(error, "sync the folder", path);
  }

  std::vector<FolderEntry> list(const std::string& path) override {
    DIR* folder = ::opendir(path.c_str());
    if (!folder) fail_with(errno, "list the folder", path);
    std::vector<FolderEntry> entries;
    errno = 0;
    while (const dirent* entry = ::readdir(folder)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") {
        struct stat info = {};
        const bool known = ::lstat((path + "/" + name).c_str(), &info) == 0;
        entries.push_back({name, known && S_ISDIR(info.st_mode)});
      }
      errno = 0;
    }
    const int error = errno;
    ::closedir(folder);
    if (error != 0) fail_with(error, "list the folder", path);
    std::sort(entries.begin(), entries.end(),
              [](const FolderEntry& a, const FolderEntry& b) { return a.name < b.name; });
    return entries;
  }
};

}  // namespace

FileSystem& posix_file_system() {
  static PosixFileSystem files;
  return files;
}

void remove_tree(FileSystem& files, const std::string& folder) {
  if (!files.exists(folder)) return;
  for (const FolderEntry& entry : files.list(folder)) {
    const std::string path = folder + "/" + entry.name;
    if (entry.folder) {
      remove_tree(files, path);
    } else {
      files.remove(path);
    }
  }
  files.remove(folder);
}

std::string read_text(FileSystem& files, const std::string& path, int64_t limit) {
  const std::unique_ptr<ReadableFile> file = files.open(path);
  if (file->size() > limit) {
    bad_input("{}: {} bytes, expected at most {}", path, file->size(), limit);
  }
  std::string text(file->size(), '\0');
  file->read(0, text.data(), file->size());
  return text;
}

}  // namespace spillway
