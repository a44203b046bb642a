// Whole models on the CPU kernels against f64 losses and gradients; the bar is PyTorch's own error.
// links: spillway_parallel spillway_model kernels_cpu kernels_reference
#include <gtest/gtest.h>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"
#include "kernels/reference/table.h"
#include "tests/golden/golden.h"

namespace spillway::golden {
namespace {

class GoldenCpuTest : public testing::TestWithParam<const char*> {};

constexpr int kThreads = 2;

TEST_P(GoldenCpuTest, F32) {
  cpu::set_threads(kThreads);
  const Golden golden = load_golden(GetParam());
  const Errors errors =
      compare(golden, run_golden(golden, Precision::f32, cpu::kernel, false, kThreads));
  EXPECT_LE(errors.loss, std::max(1e-5, 2 * golden.f32_loss_error));
  EXPECT_LE(errors.norm, 1e-5);
  EXPECT_EQ(errors.padding, 0);
  for (size_t i = 0; i < golden.parameters.size(); ++i)
    EXPECT_LE(errors.gradients[i], std::max(1e-5, 2 * golden.parameters[i].f32_error))
        << golden.parameters[i].name;
}

// Root mean squares over as many draws as PyTorch's: one draw's error is luck, and another on every
// instruction set. The f64 values of a draw come from the reference kernels, which golden_test
// holds against PyTorch.
TEST_P(GoldenCpuTest, Bf16) {
  cpu::set_threads(kThreads);
  const Golden golden = load_golden(GetParam());
  ASSERT_GE(golden.draws, 10);
  double loss = 0;
  std::vector<double> gradients(golden.parameters.size(), 0.0);
  for (int seed = 1; seed <= golden.draws; ++seed) {
    const Golden drawn = redraw(golden, seed, reference::kernel);
    const Errors errors =
        compare(drawn, run_golden(drawn, Precision::bf16, cpu::kernel, false, kThreads));
    EXPECT_LE(errors.norm, 2e-2) << "seed " << seed;
    EXPECT_EQ(errors.padding, 0) << "seed " << seed;
    loss += errors.loss * errors.loss / golden.draws;
    for (size_t i = 0; i < gradients.size(); ++i)
      gradients[i] += errors.gradients[i] * errors.gradients[i] / golden.draws;
  }
  EXPECT_LE(std::sqrt(loss), 2 * golden.bf16_loss_error);
  double worst = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Golden::Parameter& p = golden.parameters[i];
    EXPECT_LE(std::sqrt(gradients[i]), 2 * p.bf16_error) << p.name;
    worst = std::max(worst, std::sqrt(gradients[i]) / p.bf16_error);
  }
  std::printf("error / PyTorch's: loss %.2f, worst gradient %.2f\n",
              std::sqrt(loss) / golden.bf16_loss_error, worst);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenCpuTest, testing::Values("gpt2", "llama", "llama_tied"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace spillway::golden
