// Whole models in double precision against PyTorch: graph, differentiation and reference kernels.
// links: spillway_parallel spillway_model kernels_reference nlohmann_json::nlohmann_json
#include "tests/golden/golden.h"

#include <gtest/gtest.h>

#include "kernels/reference/table.h"

namespace spillway::golden {
namespace {

class GoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, ReferenceMatchesPyTorchInF64) {
  const Golden golden = load_golden(GetParam());
  const Errors errors =
      compare(golden, run_golden(golden, Precision::f32, reference::kernel, true));
  EXPECT_LE(errors.loss, 1e-9);
  EXPECT_LE(errors.norm, 1e-9);
  EXPECT_EQ(errors.padding, 0);
  for (size_t i = 0; i < golden.parameters.size(); ++i)
    EXPECT_LE(errors.gradients[i], 1e-9) << golden.parameters[i].name;
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, testing::Values("gpt2", "llama", "llama_tied"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace spillway::golden
