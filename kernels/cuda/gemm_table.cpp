#include "kernels/cuda/gemm_table.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace spillway::cuda {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kWordDigits = 16;

std::string hex_of(const GemmAlgorithm& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm) text += fmt::format("{:016x}", word);
  return text;
}

GemmAlgorithm algorithm_of(const std::string& hex) {
  GemmAlgorithm algorithm{};
  if (hex.size() != algorithm.size() * kWordDigits)
    throw std::runtime_error(fmt::format("an algorithm has {} hex digits instead of {}", hex.size(),
                                         algorithm.size() * kWordDigits));
  for (size_t i = 0; i < algorithm.size(); ++i) {
    const char* begin = hex.data() + i * kWordDigits;
    const auto [end, error] = std::from_chars(begin, begin + kWordDigits, algorithm[i], 16);
    if (error != std::errc() || end != begin + kWordDigits)
      throw std::runtime_error("an algorithm is not written in hex digits");
  }
  return algorithm;
}

Dtype dtype_of(const std::string& name) {
  for (const Dtype t : {Dtype::f32, Dtype::bf16})
    if (name == name_of(t)) return t;
  throw std::runtime_error(fmt::format("no GEMM has the dtype \"{}\"", name));
}

bool transposed_of(const std::string& letter) {
  if (letter != "n" && letter != "t")
    throw std::runtime_error(fmt::format("\"{}\" instead of \"n\" or \"t\"", letter));
  return letter == "t";
}

int64_t positive(const Json& json, const char* key) {
  const auto value = json.at(key).get<int64_t>();
  if (value <= 0) throw std::runtime_error(fmt::format("{} is {}", key, value));
  return value;
}

}  // namespace

std::string describe(const GemmKey& key) {
  const auto factor = [](const char* name, int64_t rows, int64_t columns, bool transposed) {
    return transposed ? fmt::format("{}[{},{}]ᵀ", name, columns, rows)
                      : fmt::format("{}[{},{}]", name, rows, columns);
  };
  return fmt::format("c[{},{}] {} = {}·{} {}{}, {}-byte aligned", key.m, key.n,
                     name_of(key.c_dtype), factor("a", key.m, key.k, key.a_transposed),
                     factor("b", key.k, key.n, key.b_transposed), name_of(key.dtype),
                     key.bias ? " + bias" : "", key.alignment);
}

std::string to_json_text(const GemmTable& table) {
  Json list = Json::array();
  for (const auto& [key, algorithm] : table.algorithms)
    list.push_back({{"m", key.m},
                    {"n", key.n},
                    {"k", key.k},
                    {"a", key.a_transposed ? "t" : "n"},
                    {"b", key.b_transposed ? "t" : "n"},
                    {"in", name_of(key.dtype)},
                    {"out", name_of(key.c_dtype)},
                    {"bias", key.bias},
                    {"alignment", key.alignment},
                    {"algorithm", hex_of(algorithm)}});
  const Json json = {{"library", table.library},
                     {"device", table.device},
                     {"workspace", table.workspace},
                     {"algorithms", std::move(list)}};
  return json.dump();
}

GemmTable parse_gemm_table(const std::string& text, const std::string& origin) {
  try {
    const Json json = Json::parse(text);
    GemmTable table;
    table.library = json.at("library").get<uint64_t>();
    table.device = json.at("device").get<std::string>();
    table.workspace = json.at("workspace").get<int64_t>();
    for (const Json& entry : json.at("algorithms")) {
      GemmKey key;
      key.m = positive(entry, "m");
      key.n = positive(entry, "n");
      key.k = positive(entry, "k");
      key.a_transposed = transposed_of(entry.at("a").get<std::string>());
      key.b_transposed = transposed_of(entry.at("b").get<std::string>());
      key.dtype = dtype_of(entry.at("in").get<std::string>());
      key.c_dtype = dtype_of(entry.at("out").get<std::string>());
      key.bias = entry.at("bias").get<bool>();
      key.alignment = static_cast<int32_t>(positive(entry, "alignment"));
      const auto algorithm = algorithm_of(entry.at("algorithm").get<std::string>());
      if (!table.algorithms.emplace(key, algorithm).second)
        throw std::runtime_error(fmt::format("{} is there twice", describe(key)));
    }
    return table;
  } catch (const std::exception& e) {
    bad_input(
        "{}: the table of GEMM algorithms cannot be read: {}; remove the table to have them chosen "
        "anew",
        origin, e.what());
  }
}

std::string why_not_usable(const GemmTable& stored, const GemmTable& own) {
  if (stored.library != own.library)
    return fmt::format("cuBLASLt {} chose them and this is {}", stored.library, own.library);
  if (stored.device != own.device)
    return fmt::format("they are for \"{}\" and this is \"{}\"", stored.device, own.device);
  if (stored.workspace != own.workspace)
    return fmt::format("they may use {} bytes of workspace and the plan has {} (gemm_workspace)",
                       stored.workspace, own.workspace);
  return "";
}

}  // namespace spillway::cuda
