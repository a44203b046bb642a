#include "checkpoint/reader.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"

namespace spillway {
namespace {

constexpr int64_t kMaxManifest = int64_t{1} << 30;
constexpr int64_t kPiece = int64_t{1} << 20;  // bytes read at once while hashing
constexpr int64_t kF32 = size_of(Dtype::f32);

}  // namespace

CheckpointReader::CheckpointReader(FileSystem& files, const std::string& path) : path_(path) {
  const std::string manifest_path = path + "/" + kManifestName;
  manifest_ = parse_manifest(read_text(files, manifest_path, kMaxManifest), manifest_path);
  for (size_t i = 0; i < manifest_.shards.size(); ++i) {
    const std::string name = path + "/" + shard_name(static_cast<int32_t>(i));
    const auto& file = shards_.emplace_back(files.open(name));
    const ShardFile& expected = manifest_.shards[i];
    if (file->size() != expected.bytes) {
      bad_input("{}: {}: {} bytes, expected {}", name,
                file->size() < expected.bytes ? "truncated" : "too long", file->size(),
                expected.bytes);
    }
    const std::string header = read_safetensors_header(*file, name);
    const uint64_t found = hash_bytes(header.data(), header.size());
    if (found != expected.header_hash) {
      bad_input("{}: damaged: the hash of its header is {}, expected {}", name, hex(found),
                hex(expected.header_hash));
    }
    entries_.push_back(parse_safetensors_header(header, file->size(), name));
  }
  for (const StoredTensor& tensor : manifest_.tensors) {
    for (const StoredSlice& slice : tensor.slices) entry_of(tensor, slice);
  }
}

const SafetensorsEntry& CheckpointReader::entry_of(const StoredTensor& tensor,
                                                   const StoredSlice& slice) const {
  const auto& entries = entries_[slice.shard];
  const auto it = entries.find(slice.entry);
  if (it == entries.end() || it->second.bytes != slice.count * kF32) {
    bad_input("{}/{}: entry \"{}\" of tensor \"{}\" {}", path_, shard_name(slice.shard),
              slice.entry, tensor.name,
              it == entries.end() ? "is missing" : "has another size than the manifest says");
  }
  return it->second;
}

void CheckpointReader::damaged(const StoredTensor& tensor, const StoredSlice& slice,
                               uint64_t found) const {
  const SafetensorsEntry& entry = entry_of(tensor, slice);
  bad_input("{}/{}: damaged: tensor \"{}\", bytes {} to {}: the hash is {}, expected {}", path_,
            shard_name(slice.shard), tensor.name, entry.begin, entry.begin + entry.bytes,
            hex(found), hex(slice.hash));
}

void CheckpointReader::verify() const {
  std::vector<char> piece(kPiece);
  for (const StoredTensor& tensor : manifest_.tensors) {
    for (const StoredSlice& slice : tensor.slices) {
      const SafetensorsEntry& entry = entry_of(tensor, slice);
      Hasher hasher;
      for (int64_t done = 0; done < entry.bytes; done += kPiece) {
        const int64_t bytes = std::min(kPiece, entry.bytes - done);
        shards_[slice.shard]->read(entry.begin + done, piece.data(), bytes);
        hasher.bytes(piece.data(), bytes);
      }
      if (hasher.digest() != slice.hash) damaged(tensor, slice, hasher.digest());
    }
  }
}

void CheckpointReader::read(const std::string& name, int64_t begin, int64_t count,
                            float* out) const {
  const StoredTensor* tensor = find_tensor(manifest_, name);
  if (!tensor) bad_input("{}: holds no tensor \"{}\"", path_, name);
  const int64_t total = tensor->shape.count();
  if (begin < 0 || count < 0 || begin > total || count > total - begin) {
    bad_input("{}: tensor \"{}\" of {} elements: {} asked for from element {}", path_, name, total,
              count, begin);
  }
  const int64_t end = begin + count;
  auto slice =
      std::upper_bound(tensor->slices.begin(), tensor->slices.end(), begin,
                       [](int64_t value, const StoredSlice& s) { return value < s.begin; });
  if (slice != tensor->slices.begin()) --slice;
  for (; slice != tensor->slices.end() && slice->begin < end; ++slice) {
    const int64_t first = std::max(begin, slice->begin);
    const int64_t last = std::min(end, slice->begin + slice->count);
    if (first >= last) continue;
    float* to = out + (first - begin);
    const int64_t bytes = (last - first) * kF32;
    shards_[slice->shard]->read(entry_of(*tensor, *slice).begin + (first - slice->begin) * kF32, to,
                                bytes);
    if (last - first == slice->count) {
      const uint64_t found = hash_bytes(to, bytes);
      if (found != slice->hash) damaged(*tensor, *slice, found);
    }
  }
}

StateHashes hash_state(const CheckpointReader& reader) {
  Hasher state, weights;
  std::vector<float> piece(kPiece / kF32);
  const int64_t at_once = static_cast<int64_t>(piece.size());
  for (const StoredTensor& tensor : reader.manifest().tensors) {
    Hasher own;
    own.text(tensor.name);
    own.value(tensor.shape.rank);
    for (int i = 0; i < tensor.shape.rank; ++i) own.value(tensor.shape[i]);
    const int64_t total = tensor.shape.count();
    for (int64_t done = 0; done < total; done += at_once) {
      const int64_t count = std::min(at_once, total - done);
      reader.read(tensor.name, done, count, piece.data());
      own.bytes(piece.data(), count * kF32);
    }
    state.value(own.digest());
    if (!is_moment(reader.manifest(), tensor.name)) weights.value(own.digest());
  }
  return {state.digest(), weights.digest()};
}

}  // namespace spillway
