// Token files: what is read, and every kind of bad file is one error that says where.
// links: spillway_data
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/token_file.h"

namespace spillway {
namespace {

class DataFiles : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/spillway_data_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const void* data, size_t bytes) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary).write(static_cast<const char*>(data), bytes);
    return path;
  }
  template <class T>
  std::string write(const std::string& name, const std::vector<T>& v) {
    return write(name, v.data(), v.size() * sizeof(T));
  }
  std::string write_llmc(const std::string& name, const std::vector<uint16_t>& ids, int32_t magic,
                         int32_t version, int32_t count, size_t bytes_less = 0) {
    std::vector<uint8_t> file(1024 + ids.size() * 2);
    const int32_t header[3] = {magic, version, count};
    std::memcpy(file.data(), header, sizeof header);
    if (!ids.empty()) std::memcpy(file.data() + 1024, ids.data(), ids.size() * 2);
    return write(name, file.data(), file.size() - bytes_less);
  }
  static std::vector<int32_t> all(const TokenFile& file) {
    std::vector<int32_t> out(file.count());
    file.read(0, file.count(), out.data());
    return out;
  }
  // Expects one bad_input error whose message contains every part.
  void expect_error(const std::string& path, const std::string& tokenizer, int64_t vocab,
                    const std::vector<std::string>& parts) {
    try {
      TokenFile file(path, tokenizer, vocab);
      FAIL() << path << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::bad_input);
      const std::string message = e.what();
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      EXPECT_NE(message.find(path), std::string::npos) << message;
      for (const std::string& part : parts) {
        EXPECT_NE(message.find(part), std::string::npos) << message << " lacks " << part;
      }
    }
  }
  std::string folder_;
};

constexpr int32_t kMagic = 20240520;

TEST_F(DataFiles, TextEndsWithEndOfText) {
  const std::string text = "h\xc3\xa9\xff";
  const TokenFile file(write("t.txt", text.data(), text.size()), "bytes", kByteVocab);
  EXPECT_EQ(all(file), (std::vector<int32_t>{'h', 0xc3, 0xa9, 0xff, kEndOfText}));
  int32_t last[2];
  file.read(3, 2, last);
  EXPECT_EQ(last[0], 0xff);
  EXPECT_EQ(last[1], kEndOfText);
}

TEST_F(DataFiles, EveryFormatReadsWhatWasWritten) {
  std::mt19937_64 random(7);
  for (int64_t n : {1, 2, 4095, 4096, 4097, 20001}) {
    std::vector<uint16_t> narrow(n);
    std::vector<uint32_t> wide(n);
    std::vector<int32_t> expected(n), expected_wide(n);
    for (int64_t i = 0; i < n; ++i) {
      expected[i] = narrow[i] = random() % 50257;
      expected_wide[i] = wide[i] = random() % 128256;
    }
    EXPECT_EQ(all(TokenFile(write("a.u16", narrow), "uint16", 50257)), expected);
    EXPECT_EQ(all(TokenFile(write("a.u32", wide), "uint32", 128256)), expected_wide);
    const std::string llmc = write_llmc("a.bin", narrow, kMagic, 1, n);
    for (const char* tokenizer : {"gpt2.bin", "uint16", "uint32"}) {
      EXPECT_EQ(all(TokenFile(llmc, tokenizer, 50257)), expected) << tokenizer;
    }
  }
}

TEST_F(DataFiles, ReadsAnyRange) {
  std::mt19937_64 random(11);
  std::vector<uint8_t> text(1000);
  for (auto& c : text) c = random();
  const TokenFile file(write("t.txt", text), "bytes", kByteVocab);
  const std::vector<int32_t> whole = all(file);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t begin = random() % file.count(), n = random() % (file.count() - begin + 1);
    std::vector<int32_t> part(n);
    file.read(begin, n, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin));
  }
}

