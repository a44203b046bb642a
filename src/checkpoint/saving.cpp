// Ranks exchange one line of JSON each: {"bytes", "header_hash", "tensors": [[name, shape, [[shard,
// entry, begin, count, hash]]]], "seconds"}, or {"error"}. Rank 0 answers with {"path", "bytes",
// "write_seconds", "seconds"} or an error.
#include "checkpoint/saving.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

using nlohmann::json;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string report_line(const ShardReport& report, double seconds) {
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
  return json{{"bytes", report.file.bytes},
              {"header_hash", report.file.header_hash},
              {"seconds", seconds},
              {"tensors", tensors}}
      .dump();
}

std::string error_line(const std::string& message) {
  return json{{"error", message}}.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Keeps the longest time in `seconds`.
ShardReport parse_report(const std::string& text, double& seconds) {
  const json line = json::parse(text);
  if (line.contains("error")) throw Error(ExitCode::internal, line["error"].get<std::string>());
  seconds = std::max(seconds, line["seconds"].get<double>());
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
  } catch (const std::exception& e) {
    return error_line(e.what());
  }
}

std::vector<ShardReport> parse_reports(const std::string& lines, int ranks, double& seconds) {
  std::vector<ShardReport> reports;
  size_t begin = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    reports.push_back(parse_report(lines.substr(begin, end - begin), seconds));
    begin = end + 1;
  }
  return reports;
}

}  // namespace

Saving::Saving(FileSystem& files, Communicator& communicator, std::string output,
               Retention retention, OnIo on_io)
    : files_(files),
      communicator_(communicator),
      output_(std::move(output)),
      retention_(retention),
      on_io_(std::move(on_io)) {}

std::optional<SaveOutcome> Saving::begin(const RunState& run,
                                         const std::vector<TensorSlice>& slices) {
  if (in_progress()) internal_error("a save begins while another is in progress");
  begun_ = now();
  run_ = run;
  std::string agreed;
  if (communicator_.rank() == 0) {
    agreed = line_of([&] {
      return json{{"folder", begin_checkpoint(files_, output_, run.step)}}.dump();
    });
    if (json::parse(agreed).contains("error")) abandon_checkpoint(files_, output_, run.step);
  }
  const json line = json::parse(communicator_.broadcast_text(agreed, 0));
  if (line.contains("error")) {
    SaveOutcome outcome;
    outcome.step = run.step;
    outcome.error = line["error"].get<std::string>();
    return outcome;
  }
  stage_ = Stage::writing;
  failed_ = done_ = false;
  line_.clear();
  on_io_([this, folder = line["folder"].get<std::string>(), slices] {
    guarded([&] {
      opened_ = now();
      shard_ = std::make_unique<ShardWriter>(files_, folder, communicator_.rank(), slices);
    });
  });
  return std::nullopt;
}

// On the io lane: what throws makes this rank's part of the save fail, nothing else.
void Saving::guarded(const std::function<void()>& work) {
  if (failed_) return;
  try {
    work();
  } catch (const std::exception& e) {
    failed_ = true;
    line_ = error_line(communicator_.size() == 1
                           ? e.what()
                           : fmt::format("rank {}: {}", communicator_.rank(), e.what()));
    shard_.reset();
  }
}

void Saving::append(const void* data, int64_t bytes) {
  guarded([&] { shard_->append(data, bytes); });
}

void Saving::end_shard() {
  on_io_([this] {
    guarded([&] {
      const ShardReport report = shard_->finish();
      line_ = report_line(report, now() - opened_);
    });
    shard_.reset();
    set_done();
  });
}

void Saving::set_done() {
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

bool Saving::done(bool block) {
  std::unique_lock lock(mutex_);
  if (block) changed_.wait(lock, [&] { return done_; });
  return done_;
}

// Rank 0, io lane.
void Saving::publish(const std::string& lines) {
  line_ = line_of([&] {
    double write_seconds = 0;
    const auto reports = parse_reports(lines, communicator_.size(), write_seconds);
    int64_t bytes = 0;
    for (const ShardReport& report : reports) bytes += report.file.bytes;
    const std::string path = publish_checkpoint(files_, output_, run_, reports);
    return json{{"path", path},
                {"bytes", bytes},
                {"write_seconds", write_seconds},
                {"seconds", now() - begun_}}
        .dump();
  });
  removed_.clear();
  warning_.clear();
  if (json::parse(line_).contains("error")) {
    abandon_checkpoint(files_, output_, run_.step);
  } else {
    try {
      removed_ = apply_retention(files_, output_, retention_, run_.step);
    } catch (const std::exception& e) {
      warning_ = e.what();
    }
  }
  set_done();
}

std::optional<SaveOutcome> Saving::advance(bool block) {
  if (stage_ == Stage::idle) return std::nullopt;
  const bool first = communicator_.rank() == 0;
  if (stage_ == Stage::writing) {
    const bool written = done(block);
    if (!block && communicator_.min(written ? 1 : 0) == 0) return std::nullopt;
    const std::string lines = communicator_.gather_text(line_);
    done_ = !first;
    stage_ = Stage::publishing;
    if (first) on_io_([this, lines] { publish(lines); });
  }
  const bool published = done(block);
  if (!block && communicator_.min(published ? 1 : 0) == 0) return std::nullopt;
  const json line = json::parse(communicator_.broadcast_text(line_, 0));
  stage_ = Stage::idle;
  SaveOutcome outcome;
  outcome.step = run_.step;
  if (line.contains("error")) {
    outcome.error = line["error"].get<std::string>();
    return outcome;
  }
  outcome.path = line["path"].get<std::string>();
  outcome.bytes = line["bytes"].get<int64_t>();
  outcome.write_seconds = line["write_seconds"].get<double>();
  outcome.seconds = line["seconds"].get<double>();
  if (first) {
    outcome.removed = std::move(removed_);
    outcome.warning = std::move(warning_);
  }
  return outcome;
}

std::optional<SaveOutcome> Saving::poll() { return advance(false); }
std::optional<SaveOutcome> Saving::wait() { return advance(true); }

}  // namespace spillway
