// libFuzzer target: any bytes as a token file are read in bounds or refused with an Error.
// links: spillway_data
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/token_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const char* const kTokenizers[] = {"bytes", "gpt2.bin", "uint16", "uint32"};
  if (size < 4) return 0;
  // The first bytes choose format and vocabulary, the rest is the file.
  const char* tokenizer = kTokenizers[data[0] % 4];
  const int64_t vocab = 1 + (data[1] | data[2] << 8 | data[3] << 16);
  data += 4;
  size -= 4;
  const int fd = memfd_create("tokens", MFD_CLOEXEC);
  if (fd < 0 || write(fd, data, size) != static_cast<ssize_t>(size)) __builtin_trap();
  try {
    const spillway::TokenFile file("/proc/self/fd/" + std::to_string(fd), tokenizer, vocab);
    std::vector<int32_t> tokens(file.count());
    file.read(0, file.count(), tokens.data());
    for (int32_t token : tokens) {
      if (token < 0 || token >= vocab) __builtin_trap();
    }
  } catch (const spillway::Error& e) {
    if (e.code() != spillway::ExitCode::bad_input) __builtin_trap();
  }
  close(fd);
  return 0;
}
