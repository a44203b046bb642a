#include "config/json_text.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"

namespace spillway {
namespace {

constexpr size_t kMaxDepth = 64;    // values are copied and destroyed recursively
constexpr size_t kMaxKeys = 65536;  // of one object
constexpr size_t kShownBytes = 80;

// Cuts before a byte that starts a character, so that the line stays UTF-8.
std::string shortened(std::string text) {
  if (text.size() <= kShownBytes) return text;
  size_t end = kShownBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

class TreeBuilder : public nlohmann::json_sax<Json> {
 public:
  TreeBuilder(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    Level& level = levels_.back();
    level.key = name;
    if (!level.seen.insert(name).second) {
      bad_input("{}: duplicate key {}: it may be there only once", origin_, in_quotes(path()));
    }
    if (level.seen.size() > kMaxKeys) {
      bad_input("{}: {} has more than {} keys", origin_,
                levels_.size() == 1 ? "the top level" : in_quotes(path()), kMaxKeys);
    }
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception& error) override {
    if (text_.find_first_not_of(" \t\r\n") == std::string_view::npos) {
      bad_input("{}: not a JSON document: it is empty", origin_);
    }
    // `position` counts the bytes read, the offending one included.
    const size_t offset = std::min(position == 0 ? 0 : position - 1, text_.size());
    std::string reason = error.what();
    if (const size_t dash = reason.find(" - "); dash != std::string::npos) {
      reason.erase(0, dash + 3);
    } else if (const size_t end = reason.find("] "); end != std::string::npos) {
      reason.erase(0, end + 2);
    }
    // The last part of the reason quotes the user's text and may be long.
    const Json line = shortened(std::move(reason));
    const std::string escaped = line.dump(-1, ' ', false, Json::error_handler_t::replace);
    bad_input("{}: not a JSON document at byte {}: {}", origin_, offset,
              escaped.substr(1, escaped.size() - 2));
  }

  Json take() { return std::move(root_); }

 private:
  struct Level {
    Json value;
    std::string key;  // object: of the value being read
    std::set<std::string> seen;
  };

  std::string path() const {
    std::string result;
    for (const Level& level : levels_) {
      if (level.value.is_array()) {
        result += "[" + std::to_string(level.value.size()) + "]";
      } else {
        result += (result.empty() ? "" : ".") + level.key;
      }
    }
    return result;
  }

  bool add(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Level& level = levels_.back();
    if (level.value.is_array()) {
      level.value.push_back(std::move(value));
    } else {
      // Known to be new: skips the search that operator[] of an ordered object makes.
      level.value.get_ref<Json::object_t&>().push_back({level.key, std::move(value)});
    }
    return true;
  }

  bool open(Json container) {
    if (levels_.size() == kMaxDepth) {
      bad_input("{}: {} is nested more than {} levels deep", origin_, in_quotes(path()), kMaxDepth);
    }
    levels_.push_back({std::move(container), {}, {}});
    return true;
  }

  bool close() {
    Json value = std::move(levels_.back().value);
    levels_.pop_back();
    return add(std::move(value));
  }

  std::string_view text_;
  const std::string& origin_;
  Json root_;
  std::vector<Level> levels_;
};

}  // namespace

std::string read_json_file(const std::string& path) {
  struct stat status;
  if (path.find('\0') != std::string::npos || stat(path.c_str(), &status) != 0) {
    bad_input("{}: cannot be read: {}", in_quotes(path), std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    bad_input("{}: expected a JSON file, found {}", in_quotes(path),
              S_ISDIR(status.st_mode) ? "a folder" : "no regular file");
  }
  if (status.st_size > kMaxJsonBytes) {
    bad_input("{}: {} bytes, more than the {} bytes (16 MiB) that a JSON file may have; not read",
              path, static_cast<int64_t>(status.st_size), kMaxJsonBytes);
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(status.st_size), '\0');
  if (!file || !file.read(text.data(), status.st_size)) {
    bad_input("{}: cannot be read: {}", path, std::strerror(errno));
  }
  return text;
}

Json parse_json(std::string_view text, const std::string& origin) {
  if (static_cast<int64_t>(text.size()) > kMaxJsonBytes) {
    bad_input("{}: {} bytes, more than the {} bytes (16 MiB) that JSON may have", origin,
              text.size(), kMaxJsonBytes);
  }
  TreeBuilder builder(text, origin);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string shown(const Json& value) {
  if (value.is_object() && value.size() > 8) {
    return "an object of " + std::to_string(value.size()) + " keys";
  }
  if (value.is_array() && value.size() > 8) {
    return "an array of " + std::to_string(value.size()) + " values";
  }
  return shortened(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string in_quotes(std::string_view word) {
  return shortened(Json(std::string(word)).dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string alternatives(const Json& values) {
  std::string text;
  for (size_t i = 0; i < values.size(); ++i)
    text += (i == 0 ? "" : i + 1 == values.size() ? " or " : ", ") + values[i].dump();
  return text;
}

bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(Json(text).dump());
    return true;
  } catch (const Json::type_error&) {  // the library's only check
    return false;
  }
}

}  // namespace spillway
