// Learning rate schedules at their first, middle and last step, against formulas written out here.
// links: spillway_train
#include "train/learning_rate.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

OptimizerConfig config(LrSchedule schedule) {
  OptimizerConfig o;
  o.schedule = schedule;
  o.lr = 1e-3;
  o.min_lr = 1e-4;
  o.warmup = 10;
  o.decay = 20;
  return o;
}

TEST(LearningRate, WarmUpIsLinearAndEndsAtTheFullRate) {
  for (const auto schedule :
       {LrSchedule::cosine, LrSchedule::linear, LrSchedule::constant, LrSchedule::wsd}) {
    EXPECT_DOUBLE_EQ(learning_rate(config(schedule), 1, 110), 1e-4);
    EXPECT_DOUBLE_EQ(learning_rate(config(schedule), 5, 110), 5e-4);
    EXPECT_DOUBLE_EQ(learning_rate(config(schedule), 10, 110), 1e-3);
  }
}

TEST(LearningRate, MiddleAndLastStep) {
  EXPECT_NEAR(learning_rate(config(LrSchedule::cosine), 60, 110), (1e-3 + 1e-4) / 2, 1e-12);
  EXPECT_NEAR(learning_rate(config(LrSchedule::cosine), 110, 110), 1e-4, 1e-15);
  EXPECT_NEAR(learning_rate(config(LrSchedule::linear), 60, 110), (1e-3 + 1e-4) / 2, 1e-12);
  EXPECT_NEAR(learning_rate(config(LrSchedule::linear), 110, 110), 1e-4, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(config(LrSchedule::constant), 110, 110), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(config(LrSchedule::wsd), 90, 110), 1e-3);
  EXPECT_NEAR(learning_rate(config(LrSchedule::wsd), 100, 110), (1e-3 + 1e-4) / 2, 1e-12);
  EXPECT_NEAR(learning_rate(config(LrSchedule::wsd), 110, 110), 1e-4, 1e-15);
}

TEST(LearningRate, NeverRisesAfterWarmUp) {
  for (const auto schedule :
       {LrSchedule::cosine, LrSchedule::linear, LrSchedule::constant, LrSchedule::wsd})
    for (int64_t step = 11; step <= 110; ++step)
      EXPECT_LE(learning_rate(config(schedule), step, 110),
                learning_rate(config(schedule), step - 1, 110));
}

TEST(LearningRate, WithoutWarmUpAndAllWarmUp) {
  OptimizerConfig o = config(LrSchedule::cosine);
  o.warmup = 0;
  EXPECT_NEAR(learning_rate(o, 100, 100), 1e-4, 1e-15);
  EXPECT_LT(learning_rate(o, 1, 100), 1e-3);
  o.warmup = 100;
  EXPECT_DOUBLE_EQ(learning_rate(o, 100, 100), 1e-3);
}

}  // namespace
}  // namespace spillway
