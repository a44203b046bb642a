// Metrics lines parse whatever the values, and floats survive the round trip.
// links: spillway_telemetry
#include "telemetry/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

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

}  // namespace
}  // namespace spillway