TEST_F(DataFiles, OneIdOutsideTheVocabularyAnywhereIsFound) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 60; ++trial) {
    const int64_t n = 1 + random() % 20000, at = random() % n;
    const int64_t vocab = 2 + random() % 60000;
    std::vector<uint16_t> narrow(n);
    std::vector<uint32_t> wide(n);
    for (int64_t i = 0; i < n; ++i) wide[i] = narrow[i] = random() % vocab;
    narrow[at] = vocab;
    wide[at] = trial % 2 ? 0xffffffffu : static_cast<uint32_t>(vocab);
    const std::string id = std::to_string(wide[at]);
    expect_error(write("a.u16", narrow), "uint16", vocab,
                 {"token " + std::to_string(vocab) + " at byte " + std::to_string(at * 2),
                  "0 to " + std::to_string(vocab - 1)});
    expect_error(write("a.u32", wide), "uint32", vocab,
                 {"token " + id + " at byte " + std::to_string(at * 4)});
    expect_error(write_llmc("a.bin", narrow, kMagic, 1, n), "gpt2.bin", vocab,
                 {" at byte " + std::to_string(1024 + at * 2)});
  }
}

TEST_F(DataFiles, TheLargestIdsOfTheirTypesAreFine) {
  const std::vector<uint16_t> narrow(5000, 0xffff);
  EXPECT_EQ(all(TokenFile(write("a.u16", narrow), "uint16", 65536))[4999], 0xffff);
}

TEST_F(DataFiles, BadFiles) {
  const std::vector<uint16_t> ids(100, 5);
  expect_error(folder_ + "/absent", "bytes", 257, {"No such file"});
  expect_error(folder_, "bytes", 257, {"folder"});
  expect_error("/dev/zero", "bytes", 257, {"special file"});
  for (const char* tokenizer : {"bytes", "gpt2.bin", "uint16", "uint32"}) {
    expect_error(write("empty", nullptr, 0), tokenizer, 257, {"empty"});
  }
  expect_error(write("odd", "abc", 3), "uint16", 257, {"3 bytes", "byte 2"});
  expect_error(write("odd", "abcdef", 6), "uint32", 257, {"6 bytes", "byte 4"});
  expect_error(write("t.txt", "abc", 3), "bytes", 256, {"257", "256"});
  expect_error(write("t.txt", "abc", 3), "words", 257, {"words", "gpt2.bin"});
  expect_error(write_llmc("m.bin", ids, 1234, 1, 100), "gpt2.bin", 50257,
               {"1234", "byte 0", "20240520"});
  expect_error(write_llmc("v.bin", ids, kMagic, 2, 100), "gpt2.bin", 50257, {"version 2"});
  expect_error(write_llmc("c.bin", ids, kMagic, 1, -1), "gpt2.bin", 50257, {"-1"});
  expect_error(write_llmc("s.bin", ids, kMagic, 1, 100, 2), "gpt2.bin", 50257,
               {"truncated", "1222", "1224"});
  expect_error(write_llmc("s.bin", ids, kMagic, 1, 100, 1), "gpt2.bin", 50257, {"truncated"});
  expect_error(write_llmc("l.bin", ids, kMagic, 1, 99), "gpt2.bin", 50257, {"too long"});
  expect_error(write_llmc("h.bin", {}, kMagic, 1, 0, 100), "gpt2.bin", 50257, {"truncated"});
  expect_error(write("h.bin", "ab", 2), "gpt2.bin", 50257, {"truncated"});
  expect_error(write_llmc("b.bin", ids, kMagic, 1, 100), "bytes", 257, {"gpt2.bin"});
  expect_error(write_llmc("u.bin", ids, 20240801, 7, 100), "uint32", 1 << 30,
               {"not supported yet"});
}

TEST_F(DataFiles, MegatronIsNamed) {
  const std::string index = write("corpus.idx", "MMIDIDX\0\0", 9);
  const std::string data = write("corpus.bin", "abcd", 4);
  expect_error(index, "uint16", 50257, {"not supported yet", "Megatron"});
  expect_error(data, "uint16", 50257, {"not supported yet", "Megatron"});
}

}  // namespace
}  // namespace spillway
