#include "config/hardware.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "config/schema.h"
#include "config/values.h"

namespace spillway {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int64_t kHugePage = int64_t{2} << 20;

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return file ? text.str() : std::string();
}

// The number in a limit file; kNoLimit for "max", v1's huge "none", or no such file.
int64_t limit_in(const std::string& path) {
  const std::string text = text_of_file(path);
  int64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  return error == std::errc() && end != text.data() && bytes > 0 ? bytes : kNoLimit;
}

// The limit of `group` and all its parents in one hierarchy.
int64_t limit_upward(const std::string& hierarchy, std::string group, const char* file) {
  int64_t limit = limit_in(hierarchy + "/" + file);
  while (group.size() > 1) {
    limit = std::min(limit, limit_in(hierarchy + group + "/" + file));
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  return limit;
}

int64_t rounded_down(double bytes) { return static_cast<int64_t>(bytes) / kHugePage * kHugePage; }

}  // namespace

int64_t cgroup_memory_limit(const std::string& proc_cgroup, const std::string& mount) {
  int64_t limit = kNoLimit;
  std::istringstream lines(proc_cgroup);
  // One line a hierarchy: "number:controllers:/group"; version 2 has number 0 and no controllers.
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      limit = std::min(limit, limit_upward(mount, group, "memory.max"));
      limit = std::min(limit, limit_upward(mount + "/unified", group, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      limit = std::min(limit, limit_upward(mount + "/memory", group, "memory.limit_in_bytes"));
    }
  }
  return limit;
}

int64_t machine_memory_bytes() {
  const int64_t physical =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  return std::min(physical,
                  cgroup_memory_limit(text_of_file("/proc/self/cgroup"), "/sys/fs/cgroup"));
}

std::string config_root() {
  const char* home = std::getenv("SPILLWAY_HOME");
  return home && *home ? home : SPILLWAY_SOURCE_DIR;
}

std::vector<std::string> preset_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  const std::filesystem::path path = std::filesystem::path(config_root()) / "configs" / folder;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string preset_path(const std::string& folder, const std::string& name, const std::string& key,
                        const std::string& origin) {
  const std::vector<std::string> names = preset_names(folder);
  const std::string path = config_root() + "/configs/" + folder;
  if (names.empty()) {
    bad_input("{}{}: {} holds no JSON files; SPILLWAY_HOME names the folder that holds configs/",
              origin.empty() ? "" : origin + ": ", key, path);
  }
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    std::string all;
    for (const std::string& known : names) all += (all.empty() ? "" : ", ") + known;
    bad_input("{}{}: unknown name {}; did you mean \"{}\"? {} holds {}",
              origin.empty() ? "" : origin + ": ", key, in_quotes(name),
              nearest(name.substr(0, 64), names), path, all);
  }
  return path + "/" + name + ".json";
}

void set_link(HardwareProfile& profile, double rate) {
  profile.h2d_bandwidth = profile.d2h_bandwidth = rate;
  profile.h2d_alone_bandwidth = profile.d2h_alone_bandwidth = rate;
  profile.both_ways_bandwidth = 2 * rate;
  profile.uplink_bandwidth = rate * profile.devices_per_uplink;
}

double gemm_fraction(const HardwareProfile& profile, bool bf16, double smallest) {
  const std::vector<SizeShare>& table = bf16 ? profile.gemm_bf16_shares : profile.gemm_f32_shares;
  double share = 1;
  if (!table.empty() && smallest > 0) {
    const auto above = std::find_if(table.begin(), table.end(),
                                    [&](const SizeShare& s) { return s.size >= smallest; });
    if (above == table.end()) {
      share = table.back().share;
    } else if (above == table.begin()) {
      share = above->share * smallest / above->size;
    } else {
      const SizeShare& below = *(above - 1);
      const double part = std::log(smallest / below.size) / std::log(above->size / below.size);
      share = below.share + part * (above->share - below.share);
    }
  } else if (!table.empty()) {
    share = table.back().share;
  }
  return std::min(1.0, share * profile.gemm_fraction);
}

