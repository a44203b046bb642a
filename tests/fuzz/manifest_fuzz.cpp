// libFuzzer target: any bytes as a manifest are read or refused with an Error, and what is read is
// written back to the same manifest. A right checksum is put in front unless the input asks not to,
// or nothing would get past it.
// links: spillway_checkpoint
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "checkpoint/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  std::string text(reinterpret_cast<const char*>(data), size);
  if (size > 0 && data[0] != '{')
    text = "{\"checksum\": \"" + hex(hash_bytes(text.data(), text.size())) + "\"," + text;
  try {
    const Manifest manifest = parse_manifest(text, "fuzz");
    for (const StoredTensor& tensor : manifest.tensors) {
      int64_t next = 0;
      for (const StoredSlice& slice : tensor.slices) {
        if (slice.begin != next || slice.count < 1) __builtin_trap();
        if (slice.shard < 0 || slice.shard >= static_cast<int32_t>(manifest.shards.size()))
          __builtin_trap();
        next += slice.count;
      }
      if (next != tensor.shape.count()) __builtin_trap();
      if (find_tensor(manifest, tensor.name) != &tensor) __builtin_trap();
      is_moment(manifest, tensor.name);
    }
    const std::string again = to_text(manifest);
    if (to_text(parse_manifest(again, "again")) != again) __builtin_trap();
  } catch (const Error& e) {
    if (e.code() != ExitCode::bad_input) __builtin_trap();
  }
  return 0;
}
