// Hardware profiles, memory limits of the machine, and the budgets that follow.
// links: spillway_config
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "config/hardware.h"
#include "config/json_text.h"

namespace spillway {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

class Folder {
 public:
  Folder()
      : path_((std::filesystem::temp_directory_path() /
               ("config_hardware_test_" + std::to_string(getpid())))
                  .string()) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

HardwareConfig named(const std::string& profile) {
  HardwareConfig config;
  config.profile = profile;
  return config;
}

TEST(Profile, ShippedProfilesLoad) {
  const HardwareProfile cpu = load_profile({});
  EXPECT_EQ(cpu.name, "cpu");
  EXPECT_EQ(cpu.kind, "cpu");
  EXPECT_EQ(cpu.device_bytes, 0);
  EXPECT_EQ(cpu.peak_f32, 4e11);
  EXPECT_EQ(cpu.memory_bandwidth, 26e9);
  const HardwareProfile h100 = load_profile(named("h100-80"));
  EXPECT_EQ(h100.kind, "cuda");
  EXPECT_EQ(h100.device_bytes, 80000000000);
  EXPECT_EQ(h100.reserve_bytes, 2 * kGiB);
  EXPECT_EQ(h100.gemm_workspace, 32 << 20);
  EXPECT_EQ(h100.devices_per_node, 8);
  EXPECT_EQ(h100.peak_bf16, 9.89e14);
}

// Every shipped profile loads, is a plausible machine, and says where each number is from.
TEST(Profile, EveryShippedProfileIsAPlausibleMachine) {
  const std::vector<std::string> names = preset_names("hardware");
  EXPECT_GE(names.size(), 6u);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const HardwareProfile p = load_profile(named(name));
    EXPECT_EQ(p.kind, name == "cpu" ? "cpu" : "cuda");
    EXPECT_GE(p.peak_bf16, p.peak_f32);
    EXPECT_GT(p.memory_bandwidth, p.h2d_bandwidth);
    EXPECT_GE(p.host_bandwidth, p.h2d_bandwidth);
    EXPECT_LT(p.reserve_bytes, p.kind == "cpu" ? 1 : p.device_bytes / 10);
    EXPECT_GT(p.gemm_fraction, p.attention_fraction);
    std::ifstream file(preset_path("hardware", name, "profile", "test"));
    const nlohmann::json profile = nlohmann::json::parse(file);
    for (const auto& [key, field] : profile.items()) {
      if (key == "description" || key == "kind") continue;
      EXPECT_GE(field.at("source").get<std::string>().size(), 10u) << key;
    }
  }
}

TEST(Profile, LinkAndDevicesOverride) {
  HardwareConfig config = named("h100-80");
  config.link = 2e9;
  config.devices_per_node = 4;
  const HardwareProfile profile = load_profile(config);
  EXPECT_EQ(profile.h2d_bandwidth, 2e9);
  EXPECT_EQ(profile.d2h_bandwidth, 2e9);
  EXPECT_EQ(profile.devices_per_node, 4);
}

std::string profile_error(const HardwareConfig& config) {
  try {
    load_profile(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    return error.what();
  }
  return "";
}

TEST(Profile, Errors) {
  const std::string unknown = profile_error(named("h100"));
  EXPECT_NE(unknown.find("hardware.profile: unknown name \"h100\""), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("did you mean \"h100-80\""), std::string::npos) << unknown;
  HardwareConfig cuda;
  cuda.backend = Backend::cuda;
  EXPECT_NE(profile_error(cuda).find("derived from the device"), std::string::npos);

  // One field spoiled at a time, in a folder of its own.
  const Json good = parse_json(
      read_json_file(std::string(SPILLWAY_SOURCE_DIR) + "/configs/hardware/cpu.json"), "cpu");
  Folder home;
  ASSERT_EQ(setenv("SPILLWAY_HOME", home.path().c_str(), 1), 0);
  EXPECT_EQ(config_root(), home.path());
  EXPECT_NE(profile_error(named("x")).find("SPILLWAY_HOME"), std::string::npos);
  home.write("configs/hardware/x.json", good.dump());
  EXPECT_EQ(profile_error(named("x")), "");
  const auto error_with = [&](const std::string& key, const Json& value) {
    Json bad = good;
    if (value.is_null()) {
      bad.erase(key);
    } else {
      bad[key] = value;
    }
    home.write("configs/hardware/x.json", bad.dump());
    return profile_error(named("x"));
  };
  const auto sourced = [](const Json& value) { return Json{{"value", value}, {"source", "test"}}; };
  int spoiled = 0;
  for (const auto& [key, value] : good.items()) {
    const std::string name = key;
    EXPECT_NE(error_with(name, nullptr).find(name + " is missing"), std::string::npos) << name;
    EXPECT_NE(error_with(name, true).find(name + ": expected"), std::string::npos) << name;
    if (!value.is_object()) continue;
    ++spoiled;
    EXPECT_NE(error_with(name, sourced(0)).find(name + ".value: expected"), std::string::npos)
        << name;
    EXPECT_NE(error_with(name, sourced(-1)).find(name + ".value: expected"), std::string::npos)
        << name;
    EXPECT_NE(error_with(name, sourced("fast")).find(name + ".value: expected"), std::string::npos)
        << name;
    EXPECT_NE(error_with(name, Json{{"value", value["value"]}}).find(name + ".source is missing"),
              std::string::npos)
        << name;
  }
  EXPECT_EQ(spoiled, 18);
  EXPECT_NE(error_with("gemm_fraction", sourced(1.5)).find("at most 1"), std::string::npos);
  EXPECT_NE(error_with("peak_f33", sourced(1)).find("did you mean \"peak_f32\""),
            std::string::npos);
  ASSERT_EQ(unsetenv("SPILLWAY_HOME"), 0);
}

TEST(MachineMemory, CgroupLimits) {
  Folder mount;
  EXPECT_EQ(cgroup_memory_limit("", mount.path()), INT64_MAX);
  // Version 2: the smallest of a group and its parents.
  mount.write("a/memory.max", "8589934592\n");
  mount.write("a/b/memory.max", "max\n");
  EXPECT_EQ(cgroup_memory_limit("0::/a/b\n", mount.path()), 8 * kGiB);
  mount.write("a/b/memory.max", "1073741824\n");
  EXPECT_EQ(cgroup_memory_limit("0::/a/b\n", mount.path()), kGiB);
  EXPECT_EQ(cgroup_memory_limit("0::/a\n", mount.path()), 8 * kGiB);
  // Inside a container the group's path may not exist: what is at the mount counts.
  EXPECT_EQ(cgroup_memory_limit("0::/elsewhere\n", mount.path()), INT64_MAX);
  mount.write("memory.max", "4294967296\n");
  EXPECT_EQ(cgroup_memory_limit("0::/elsewhere\n", mount.path()), 4 * kGiB);
  // Version 1, alone, among other controllers, and beside version 2.
  mount.write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  mount.write("memory/job/memory.limit_in_bytes", "2147483648\n");
  EXPECT_EQ(cgroup_memory_limit("4:memory:/job\n", mount.path()), 2 * kGiB);
  EXPECT_EQ(cgroup_memory_limit("9:name=systemd:/\n4:cpu,memory:/job/step\n", mount.path()),
            2 * kGiB);
  EXPECT_GT(cgroup_memory_limit("4:memory:/other\n", mount.path()), int64_t{1} << 60);
  EXPECT_EQ(cgroup_memory_limit("4:memory:/job\n0::/a/b\n", mount.path()), kGiB);
  EXPECT_EQ(cgroup_memory_limit("nonsense\n:\n", mount.path()), INT64_MAX);
}

TEST(MachineMemory, IsThatOfThisMachine) {
  const int64_t physical =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  EXPECT_GT(machine_memory_bytes(), 16 << 20);
  EXPECT_LE(machine_memory_bytes(), physical);
}

TEST(Budgets, DeviceOfItsOwn) {
  const HardwareProfile h100 = load_profile(named("h100-80"));
  const Budgets one = resolve_budgets({}, h100, 1), eight = resolve_budgets({}, h100, 8);
  EXPECT_LE(one.device, h100.device_bytes - h100.reserve_bytes);
  EXPECT_GT(one.device, h100.device_bytes - h100.reserve_bytes - 2 * (2 << 20));
  EXPECT_EQ(one.device, eight.device);
  EXPECT_NEAR(static_cast<double>(one.host), 8.0 * static_cast<double>(eight.host),
              16.0 * (2 << 20));
  EXPECT_LE(8 * eight.host, h100.host_bytes);
  MemoryConfig memory;
  memory.device = 3 * kGiB + 5;
  memory.host = 7;
  EXPECT_EQ(resolve_budgets(memory, h100, 8).device, 3 * kGiB + 5);  // exact, never rounded
  EXPECT_EQ(resolve_budgets(memory, h100, 8).host, 7);
}

TEST(Budgets, OneMemoryForBothTiers) {
  HardwareProfile cpu = load_profile({});
  cpu.host_bytes = 100 * kGiB;
  for (const int ranks : {1, 2, 3}) {
    const Budgets both = resolve_budgets({}, cpu, ranks);
    EXPECT_GT(both.device, both.host);
    EXPECT_GT(both.host, 0);
    EXPECT_LE(ranks * (both.device + both.host), cpu.host_bytes);
    MemoryConfig memory;
    memory.device = kGiB;
    const Budgets small = resolve_budgets(memory, cpu, ranks);
    EXPECT_EQ(small.device, kGiB);
    EXPECT_GT(small.host, both.host);
    EXPECT_LE(ranks * (small.device + small.host), cpu.host_bytes);
    memory = {};
    memory.host = kGiB;
    EXPECT_GT(resolve_budgets(memory, cpu, ranks).device, both.device);
    EXPECT_LE(ranks * (resolve_budgets(memory, cpu, ranks).device + kGiB), cpu.host_bytes);
  }
}

}  // namespace
}  // namespace spillway
