// Metrics lines parse whatever the values, and floats survive the round trip.
// links: spillway_telemetry
#include "telemetry/metrics.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace spillway {
namespace {

TEST(Metrics, WhatIsNotFiniteIsNull) {
  StepMetrics m;
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity()}) {
    m.loss = m.grad_norm = value;
    m.validation_loss = value;
    const auto row = nlohmann::json::parse(to_json_line(m));
    EXPECT_TRUE(row["loss"].is_null());
    EXPECT_TRUE(row["grad_norm"].is_null());
    EXPECT_TRUE(row["validation_loss"].is_null());
  }
}

TEST(Metrics, FloatsRoundTrip) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 rng(seed);
  for (int i = 0; i < 1000; ++i) {
    StepMetrics m;
    m.loss = std::ldexp(static_cast<double>(rng()), static_cast<int>(rng() % 400) - 250);
    m.step_seconds = std::ldexp(static_cast<double>(rng()), -70);
    const auto row = nlohmann::json::parse(to_json_line(m));
    EXPECT_EQ(row["loss"].get<double>(), m.loss);
    EXPECT_EQ(row["step_seconds"].get<double>(), m.step_seconds);
  }
}

TEST(Metrics, AllKeysOfALine) {
  StepMetrics m;
  m.token_hash = "00ff";
  const std::string line = to_json_line(m);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto row = nlohmann::json::parse(line);
  for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_second", "mfu",
                          "device_peak_bytes", "host_peak_bytes", "exposed_transfer_seconds",
                          "step_seconds", "token_hash"})
    EXPECT_TRUE(row.contains(key)) << key;
}

// The kernel refuses to let the file grow, then it does not any more: no row is lost or in part.
TEST(Metrics, RowsThatCannotBeWrittenWait) {
  std::string path = "/tmp/spillway_metrics_XXXXXX";
  close(mkstemp(path.data()));
  std::ofstream(path) << "{\"step\": 0}\n{\"step\": 1, \"lo";  // where a machine stopped
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old = {};
  getrlimit(RLIMIT_FSIZE, &old);
  std::vector<std::string> said;
  {
    MetricsFile file(path);
    for (int64_t step = 1; step <= 30; ++step) {
      if (step == 5 || step == 20) {
        rlimit small = old;
        small.rlim_cur = std::filesystem::file_size(path) + 100 + static_cast<uint64_t>(step);
        setrlimit(RLIMIT_FSIZE, &small);
      }
      if (step == 12 || step == 25) setrlimit(RLIMIT_FSIZE, &old);
      StepMetrics m;
      m.step = step;
      if (const std::string why = file.append(m); !why.empty()) said.push_back(why);
    }
  }
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, before);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_NE(said[0].find(path), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("File too large"), std::string::npos) << said[0];
  std::ifstream in(path);
  int64_t step = 0;
  for (std::string line; std::getline(in, line); ++step)
    EXPECT_EQ(nlohmann::json::parse(line)["step"].get<int64_t>(), step);
  EXPECT_EQ(step, 31);
  std::filesystem::remove(path);
}

// /dev/full takes no byte: the first row says why, later ones wait quietly, and what is lost at the
// end is named.
TEST(Metrics, RowsThatAFullDiskKeepsOutAreNamedAtTheEnd) {
  testing::internal::CaptureStderr();
  {
    MetricsFile file("/dev/full");
    EXPECT_NE(file.append({}).find("/dev/full: cannot be written: No space left"),
              std::string::npos);
    EXPECT_EQ(file.append({}), "");
    EXPECT_EQ(file.append({}), "");
  }
  EXPECT_NE(testing::internal::GetCapturedStderr().find("/dev/full: the last 3 rows are lost"),
            std::string::npos);
}

}  // namespace
}  // namespace spillway
