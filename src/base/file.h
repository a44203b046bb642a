// The file operations behind checkpoints, as an interface small enough that a test can make every
// single call fail, or lose whatever was not synced.
//
// Contract
// - Nothing is durable before it is synced: a file's bytes by WritableFile::sync, the names in a
//   folder (created, renamed, removed) by FileSystem::sync_folder of that folder.
// - `rename` is atomic: after a crash the name leads to the old or to the new, never to a mixture.
// - Every call throws Error: bad_input where the user can mend it (no such file, no permission,
// disk
//   full, …), internal otherwise. The message names the path. A failed write leaves a file of
//   unknown contents behind; the other failed calls have done nothing.
// - FileSystem may be used by any number of threads; a file by one thread at a time, except that
//   ReadableFile::read may be called by many.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace spillway {

class WritableFile {
 public:
  virtual ~WritableFile() = default;  // closes without syncing, ignoring errors
  virtual void write(const void* data, int64_t bytes) = 0;  // appends all of it
  virtual void sync() = 0;
  virtual void close() = 0;  // once, last; a delayed write error appears here
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual int64_t size() const = 0;
  // Exactly `bytes` from `offset` on; a shorter file is an error.
  virtual void read(int64_t offset, void* out, int64_t bytes) const = 0;
};

struct FolderEntry {
  std::string name;
  bool folder = false;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<WritableFile> create(const std::string& path) = 0;  // truncates
  virtual std::unique_ptr<ReadableFile> open(const std::string& path) = 0;    // regular files only
  virtual bool exists(const std::string& path) = 0;
  virtual void make_folder(const std::string& path) = 0;  // and its parents; may exist already
  virtual void rename(const std::string& from, const std::string& to) = 0;
  virtual void remove(const std::string& path) = 0;  // a file or an empty folder; absent is fine
  virtual void sync_folder(const std::string& path) = 0;
  virtual std::vector<FolderEntry> list(const std::string& path) = 0;  // sorted by name
};

// The real one. Lives forever.
FileSystem& posix_file_system();

// Removes a folder with all that is in it, depth first. Absent is fine.
void remove_tree(FileSystem& files, const std::string& folder);

// The whole of a file of at most `limit` bytes; a larger one is an Error(bad_input), unread.
std::string read_text(FileSystem& files, const std::string& path, int64_t limit);

}  // namespace spillway
