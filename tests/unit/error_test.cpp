// Errors are one line, whatever they quote.
// links: spillway_base
#include "base/error.h"

#include <gtest/gtest.h>

#include <string>

namespace spillway {
namespace {

TEST(Error, ReplacesLineBreaksByBlanks) {
  try {
    bad_input("{}: found \"{}\"", "a\nb.json", "\r\nx\n");
  } catch (const Error& e) {
    EXPECT_EQ(e.what(), std::string("a b.json: found \"  x \""));
    EXPECT_EQ(e.code(), ExitCode::bad_input);
    return;
  }
  FAIL() << "bad_input threw nothing";
}

TEST(Error, KeepsEveryOtherByte) {
  const std::string text = "key \"größe\":\ttab, 2 × 3";
  EXPECT_EQ(Error(ExitCode::internal, text).what(), text);
}

}  // namespace
}  // namespace spillway
