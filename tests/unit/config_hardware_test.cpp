// Hardware profiles, memory limits of the machine, and the budgets that follow.
// links: spillway_config
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "base/error.h"
#include "config/hardware.h"
#include "config/json_text.h"
#include "config/resources.h"

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
    EXPECT_GT(p.attention_fraction, p.attention_backward_fraction);
    EXPECT_GE(p.h2d_alone_bandwidth, p.h2d_bandwidth);
    EXPECT_GE(p.d2h_alone_bandwidth, p.d2h_bandwidth);
    EXPECT_LE(p.both_ways_bandwidth, p.h2d_alone_bandwidth + p.d2h_alone_bandwidth);
    EXPECT_LT(p.cpu_update_bandwidth, p.host_bandwidth);
    for (const bool bf16 : {false, true})
      EXPECT_LT(gemm_fraction(p, bf16, 64), gemm_fraction(p, bf16, 4096));
    for (const FurtherTier& tier : p.tiers) EXPECT_GT(tier.bytes, p.host_bytes) << tier.name;
    std::ifstream file(preset_path("hardware", name, "profile", "test"));
    const nlohmann::json profile = nlohmann::json::parse(file);
    for (const auto& [key, field] : profile.items()) {
      if (key == "description" || key == "kind" || key == "tiers") continue;
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
  // Whatever the other devices do: eight of them get the same as one.
  for (const int ranks : {1, 8}) {
    const auto resources = shared_resources(profile, ranks);
    EXPECT_EQ(rate_alone(resources, Traffic::h2d), 2e9);
    EXPECT_EQ(rate_alone(resources, Traffic::d2h), 2e9);
  }
}

const SharedResource& resource(const std::vector<SharedResource>& all, const std::string& name) {
  for (const SharedResource& r : all)
    if (r.name == name) return r;
  throw std::runtime_error(name);
}

// A DGX A100: two devices share 25 GB/s of a switch; alone, one gets 24.
TEST(Resources, DevicesShareSwitchesAndHostMemory) {
  const HardwareProfile p = load_profile(named("a100-80"));
  const auto one = shared_resources(p, 1), two = shared_resources(p, 2),
             all = shared_resources(p, 8);
  EXPECT_EQ(rate_alone(one, Traffic::h2d), 24e9);
  for (const auto& shared : {two, all})
    for (const Traffic way : {Traffic::h2d, Traffic::d2h})
      EXPECT_EQ(rate_alone(shared, way), 12.5e9);
  EXPECT_EQ(rate_alone(all, Traffic::network), 25e9);
  EXPECT_EQ(rate_alone(all, Traffic::intra_node), 300e9);
  EXPECT_EQ(rate_alone(all, Traffic::cpu_update), p.cpu_update_bandwidth / 8);
  const SharedResource& memory = resource(all, "host memory");
  EXPECT_EQ(memory.bytes_per_second, p.host_bandwidth / 8);
  EXPECT_EQ(memory.of(Traffic::h2d) + memory.of(Traffic::d2h), 2);
  EXPECT_EQ(memory.of(Traffic::cpu_update), 1);
  EXPECT_EQ(memory.of(Traffic::network), 0);
  EXPECT_EQ(resource(all, "link, both ways").of(Traffic::network), 0);
}

TEST(Resources, MessagesMayPassTheLinkAndTheHost) {
  HardwareProfile p = load_profile(named("a100-80"));
  p.network_path = MessagePath::link;
  auto all = shared_resources(p, 8);
  EXPECT_EQ(resource(all, "link to the device").of(Traffic::network), 1);
  EXPECT_EQ(resource(all, "link, both ways").of(Traffic::network), 2);
  EXPECT_EQ(resource(all, "uplink to the switch's devices").of(Traffic::network), 0);
  EXPECT_EQ(rate_alone(all, Traffic::network), p.both_ways_bandwidth / 2);
  p.network_path = MessagePath::host;
  all = shared_resources(p, 8);
  EXPECT_EQ(resource(all, "uplink to the switch's devices").of(Traffic::network), 1);
  EXPECT_EQ(resource(all, "host memory").of(Traffic::network), 2);
  EXPECT_EQ(rate_alone(all, Traffic::network), 12.5e9);
  // A CPU backend's copies and messages read and write the memory that all ranks share.
  const auto cpu = shared_resources(load_profile({}), 2);
  EXPECT_EQ(resource(cpu, "host memory").bytes_per_second, 13e9);
  EXPECT_EQ(rate_alone(cpu, Traffic::h2d), 6.5e9);
  EXPECT_EQ(rate_alone(cpu, Traffic::intra_node), 13e9 / 4);
}

