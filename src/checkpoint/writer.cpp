#include "checkpoint/writer.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/hash.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/store.h"

namespace spillway {
namespace {

constexpr int64_t kF32 = size_of(Dtype::f32);

std::string temporary_folder(const std::string& output, uint64_t step) {
  return checkpoints_folder(output) + "/.tmp_" + step_folder(step);
}

void write_durably(FileSystem& files, const std::string& path, const std::string& text) {
  const auto file = files.create(path);
  file->write(text.data(), static_cast<int64_t>(text.size()));
  file->sync();
  file->close();
}

}  // namespace

std::string begin_checkpoint(FileSystem& files, const std::string& output, uint64_t step) {
  const std::string folder = temporary_folder(output, step);
  recover_replaced(files, output);
  remove_tree(files, folder);
  files.make_folder(folder);
  return folder;
}

ShardWriter::ShardWriter(FileSystem& files, const std::string& folder, int32_t rank,
                         const std::vector<TensorSlice>& slices)
    : path_(folder + "/" + shard_name(rank)) {
  std::vector<SafetensorsEntry> entries;
  for (const TensorSlice& slice : slices) {
    const int64_t total = slice.shape.count();
    if (slice.begin < 0 || slice.count < 0 || slice.count > total - slice.begin) {
      internal_error("checkpoint: tensor \"{}\" of {} elements: slice of {} from {}", slice.name,
                     total, slice.count, slice.begin);
    }
    report_.tensors.push_back({slice.name, slice.shape, {}});
    if (slice.count == 0) continue;
    const bool whole = slice.count == total;
    const std::string entry = whole ? slice.name : fmt::format("{}@{}", slice.name, slice.begin);
    report_.tensors.back().slices.push_back({rank, entry, slice.begin, slice.count, 0});
    entries.push_back({entry, whole ? slice.shape : Dims(slice.count), 0, 0});
  }
  const std::string header = safetensors_header(entries, {{"format", "spillway"}});
  report_.file = {static_cast<int64_t>(header.size()), hash_bytes(header.data(), header.size())};
  file_ = files.create(path_);
  file_->write(header.data(), static_cast<int64_t>(header.size()));
}

void ShardWriter::append(const void* data, int64_t bytes) {
  file_->write(data, bytes);
  report_.file.bytes += bytes;
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    for (; left_ == 0; ++next_) {
      if (next_ == report_.tensors.size())
        internal_error("{}: {} bytes more than its tensors have", path_, bytes);
      if (report_.tensors[next_].slices.empty()) continue;
      left_ = report_.tensors[next_].slices[0].count * kF32;
      hasher_.emplace();
    }
    const int64_t now = std::min(left_, bytes);
    hasher_->bytes(from, now);
    from += now;
    bytes -= now;
    left_ -= now;
    if (left_ > 0) return;
    report_.tensors[next_ - 1].slices[0].hash = hasher_->digest();
  }
}

ShardReport ShardWriter::finish() {
  for (; left_ == 0 && next_ < report_.tensors.size(); ++next_)
    if (!report_.tensors[next_].slices.empty()) left_ = report_.tensors[next_].slices[0].count;
  if (left_ > 0)
    internal_error("{}: tensor \"{}\" is not whole", path_, report_.tensors[next_ - 1].name);
  file_->sync();
  file_->close();
  return std::move(report_);
}

std::string publish_checkpoint(FileSystem& files, const std::string& output, const RunState& run,
                               const std::vector<ShardReport>& reports) {
  Manifest manifest;
  manifest.run = run;
  std::map<std::string, StoredTensor> tensors;
  for (const ShardReport& report : reports) {
    manifest.shards.push_back(report.file);
    for (const StoredTensor& part : report.tensors) {
      StoredTensor& tensor =
          tensors.try_emplace(part.name, StoredTensor{part.name, part.shape, {}}).first->second;
      if (!(tensor.shape == part.shape)) {
        internal_error("checkpoint: ranks disagree about the shape of \"{}\"", part.name);
      }
      tensor.slices.insert(tensor.slices.end(), part.slices.begin(), part.slices.end());
    }
  }
  for (auto& [name, tensor] : tensors) manifest.tensors.push_back(std::move(tensor));
  sort_and_check(manifest);

  const std::string parent = checkpoints_folder(output);
  const std::string folder = temporary_folder(output, run.step);
  const std::string target = parent + "/" + step_folder(run.step);
  write_durably(files, folder + "/" + kManifestName, to_text(manifest));
  files.sync_folder(folder);
  files.sync_folder(output);  // the parents may be new
  const std::string replaced = parent + "/.replaced_" + step_folder(run.step);
  const bool replaces = files.exists(target);
  if (replaces) files.rename(target, replaced);
  files.rename(folder, target);
  files.sync_folder(parent);
  if (replaces) remove_tree(files, replaced);
  return target;
}

void abandon_checkpoint(FileSystem& files, const std::string& output, uint64_t step) noexcept {
  try {
    remove_tree(files, temporary_folder(output, step));
    recover_replaced(files, output);
  } catch (const std::exception&) {
    // The error that matters is the one that made the save fail.
  }
}

}  // namespace spillway
