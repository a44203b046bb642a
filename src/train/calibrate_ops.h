// What calibration runs of the ops: shapes that stand for what training runs.
#pragma once

#include <string>
#include <vector>

#include "graph/op.h"
#include "train/lane_bench.h"

namespace spillway {

// What stands in an operand before the first run. Ops leave it valid.
enum class Content : uint8_t { numbers, tokens, order, scalars };

struct BenchOperand {
  TensorType type;
  Content content = Content::numbers;
  int32_t in_place = -1;  // of an output: the input that it overwrites
};

// One op of one shape.
struct OpSpec {
  OpKind kind = OpKind::add;
  Attrs attrs;
  std::vector<BenchOperand> in, out;
  std::vector<TensorType> in_types() const;
};

OpSpec matmul_spec(Dtype dtype, int64_t m, int64_t n, int64_t k);
OpSpec attention_spec(Dtype dtype, bool backward, int64_t context, int64_t head_dim, int64_t heads);
OpSpec adamw_spec(int64_t count);
OpSpec add_spec(int64_t count);  // a += b in f32

// Ops whose operands lie over one another in pools of device memory: numbers that are read in one,
// results and what is updated in place in another, so that inputs stay what they are.
class OpProgram : public LaneProgram {
 public:
  explicit OpProgram(const WorkspaceRules& rules);

  int add(const OpSpec& spec);
  // Once, after the last op and before other operands are placed: gives the pools their places,
  // long enough for shift().
  void finish();
  // How far run number `run` of an op is shifted: runs that follow each other use the pools'
  // bytes in turn, so that operands come from where those of a step come from.
  int64_t shift(int which, int64_t run) const;
  // Fills the pools: words that are sensible as f32 and as a pair of bf16, tokens below 256.
  void fill(LaneBench& bench) const;

 private:
  ProgramOperand operand(BufferId pool, int64_t& end, const TensorType& type);

  WorkspaceRules rules_;
  std::vector<int64_t> stride_;  // by instruction
};

}  // namespace spillway