namespace {

void check_ascending(const std::vector<SizeShare>& shares, const char* key,
                     const std::string& path) {
  for (size_t i = 1; i < shares.size(); ++i)
    if (shares[i].size <= shares[i - 1].size)
      bad_input("{}: {}.value[{}]: size {} follows size {}; expected ascending sizes", path, key, i,
                shares[i].size, shares[i - 1].size);
}

// A table that need not be there: the key is left out.
bool says_nothing(const Json& value) { return value.is_array() && value.empty(); }

bool before(const OpRate& a, const OpRate& b) {
  return std::pair(a.op, a.bf16) < std::pair(b.op, b.bf16);
}

void sort_op_rates(std::vector<OpRate>& rates, const std::string& path) {
  std::sort(rates.begin(), rates.end(), before);
  for (size_t i = 1; i < rates.size(); ++i)
    if (!before(rates[i - 1], rates[i]))
      bad_input("{}: op_rates.value: \"{}\" in {} is there twice; expected each once", path,
                rates[i].op, rates[i].bf16 ? "bf16" : "f32");
}

FurtherTier further_tier(const Json& json) {
  FurtherTier tier;
  tier.name = json.at("name").get<std::string>();
  tier.source = json.at("source").get<std::string>();
  tier.bytes = parse_bytes(json.at("bytes").get<std::string>(), "bytes");
  tier.read_bandwidth = parse_rate(json.at("read_bandwidth").get<std::string>(), "rate");
  tier.write_bandwidth = parse_rate(json.at("write_bandwidth").get<std::string>(), "rate");
  return tier;
}

}  // namespace

HardwareProfile load_profile(const HardwareConfig& config) {
  std::string name = config.profile;
  if (name == "auto") {
    if (config.backend == Backend::cuda) {
      bad_input(
          "hardware.profile: \"auto\" with hardware.backend \"cuda\" is derived from the device "
          "when "
          "training starts; without one, name a profile of configs/hardware/");
    }
    name = "cpu";
  }
  const bool file = std::filesystem::path(name).extension() == ".json";
  const std::string path = file ? name : preset_path("hardware", name, "hardware.profile", "");
  if (std::error_code error; file && !std::filesystem::is_regular_file(path, error))
    bad_input(
        "hardware.profile: there is no file {}; expected the path of a profile (train calibrate "
        "writes one) or a name: {}",
        in_quotes(path), fmt::join(preset_names("hardware"), ", "));
  const Json json = parse_json(read_json_file(path), path);
  check_json(json, profile_schema(), "", path, true);
  HardwareProfile profile;
  profile.name = file ? std::filesystem::path(name).stem().string() : name;
  for_each_profile_field(profile, [&](const std::string& key, auto&& field) {
    const auto found = json.find(key);
    if (found == json.end()) return;  // the schema does not ask for it
    const Json& entry = *found;
    read_value(entry.is_object() ? entry.at("value") : entry, field);
  });
  check_ascending(profile.gemm_f32_shares, "gemm_f32_shares", path);
  check_ascending(profile.gemm_bf16_shares, "gemm_bf16_shares", path);
  sort_op_rates(profile.op_rates, path);
  if (json.contains("tiers"))
    for (const Json& tier : json.at("tiers")) profile.tiers.push_back(further_tier(tier));
  if (config.devices_per_node > 0) {
    profile.devices_per_node = static_cast<int>(config.devices_per_node);
  }
  if (config.link > 0) set_link(profile, config.link);
  return profile;
}

std::string profile_json(const HardwareProfile& profile, const std::string& description,
                         const std::map<std::string, std::string>& sources,
                         const std::string& other_source) {
  Json json = Json::object();
  json["description"] = description;
  for_each_profile_field(profile, [&](const std::string& key, auto&& field) {
    const Json value = value_json(field);
    if (key == "kind") {
      json[key] = value;
      return;
    }
    if (says_nothing(value)) return;
    const auto source = sources.find(key);
    json[key] = {{"value", value},
                 {"source", source == sources.end() ? other_source : source->second}};
  });
  return json.dump(2) + "\n";
}

KeyValues profile_values(const HardwareProfile& profile) {
  KeyValues values;
  for_each_profile_field(profile, [&](const std::string& key, auto&& field) {
    const Json value = value_json(field);
    if (!says_nothing(value)) values.emplace_back(key, value.dump());
  });
  return values;
}

Budgets resolve_budgets(const MemoryConfig& memory, const HardwareProfile& profile,
                        int ranks_on_node) {
  // A part stays for the system, the binary, MPI and the page cache of the data.
  const double host_total =
      static_cast<double>(profile.host_bytes > 0 ? profile.host_bytes : machine_memory_bytes());
  const double share = 0.8 * host_total / std::max(1, ranks_on_node);
  Budgets budgets{memory.device, memory.host};
  if (profile.device_bytes > 0) {
    if (memory.device < 0) {
      budgets.device =
          rounded_down(static_cast<double>(profile.device_bytes - profile.reserve_bytes));
    }
    if (memory.host < 0) budgets.host = rounded_down(share);
    return budgets;
  }
  // One memory for both tiers: what one is given explicitly, the other does not get by default.
  if (memory.device < 0) {
    const double left = memory.host < 0 ? 0.75 * share : share - static_cast<double>(memory.host);
    budgets.device = rounded_down(std::max(left, share / 8));
  }
  if (memory.host < 0) {
    budgets.host = rounded_down(std::max(share - static_cast<double>(budgets.device), share / 8));
  }
  return budgets;
}

}  // namespace spillway
