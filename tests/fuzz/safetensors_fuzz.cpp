// libFuzzer target: any bytes as a safetensors file have entries that lie within it, or are refused
// with an Error.
// links: spillway_checkpoint
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"
#include "checkpoint/safetensors.h"

namespace {

class Bytes final : public spillway::ReadableFile {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(static_cast<int64_t>(size)) {}
  int64_t size() const override { return size_; }
  void read(int64_t offset, void* out, int64_t bytes) const override {
    if (offset < 0 || bytes < 0 || offset > size_ || bytes > size_ - offset) __builtin_trap();
    std::memcpy(out, data_ + offset, static_cast<size_t>(bytes));
  }

 private:
  const uint8_t* data_;
  int64_t size_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  // Inputs that begin with an object get the length word that makes it the header.
  std::string text(reinterpret_cast<const char*>(data), size);
  if (size > 0 && data[0] == '{') {
    const size_t end = text.rfind('}');
    const uint64_t length = end == std::string::npos ? size : end + 1;
    text.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
  }
  const Bytes file(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  try {
    const std::string header = read_safetensors_header(file, "fuzz");
    for (const auto& [name, entry] : parse_safetensors_header(header, file.size(), "fuzz")) {
      if (entry.begin < static_cast<int64_t>(header.size()) || entry.bytes < 0 ||
          entry.bytes > file.size() - entry.begin || entry.bytes != entry.shape.count() * 4)
        __builtin_trap();
    }
  } catch (const Error& e) {
    if (e.code() != ExitCode::bad_input) __builtin_trap();
  }
  return 0;
}
