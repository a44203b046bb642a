// <output>/checkpoints holds
//   step_XXXXXXXX            checkpoints
//   .tmp_step_XXXXXXXX       one being written, or a leftover
//   .replaced_step_XXXXXXXX  one whose successor of the same step is being renamed into its place
//   .old_step_XXXXXXXX       one being removed: renamed first, so that it is never seen in part
#include "checkpoint/store.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"

namespace spillway {
namespace {

bool starts_with(const std::string& s, const char* head) { return s.rfind(head, 0) == 0; }

// The step of "step_XXXXXXXX", or -1.
int64_t step_of(const std::string& name) {
  constexpr size_t kHead = 5, kMinDigits = 8, kMaxDigits = 18;
  if (!starts_with(name, "step_") || name.size() < kHead + kMinDigits ||
      name.size() > kHead + kMaxDigits ||
      name.find_first_not_of("0123456789", kHead) != std::string::npos) {
    return -1;
  }
  const int64_t step = std::stoll(name.substr(kHead));
  return step_folder(step) == name ? step : -1;
}

// Why a checkpoint is not valid, or "". `step`: what its folder's name says; -1: any.
std::string flaw(FileSystem& files, const std::string& path, int64_t step, bool hashes) {
  try {
    const CheckpointReader reader(files, path);
    const uint64_t stored = reader.manifest().run.step;
    if (step >= 0 && stored != static_cast<uint64_t>(step)) {
      return fmt::format("{}: holds step {}, not the one it is named after", path, stored);
    }
    if (hashes) reader.verify();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

std::string shape_text(const Dims& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank; ++i) text += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return text + "]";
}

}  // namespace

std::string checkpoints_folder(const std::string& output) { return output + "/checkpoints"; }

std::vector<CheckpointFolder> list_checkpoints(FileSystem& files, const std::string& output) {
  const std::string parent = checkpoints_folder(output);
  std::vector<CheckpointFolder> found;
  if (!files.exists(parent)) return found;
  for (const FolderEntry& entry : files.list(parent)) {
    const int64_t step = step_of(entry.name);
    if (step >= 0) found.push_back({static_cast<uint64_t>(step), parent + "/" + entry.name});
  }
  std::sort(found.begin(), found.end(),
            [](const CheckpointFolder& a, const CheckpointFolder& b) { return a.step > b.step; });
  return found;
}

void recover_replaced(FileSystem& files, const std::string& output) {
  const std::string parent = checkpoints_folder(output);
  if (!files.exists(parent)) return;
  for (const FolderEntry& entry : files.list(parent)) {
    if (!starts_with(entry.name, ".replaced_step_")) continue;
    const std::string replaced = parent + "/" + entry.name;
    const std::string target = parent + "/" + entry.name.substr(sizeof ".replaced_" - 1);
    if (files.exists(target)) {
      files.sync_folder(parent);  // the new one must be durable before the old one goes
      remove_tree(files, replaced);
    } else {
      files.rename(replaced, target);
      files.sync_folder(parent);
    }
  }
}

std::optional<ResumeChoice> find_resume(FileSystem& files, const std::string& output,
                                        const std::string& request) {
  ResumeChoice choice;
  if (request != "latest") {
    const std::string reason = flaw(files, request, -1, true);
    if (!reason.empty()) bad_input("cannot resume from {}: {}", request, reason);
    choice.path = request;
    choice.step = CheckpointReader(files, request).manifest().run.step;
    return choice;
  }
  recover_replaced(files, output);
  for (const CheckpointFolder& folder : list_checkpoints(files, output)) {
    const std::string reason = flaw(files, folder.path, static_cast<int64_t>(folder.step), true);
    if (reason.empty()) {
      choice.path = folder.path;
      choice.step = folder.step;
      return choice;
    }
    choice.skipped.push_back({folder.path, reason});
  }
  if (choice.skipped.empty()) return std::nullopt;
  std::string reasons;
  for (const SkippedCheckpoint& s : choice.skipped) reasons += "; " + s.reason;
  bad_input("{}: none of the {} checkpoints is valid{}", checkpoints_folder(output),
            choice.skipped.size(), reasons);
}

std::vector<std::string> apply_retention(FileSystem& files, const std::string& output,
                                         const Retention& retention, uint64_t just_written) {
  const std::string parent = checkpoints_folder(output);
  std::vector<std::string> removed;
  recover_replaced(files, output);
  int64_t complete = 0;
  for (const CheckpointFolder& folder : list_checkpoints(files, output)) {
    const uint64_t every = static_cast<uint64_t>(retention.keep_every);
    if (complete < std::max<int64_t>(retention.keep, 1)) {
      complete += flaw(files, folder.path, static_cast<int64_t>(folder.step), false).empty();
    } else if (folder.step != just_written && (every == 0 || folder.step % every != 0)) {
      const std::string old = parent + "/.old_" + step_folder(folder.step);
      remove_tree(files, old);
      files.rename(folder.path, old);
      removed.push_back(folder.path);
    }
  }
  if (!removed.empty()) files.sync_folder(parent);
  for (const FolderEntry& entry : files.list(parent)) {
    if (starts_with(entry.name, ".tmp_step_") || starts_with(entry.name, ".old_step_")) {
      remove_tree(files, parent + "/" + entry.name);
    }
  }
  return removed;
}

std::string inspect_checkpoint(FileSystem& files, const std::string& path) {
  const CheckpointReader reader(files, path);
  reader.verify();
  const Manifest& manifest = reader.manifest();
  const RunState& run = manifest.run;
  std::string text = fmt::format(
      "step {}, {} updates applied, {} skipped, {} sequences read, written by {} rank{}\n"
      "numerics {}\n",
      run.step, run.updates, run.skipped, run.data_position, run.ranks, run.ranks == 1 ? "" : "s",
      hex(run.numerics_hash));
  for (const auto& [key, value] : run.fingerprint) text += fmt::format("{} {}\n", key, value);
  size_t width = 0;
  for (const StoredTensor& tensor : manifest.tensors) width = std::max(width, tensor.name.size());
  int64_t elements = 0;
  for (const StoredTensor& tensor : manifest.tensors) {
    elements += tensor.shape.count();
    text += fmt::format("{:<{}}  f32  {:<16}  in {} shard{}\n", tensor.name, width,
                        shape_text(tensor.shape), tensor.slices.size(),
                        tensor.slices.size() == 1 ? "" : "s");
  }
  const StateHashes hashes = hash_state(reader);
  text +=
      fmt::format("{} tensors, {} bytes\nstate_hash {}\nweights_hash {}\n", manifest.tensors.size(),
                  elements * size_of(Dtype::f32), hex(hashes.state), hex(hashes.weights));
  return text;
}

}  // namespace spillway
