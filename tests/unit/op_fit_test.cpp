// Times of ops → rates of a profile, and back.
// links: spillway_train
#include "train/op_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "graph/op_seconds.h"

namespace spillway {
namespace {

double predicted(const OpRate& rate, double flops, double bytes) {
  return rate.seconds + (rate.flops_per_second > 0 ? flops / rate.flops_per_second : 0) +
         (rate.bytes_per_second > 0 ? bytes / rate.bytes_per_second : 0);
}

std::mt19937_64 seeded() {
  const uint64_t seed = std::random_device{}();
  std::printf("seed %lu\n", seed);
  return std::mt19937_64(seed);
}

double drawn(std::mt19937_64& random, double from, double to) {
  return std::exp(std::uniform_real_distribution<double>(std::log(from), std::log(to))(random));
}

TEST(OpFit, FindsTheRatesThatMadeTheTimes) {
  std::mt19937_64 random = seeded();
  for (int round = 0; round < 200; ++round) {
    // Terms of one order of magnitude, one or two of them absent now and then.
    const int absent = static_cast<int>(random() % 7);
    const double seconds = absent & 1 ? 0 : drawn(random, 1e-6, 1e-4);
    const double flop_rate = absent & 2 ? 0 : drawn(random, 1e9, 1e11);
    const double byte_rate = absent & 4 ? 0 : drawn(random, 1e9, 1e11);
    const OpRate truth{"", false, seconds, flop_rate, byte_rate};
    std::vector<OpSample> samples;
    for (int i = 0; i < 12; ++i) {
      OpSample s{drawn(random, 1e4, 1e7), drawn(random, 1e4, 1e7), 0};
      s.seconds = predicted(truth, s.flops, s.bytes);
      samples.push_back(s);
    }
    const OpRate found = fit_op_rate(samples);
    for (const OpSample& s : samples)
      ASSERT_NEAR(predicted(found, s.flops, s.bytes) / s.seconds, 1, 1e-6) << "round " << round;
  }
}

TEST(OpFit, IsTheBestOfAllThatAreNotNegative) {
  std::mt19937_64 random = seeded();
  for (int round = 0; round < 100; ++round) {
    std::vector<OpSample> samples;
    for (int i = 0; i < 8; ++i)
      samples.push_back(
          {drawn(random, 1e4, 1e8), drawn(random, 1e4, 1e8), drawn(random, 1e-5, 1e-2)});
    const auto error = [&](const OpRate& rate) {
      double sum = 0;
      for (const OpSample& s : samples)
        sum += std::pow(predicted(rate, s.flops, s.bytes) / s.seconds - 1, 2);
      return sum;
    };
    const OpRate found = fit_op_rate(samples);
    EXPECT_GE(found.seconds, 0);
    const double least = error(found);
    for (int other = 0; other < 300; ++other) {
      OpRate rate = found;
      if (other % 2 == 0 || rate.seconds == 0) rate.seconds = drawn(random, 1e-7, 1e-3);
      if (other % 3 == 0 || rate.flops_per_second == 0)
        rate.flops_per_second = drawn(random, 1e7, 1e13);
      if (other % 5 == 0 || rate.bytes_per_second == 0)
        rate.bytes_per_second = drawn(random, 1e7, 1e13);
      ASSERT_GE(error(rate), least * (1 - 1e-9)) << "round " << round;
    }
  }
}

TEST(OpFit, TakesWhatSamplesCannotTellApart) {
  EXPECT_NEAR(predicted(fit_op_rate({{1e6, 2e6, 3e-4}}), 1e6, 2e6), 3e-4, 1e-12);
  EXPECT_NEAR(fit_op_rate({{0, 0, 2e-6}}).seconds, 2e-6, 1e-15);  // of an op that counts nothing
  // FLOPs and bytes in proportion.
  const OpRate rate = fit_op_rate({{1e6, 2e6, 1e-4}, {2e6, 4e6, 2e-4}, {4e6, 8e6, 4e-4}});
  EXPECT_NEAR(predicted(rate, 8e6, 16e6), 8e-4, 1e-9);
}

TEST(OpRates, AreWhatAnOpTakes) {
  HardwareProfile profile;
  profile.peak_f32 = profile.peak_bf16 = 1e12;
  profile.memory_bandwidth = 1e11;
  const std::vector<TensorType> in = {{Dtype::f32, Dims(1000)}, {Dtype::f32, Dims(1000)}};
  const Cost cost = op_def(OpKind::add).cost({}, in);
  ASSERT_GT(cost.bytes, 0);
  const double before = op_seconds(OpKind::add, {}, in, profile, false);
  profile.op_rates = {{"add", false, 1e-3, 0, 1e6}, {"gelu", false, 5, 0, 0}};
  check_op_rates(profile);
  EXPECT_NEAR(op_seconds(OpKind::add, {}, in, profile, false), 1e-3 + cost.bytes / 1e6, 1e-12);
  EXPECT_EQ(op_seconds(OpKind::add, {}, in, profile, true), before);  // f32 was measured alone
  profile.op_rates[1].op = "gleu";
  try {
    check_op_rates(profile);
    FAIL() << "an op that there is none of";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean \"gelu\""), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace spillway
