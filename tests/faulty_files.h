// A file system whose calls fail when a test says so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace spillway {

// Passes on to the real file system and fails at call `fail_at`: that call alone, or, with `crash`,
// that and all later ones. `lose_unsynced` then does to the disk what a power cut may do.
class FaultyFileSystem final : public FileSystem {
 public:
  int64_t fail_at = -1;
  bool crash = false;
  int64_t calls = 0;
  std::string message = "No space left on device";
  std::string failed_path;  // of the last call that failed

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    step(path);
    auto file = real_.create(path);
    sizes_[path] = {0, 0};
    changed_.push_back({Change::created, path, ""});
    return std::make_unique<Writable>(*this, path, std::move(file));
  }
  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    step(path);
    return std::make_unique<Readable>(*this, path, real_.open(path));
  }
  bool exists(const std::string& path) override {
    step(path);
    return real_.exists(path);
  }
  void make_folder(const std::string& path) override {
    step(path);
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
      const std::string part = path.substr(0, end);
      if (!std::filesystem::exists(part)) {
        std::filesystem::create_directory(part);
        changed_.push_back({Change::created, part, ""});
      }
      if (end == std::string::npos) break;
    }
  }
  void rename(const std::string& from, const std::string& to) override {
    step(from);
    real_.rename(from, to);
    for (auto it = sizes_.begin(); it != sizes_.end();) {
      if (it->first.rfind(from + "/", 0) == 0) {
        sizes_[to + it->first.substr(from.size())] = it->second;
        it = sizes_.erase(it);
      } else {
        ++it;
      }
    }
    for (Change& change : changed_) {
      if (change.path.rfind(from + "/", 0) == 0) change.path = to + change.path.substr(from.size());
    }
    changed_.push_back({Change::renamed, to, from});
  }
  void remove(const std::string& path) override {
    step(path);
    real_.remove(path);
    sizes_.erase(path);
    std::erase_if(changed_,
                  [&](const Change& c) { return c.path == path && c.kind == Change::created; });
  }
  void sync_folder(const std::string& path) override {
    step(path);
    std::erase_if(changed_, [&](const Change& c) {
      return std::filesystem::path(c.path).parent_path() == std::filesystem::path(path);
    });
  }
  std::vector<FolderEntry> list(const std::string& path) override {
    step(path);
    return real_.list(path);
  }

  // Bytes not synced are gone or garbage; names not synced are gone or not, by chance, in the order
  // of a journal: if one survives, so do those before it.
  void lose_unsynced(std::mt19937_64& random) {
    for (const auto& [path, size] : sizes_) {
      if (size.first == size.second || !std::filesystem::exists(path)) continue;
      std::filesystem::resize_file(path, size.first);
      if (random() % 2)
        std::filesystem::resize_file(path, size.second);  // the right size, zeros inside
    }
    const size_t survive = random() % (changed_.size() + 1);
    while (changed_.size() > survive) {
      const Change change = changed_.back();
      changed_.pop_back();
      if (!std::filesystem::exists(change.path)) continue;
      if (change.kind == Change::renamed) {
        std::filesystem::rename(change.path, change.from);
      } else {
        std::filesystem::remove_all(change.path);
      }
    }
  }

 private:
  struct Change {
    enum Kind { created, renamed } kind;
    std::string path, from;
  };
  struct Writable final : WritableFile {
    Writable(FaultyFileSystem& owner, std::string path, std::unique_ptr<WritableFile> file)
        : owner(owner), path(std::move(path)), file(std::move(file)) {}
    void write(const void* data, int64_t bytes) override {
      try {
        owner.step(path);
      } catch (...) {
        file->write(data, bytes / 2);  // a failed write leaves a part behind
        owner.sizes_[path].second += bytes / 2;
        throw;
      }
      file->write(data, bytes);
      owner.sizes_[path].second += bytes;
    }
    void sync() override {
      owner.step(path);
      owner.sizes_[path].first = owner.sizes_[path].second;
    }
    void close() override {
      owner.step(path);
      file->close();
    }
    FaultyFileSystem& owner;
    std::string path;
    std::unique_ptr<WritableFile> file;
  };

  struct Readable final : ReadableFile {
    Readable(FaultyFileSystem& owner, std::string path, std::unique_ptr<ReadableFile> file)
        : owner(owner), path(std::move(path)), file(std::move(file)) {}
    int64_t size() const override { return file->size(); }
    void read(int64_t offset, void* out, int64_t bytes) const override {
      try {
        owner.step(path);
      } catch (...) {
        file->read(offset, out, bytes / 2);  // cut short
        throw;
      }
      file->read(offset, out, bytes);
    }
    FaultyFileSystem& owner;
    std::string path;
    std::unique_ptr<ReadableFile> file;
  };

  void step(const std::string& path) {
    const int64_t call = calls++;
    if (fail_at >= 0 && (call == fail_at || (crash && call > fail_at))) {
      failed_path = path;
      bad_input("{}: {} (injected)", path, message);
    }
  }

  FileSystem& real_ = posix_file_system();
  std::map<std::string, std::pair<int64_t, int64_t>> sizes_;  // synced, written
  std::vector<Change> changed_;                               // since their folder was synced
};

}  // namespace spillway
