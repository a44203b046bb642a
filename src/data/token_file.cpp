// llm.c's token file:
//   header  int32[256]: magic 20240520, version 1, number of tokens, zeros
//   tokens  uint16[number of tokens]
// All little-endian, nothing after the last token.
#include "data/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read in place");

constexpr int32_t kLlmcMagic = 20240520;
constexpr int32_t kLlmcMagicUint32 = 20240801;  // llm.c's Llama 3 files
constexpr int32_t kLlmcVersion = 1;
constexpr int64_t kLlmcHeader = 256 * 4;

int32_t word(const uint8_t* data, int64_t index) {
  int32_t value;
  std::memcpy(&value, data + index * 4, 4);
  return value;
}

bool ends_with(const std::string& s, const char* tail) {
  const size_t n = std::strlen(tail);
  return s.size() >= n && s.compare(s.size() - n, n, tail) == 0;
}

// Megatron's data is a pair: NAME.bin has no header, NAME.idx starts with this magic.
bool is_megatron(const std::string& path) {
  if (!ends_with(path, ".idx") && !ends_with(path, ".bin")) return false;
  const std::string index = path.substr(0, path.size() - 4) + ".idx";
  const int fd = ::open(index.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  char magic[7] = {};
  const ssize_t got = ::pread(fd, magic, sizeof magic, 0);
  ::close(fd);
  return got == sizeof magic && std::memcmp(magic, "MMIDIDX", sizeof magic) == 0;
}

// Index of the first id > limit among `n`, or -1. The inner loop has a constant trip count and no
// branch, so that the compiler turns it into vector code.
template <class T>
int64_t first_above(const T* ids, int64_t n, T limit) {
  constexpr int64_t kBlock = 4096;
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    T above = 0;
    for (int64_t k = 0; k < kBlock; ++k) above |= static_cast<T>(ids[i + k] > limit);
    if (above) break;
  }
  for (; i < n; ++i)
    if (ids[i] > limit) return i;
  return -1;
}

}  // namespace

TokenFile::TokenFile(const std::string& path, const std::string& tokenizer, int64_t vocab)
    : path_(path) {
  map();
  try {
    parse(tokenizer, vocab);
    check_ids(vocab);
  } catch (...) {
    ::munmap(const_cast<uint8_t*>(data_), bytes_);
    throw;
  }
}

TokenFile::TokenFile(TokenFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      header_(other.header_),
      width_(other.width_),
      count_(other.count_) {}

TokenFile::~TokenFile() {
  if (data_) ::munmap(const_cast<uint8_t*>(data_), bytes_);
}

void TokenFile::map() {
  if (is_megatron(path_)) {
    bad_input("{}: not supported yet: Megatron token files; convert to an llm.c .bin", path_);
  }
  // O_NONBLOCK: a named pipe must be an error below, not a wait for its writer.
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) bad_input("{}: cannot open the data file: {}", path_, std::strerror(errno));
  struct stat info = {};
  const bool known = ::fstat(fd, &info) == 0;
  if (!known || !S_ISREG(info.st_mode)) {
    ::close(fd);
    bad_input("{}: found a {}, expected a data file", path_,
              known && S_ISDIR(info.st_mode) ? "folder" : "special file");
  }
  bytes_ = info.st_size;
  if (bytes_ == 0) {
    ::close(fd);
    bad_input("{}: the data file is empty", path_);
  }
  void* mapped = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  ::close(fd);
  if (mapped == MAP_FAILED) bad_input("{}: cannot map the file: {}", path_, std::strerror(error));
  data_ = static_cast<const uint8_t*>(mapped);
}