TEST(Resources, ARateThatIsNotAboveZeroIsNamed) {
  for (const double rate : {0.0, -1.0}) {
    HardwareProfile p = load_profile(named("a100-80"));
    p.uplink_bandwidth = rate;
    try {
      shared_resources(p, 8);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input);
      EXPECT_NE(std::string(error.what()).find("uplink_bandwidth is"), std::string::npos)
          << error.what();
    }
  }
}

TEST(Profile, GemmsOfSmallExtentsSustainLess) {
  HardwareProfile p;
  p.gemm_fraction = 0.8;
  EXPECT_EQ(gemm_fraction(p, true, 16), 0.8);  // no table: one fraction
  p.gemm_bf16_shares = {{64, 0.25}, {256, 0.75}, {1024, 1.5}};
  EXPECT_EQ(gemm_fraction(p, false, 16), 0.8);
  EXPECT_DOUBLE_EQ(gemm_fraction(p, true, 64), 0.2);
  EXPECT_DOUBLE_EQ(gemm_fraction(p, true, 32), 0.1);
  EXPECT_DOUBLE_EQ(gemm_fraction(p, true, 128), 0.4);  // half-way in log(size)
  EXPECT_DOUBLE_EQ(gemm_fraction(p, true, 256), 0.6);
  EXPECT_DOUBLE_EQ(gemm_fraction(p, true, 4096), 1);  // never above the peak
  EXPECT_DOUBLE_EQ(gemm_fraction(p, true, 0), 1);
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
  const KeyValues without_rates = profile_values(load_profile(named("x")));
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
  EXPECT_EQ(spoiled, 31);
  EXPECT_NE(error_with("gemm_fraction", sourced(1.5)).find("at most 1"), std::string::npos);
  EXPECT_NE(error_with("uplink_bandwidth", sourced("0GB/s")).find("uplink_bandwidth.value"),
            std::string::npos);
  EXPECT_NE(error_with("gemm_f32_shares", sourced(Json{{64, 0.5}, {32, 1}}))
                .find("gemm_f32_shares.value[1]: size 32 follows size 64"),
            std::string::npos);
  const Json gelu = {
      {"op", "gelu"}, {"precision", "f32"}, {"seconds", 1e-6}, {"bytes_per_second", 2e9}};
  EXPECT_EQ(error_with("op_rates", sourced(Json::array())), "");
  EXPECT_EQ(profile_values(load_profile(named("x"))), without_rates);
  EXPECT_EQ(error_with("op_rates", sourced(Json::array({gelu}))), "");
  const HardwareProfile measured = load_profile(named("x"));
  ASSERT_EQ(measured.op_rates.size(), 1u);
  EXPECT_EQ(measured.op_rates[0].op, "gelu");
  EXPECT_EQ(measured.op_rates[0].bytes_per_second, 2e9);
  EXPECT_EQ(measured.op_rates[0].flops_per_second, 0);
  EXPECT_NE(profile_values(measured), without_rates);  // a plan for one is not a plan for the other
  EXPECT_NE(error_with("op_rates", sourced(Json::array({gelu, gelu}))).find("expected each once"),
            std::string::npos);
  for (const char* key : {"op", "precision", "seconds"}) {
    Json bad = gelu;
    bad.erase(key);
    EXPECT_NE(
        error_with("op_rates", sourced(Json::array({bad}))).find(std::string(key) + " is missing"),
        std::string::npos)
        << key;
    bad[key] = -1;
    EXPECT_NE(error_with("op_rates", sourced(Json::array({bad}))).find(key), std::string::npos)
        << key;
  }
  EXPECT_NE(error_with("network_path", sourced("hots")).find("did you mean \"host\""),
            std::string::npos);
  const Json tier = {{"name", "nvme"},
                     {"bytes", "2TB"},
                     {"read_bandwidth", "7GB/s"},
                     {"write_bandwidth", "5GB/s"},
                     {"source", "test"}};
  EXPECT_EQ(error_with("tiers", Json::array({tier})), "");
  ASSERT_EQ(load_profile(named("x")).tiers.size(), 1u);
  EXPECT_EQ(load_profile(named("x")).tiers[0].write_bandwidth, 5e9);
  for (const auto& [key, value] : tier.items()) {
    Json bad = tier;
    bad.erase(key);
    EXPECT_NE(error_with("tiers", Json::array({bad})).find("tiers[0]." + key + " is missing"),
              std::string::npos);
  }
  Json slow = tier;
  slow["read_bandwidth"] = "0B/s";
  EXPECT_NE(error_with("tiers", Json::array({slow})).find("tiers[0].read_bandwidth"),
            std::string::npos);
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
