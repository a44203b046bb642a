#include "checkpoint/writer.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/store.h"

namespace spillway {
namespace {

using nlohmann::json;

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

// One line of JSON a rank, for Communicator::gather_text: the report, or the error.
std::string report_line(const ShardReport& report) {
  json tensors = json::array();
  for (const StoredTensor& tensor : report.tensors) {
    json slices = json::array();
    for (const StoredSlice& s : tensor.slices) {
      slices.push_back({s.shard, s.entry, s.begin, s.count, s.hash});
    }
    json shape = json::array();
    for (int i = 0; i < tensor.shape.rank; ++i) shape.push_back(tensor.shape[i]);
    tensors.push_back({tensor.name, shape, slices});
  }
  return json{
      {"bytes", report.file.bytes}, {"header_hash", report.file.header_hash}, {"tensors", tensors}}
      .dump();
}

std::string error_line(ExitCode code, const std::string& message) {
  return json{{"code", static_cast<int>(code)}, {"error", message}}.dump(
      -1, ' ', false, json::error_handler_t::replace);
}

void throw_if_error(const json& line) {
  if (!line.contains("error")) return;
  throw Error(static_cast<ExitCode>(line["code"].get<int>()), line["error"].get<std::string>());
}

ShardReport parse_report(const std::string& text) {
  const json line = json::parse(text);
  throw_if_error(line);
  ShardReport report;
  report.file = {line["bytes"].get<int64_t>(), line["header_hash"].get<uint64_t>()};
  for (const json& value : line["tensors"]) {
    StoredTensor tensor;
    tensor.name = value[0].get<std::string>();
    for (const json& size : value[1]) tensor.shape.d[tensor.shape.rank++] = size.get<int64_t>();
    for (const json& s : value[2]) {
      tensor.slices.push_back({s[0].get<int32_t>(), s[1].get<std::string>(), s[2].get<int64_t>(),
                               s[3].get<int64_t>(), s[4].get<uint64_t>()});
    }
    report.tensors.push_back(std::move(tensor));
  }
  return report;
}

// Runs `work`, which returns a line; an exception becomes an error line.
template <class Work>
std::string line_of(Work&& work) {
  try {
    return work();
  } catch (const Error& e) {
    return error_line(e.code(), e.what());
  } catch (const std::exception& e) {
    return error_line(ExitCode::internal, e.what());
  }
}

std::vector<ShardReport> parse_reports(const std::string& lines, int ranks) {
  std::vector<ShardReport> reports;
  size_t begin = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    reports.push_back(parse_report(lines.substr(begin, end - begin)));
    begin = end + 1;
  }
  return reports;
}

}  // namespace

std::string begin_checkpoint(FileSystem& files, const std::string& output, uint64_t step) {
  const std::string folder = temporary_folder(output, step);
  recover_replaced(files, output);
  remove_tree(files, folder);
  files.make_folder(folder);
  // The parents may be new; their names must be durable before the checkpoint's is.
  files.sync_folder(output);
  return folder;
}

ShardReport write_shard(FileSystem& files, const std::string& folder, int32_t rank,
                        const std::vector<TensorSlice>& slices, std::span<std::byte> staging) {
  ShardReport report;
  std::vector<SafetensorsEntry> entries;
  std::vector<const TensorSlice*> written;
  for (const TensorSlice& slice : slices) {
    const int64_t total = slice.shape.count();
    if (slice.begin < 0 || slice.count < 0 || slice.count > total - slice.begin) {
      internal_error("checkpoint: tensor \"{}\" of {} elements: slice of {} from {}", slice.name,
                     total, slice.count, slice.begin);
    }
    report.tensors.push_back({slice.name, slice.shape, {}});
    if (slice.count == 0) continue;
    const bool whole = slice.count == total;
    const std::string entry = whole ? slice.name : fmt::format("{}@{}", slice.name, slice.begin);
    report.tensors.back().slices.push_back({rank, entry, slice.begin, slice.count, 0});
    entries.push_back({entry, whole ? slice.shape : Dims(slice.count), 0, 0});
    written.push_back(&slice);
  }
  const std::string header = safetensors_header(entries, {{"format", "spillway"}});
  report.file = {static_cast<int64_t>(header.size()), hash_bytes(header.data(), header.size())};

  const auto file = files.create(folder + "/" + shard_name(rank));
  file->write(header.data(), static_cast<int64_t>(header.size()));
  const int64_t piece = static_cast<int64_t>(staging.size()) / kF32 * kF32;
  if (piece == 0) internal_error("checkpoint: a staging buffer of {} bytes", staging.size());
  size_t next = 0;
  for (StoredTensor& tensor : report.tensors) {
    if (tensor.slices.empty()) continue;
    const TensorSlice& slice = *written[next++];
    Hasher hasher;
    const int64_t bytes = slice.count * kF32;
    for (int64_t done = 0; done < bytes; done += piece) {
      const int64_t now = std::min(piece, bytes - done);
      slice.read(done, staging.data(), now);
      hasher.bytes(staging.data(), now);
      file->write(staging.data(), now);
    }
    tensor.slices[0].hash = hasher.digest();
    report.file.bytes += bytes;
  }
  file->sync();
  file->close();
  return report;
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
  const std::string replaced = parent + "/.replaced_" + step_folder(run.step);
  const bool replaces = files.exists(target);
  if (replaces) files.rename(target, replaced);
  files.rename(folder, target);
  files.sync_folder(parent);
  if (replaces) remove_tree(files, replaced);
  return target;
}

SaveOutcome save_checkpoint(FileSystem& files, Communicator& communicator,
                            const std::string& output, const RunState& run,
                            const std::vector<TensorSlice>& slices, std::span<std::byte> staging,
                            int64_t keep) {
  const bool first = communicator.rank() == 0;
  SaveOutcome outcome;

  std::string agreed;
  if (first) {
    agreed = line_of([&] {
      return json{{"folder", begin_checkpoint(files, output, run.step)}}.dump();
    });
  }
  json line = json::parse(communicator.broadcast_text(agreed, 0));
  throw_if_error(line);
  const std::string folder = line["folder"].get<std::string>();

  const std::string lines = communicator.gather_text(line_of([&] {
    return report_line(write_shard(files, folder, communicator.rank(), slices, staging));
  }));
  if (first) {
    agreed = line_of([&] {
      const auto reports = parse_reports(lines, communicator.size());
      return json{{"path", publish_checkpoint(files, output, run, reports)}}.dump();
    });
    if (json::parse(agreed).contains("error")) {
      try {  // the error that matters is the first one
        remove_tree(files, folder);
        recover_replaced(files, output);
      } catch (const Error&) {
      }
    }
  }
  line = json::parse(communicator.broadcast_text(agreed, 0));
  throw_if_error(line);
  outcome.path = line["path"].get<std::string>();
  if (first) {
    try {
      outcome.removed = apply_retention(files, output, keep, run.step);
    } catch (const Error& e) {
      outcome.warning = e.what();
    }
  }
  return outcome;
}

}  // namespace spillway