void TokenFile::parse(const std::string& tokenizer, int64_t vocab) {
  const int32_t magic = bytes_ >= 4 ? word(data_, 0) : 0;
  if (magic == kLlmcMagicUint32 && tokenizer != "bytes") {
    bad_input("{}: not supported yet: llm.c token files of uint32 (magic {} at byte 0)", path_,
              magic);
  }
  if (tokenizer == "bytes") {
    if (magic == kLlmcMagic) {
      bad_input(
          "{}: found llm.c's magic {} at byte 0, expected text; set data.tokenizer to \"gpt2.bin\"",
          path_, magic);
    }
    if (vocab < kByteVocab) {
      bad_input("{}: the byte tokenizer has {} tokens, model.vocab is {}", path_, kByteVocab,
                vocab);
    }
    count_ = bytes_ + 1;
  } else if (tokenizer == "gpt2.bin") {
    parse_llmc();
  } else if (tokenizer == "uint16" || tokenizer == "uint32") {
    if (magic == kLlmcMagic) return parse_llmc();
    width_ = tokenizer == "uint16" ? 2 : 4;
    count_ = bytes_ / width_;
    if (bytes_ % width_ != 0) {
      bad_input("{}: {} bytes, expected a multiple of {} ({} ids); the last id at byte {} is cut",
                path_, bytes_, width_, tokenizer, count_ * width_);
    }
  } else {
    bad_input(
        "{}: unknown data.tokenizer \"{}\", expected \"bytes\", \"gpt2.bin\", \"uint16\" or "
        "\"uint32\"",
        path_, tokenizer);
  }
}

void TokenFile::parse_llmc() {
  if (bytes_ >= 4 && word(data_, 0) != kLlmcMagic) {
    bad_input("{}: found {} at byte 0, expected llm.c's magic {}", path_, word(data_, 0),
              kLlmcMagic);
  }
  if (bytes_ < kLlmcHeader) {
    bad_input("{}: truncated: {} bytes, expected at least the {} bytes of llm.c's header", path_,
              bytes_, kLlmcHeader);
  }
  if (word(data_, 1) != kLlmcVersion) {
    bad_input("{}: found version {} at byte 4, expected {}", path_, word(data_, 1), kLlmcVersion);
  }
  if (word(data_, 2) < 0) {
    bad_input("{}: found a token count of {} at byte 8", path_, word(data_, 2));
  }
  header_ = kLlmcHeader;
  width_ = 2;
  count_ = word(data_, 2);
  const int64_t expected = header_ + count_ * width_;
  if (bytes_ != expected) {
    bad_input("{}: {}: {} bytes, expected {} ({} of header and {} tokens, by the count at byte 8)",
              path_, bytes_ < expected ? "truncated" : "too long", bytes_, expected, header_,
              count_);
  }
}

void TokenFile::check_ids(int64_t vocab) const {
  int64_t bad = -1;
  if (width_ == 2 && vocab <= 0xffff) {
    bad = first_above(reinterpret_cast<const uint16_t*>(data_ + header_), count_,
                      static_cast<uint16_t>(vocab - 1));
  } else if (width_ == 4) {
    // Ids become int32, whatever the vocabulary.
    const int64_t limit = std::min<int64_t>(vocab - 1, INT32_MAX);
    bad = first_above(reinterpret_cast<const uint32_t*>(data_ + header_), count_,
                      static_cast<uint32_t>(limit));
  }
  if (bad < 0) return;
  uint32_t id = 0;
  std::memcpy(&id, data_ + header_ + bad * width_, width_);
  bad_input("{}: token {} at byte {} is outside the vocabulary, expected 0 to {}", path_, id,
            header_ + bad * width_, vocab - 1);
}

void TokenFile::read(int64_t begin, int64_t n, int32_t* out) const {
  const uint8_t* from = data_ + header_ + begin * width_;
  if (width_ == 1) {
    const int64_t stored = std::min(n, bytes_ - begin);
    for (int64_t i = 0; i < stored; ++i) out[i] = from[i];
    if (stored < n) out[stored] = kEndOfText;
  } else if (width_ == 2) {
    const auto* ids = reinterpret_cast<const uint16_t*>(from);
    for (int64_t i = 0; i < n; ++i) out[i] = ids[i];
  } else {
    std::memcpy(out, from, n * 4);
  }
}

}  // namespace spillway
