// Files of token ids, memory-mapped and read in place.
#pragma once

#include <cstdint>
#include <string>

namespace spillway {

constexpr int32_t kByteVocab = 257;  // byte values, and 256: end of text
constexpr int32_t kEndOfText = 256;

// One file, open for its lifetime. Immutable after construction, so any thread may read it. The
// file must not shrink while it is open.
class TokenFile {
 public:
  // `tokenizer` says what the bytes are (DataConfig::tokenizer):
  //   "bytes"     text; a token is a byte, and the file ends with one kEndOfText that is not stored
  //   "gpt2.bin"  llm.c's format, see token_file.cpp
  //   "uint16", "uint32"  little-endian ids without a header; a file that starts with llm.c's magic
  //               is read as llm.c's format instead
  // Checks the whole file: every id is below `vocab`. Throws Error(bad_input) that names the file,
  // the byte offset, what was found and what was expected.
  TokenFile(const std::string& path, const std::string& tokenizer, int64_t vocab);
  ~TokenFile();
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&&) = delete;

  const std::string& path() const { return path_; }
  int64_t count() const { return count_; }  // tokens, end of text included

  // Writes tokens [begin, begin + n) to `out`; 0 ≤ begin, begin + n ≤ count().
  void read(int64_t begin, int64_t n, int32_t* out) const;

 private:
  void map();
  void parse(const std::string& tokenizer, int64_t vocab);
  void parse_llmc();
  void check_ids(int64_t vocab) const;

  std::string path_;
  const uint8_t* data_ = nullptr;  // the whole mapped file
  int64_t bytes_ = 0;
  int64_t header_ = 0;  // bytes before the first token
  int width_ = 1;       // bytes a token
  int64_t count_ = 0;
};

}  // namespace spillway
