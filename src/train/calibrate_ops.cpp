#include "train/calibrate_ops.h"

#include <algorithm>
#include <random>

#include "graph/ops/shapes.h"

namespace spillway {
namespace {

enum Pool : BufferId { kNumbers, kResults, kTokens, kOrder, kScalars, kWorkspace, kPools };

// Far more than a core's own cache has, at most what a model's activations of a few layers have.
constexpr int64_t kTurn = int64_t{64} << 20;

}  // namespace

std::vector<TensorType> OpSpec::in_types() const {
  std::vector<TensorType> types;
  for (const BenchOperand& o : in) types.push_back(o.type);
  return types;
}

OpSpec matmul_spec(Dtype dtype, int64_t m, int64_t n, int64_t k) {
  OpSpec s;
  s.kind = OpKind::matmul;
  s.in = {{{dtype, Dims(m, k)}}, {{dtype, Dims(n, k)}}};
  s.out = {{{dtype, Dims(m, n)}}};
  return s;
}

OpSpec attention_spec(Dtype dtype, bool backward, int64_t context, int64_t head_dim,
                      int64_t heads) {
  OpSpec s;
  s.attrs.batch = 1;
  s.attrs.context = static_cast<int32_t>(context);
  s.attrs.heads = s.attrs.kv_heads = static_cast<int32_t>(heads);
  s.attrs.head_dim = static_cast<int32_t>(head_dim);
  const BenchOperand qkv = {{dtype, Dims(context, 3 * heads * head_dim)}};
  const BenchOperand o = {{dtype, Dims(context, heads * head_dim)}};
  const BenchOperand lse = {f32_of(Dims(heads, context))};
  s.kind = backward ? OpKind::attention_grad : OpKind::attention;
  if (backward) {
    s.in = {qkv, o, lse, o};
    s.out = {qkv};
  } else {
    s.in = {qkv};
    s.out = {o, lse};
  }
  return s;
}

OpSpec adamw_spec(int64_t count) {
  OpSpec s;
  s.kind = OpKind::adamw;
  s.attrs.eps = 1e-8f;
  const TensorType f = f32_of(Dims(count));
  s.in = {{f}, {scalars_type(), Content::scalars}, {f}, {f}, {f}};
  for (const int32_t state : {2, 3, 4}) s.out.push_back({f, Content::numbers, state});
  return s;
}

OpSpec add_spec(int64_t count) {
  OpSpec s;
  s.kind = OpKind::add;
  const TensorType f = f32_of(Dims(count));
  s.in = {{f}, {f}};
  s.out = {{f, Content::numbers, 0}};
  return s;
}

OpProgram::OpProgram(const WorkspaceRules& rules) : LaneProgram("calibration"), rules_(rules) {
  for (const char* name : {"numbers", "results", "tokens", "order", "scalars", "workspace"})
    place(name, Tier::device, {Dtype::u8, Dims(0)});
  shifted = {kNumbers, kResults};
}

ProgramOperand OpProgram::operand(BufferId pool, int64_t& end, const TensorType& type) {
  ProgramOperand o;
  o.buffer = pool;
  o.dtype = type.dtype;
  o.dims = type.dims;
  o.offset = end;
  end += round_up(o.bytes(), 256);
  int64_t& bytes = set.buffers[static_cast<size_t>(pool)].bytes;
  bytes = std::max(bytes, end);
  return o;
}

int OpProgram::add(const OpSpec& spec) {
  int64_t end[kPools] = {};
  const auto pool_of = [](Content content) {
    return content == Content::tokens    ? kTokens
           : content == Content::order   ? kOrder
           : content == Content::scalars ? kScalars
                                         : kNumbers;
  };
  std::vector<BufferId> pools;
  for (const BenchOperand& o : spec.in) pools.push_back(pool_of(o.content));
  for (const BenchOperand& o : spec.out)
    if (o.in_place >= 0 && o.content == Content::numbers)
      pools[static_cast<size_t>(o.in_place)] = kResults;
  std::vector<ProgramOperand> in, out;
  for (size_t i = 0; i < spec.in.size(); ++i)
    in.push_back(operand(pools[i], end[pools[i]], spec.in[i].type));
  for (const BenchOperand& o : spec.out)
    out.push_back(o.in_place >= 0 ? in[static_cast<size_t>(o.in_place)]
                                  : operand(kResults, end[kResults], o.type));
  ProgramOperand workspace;
  const OpDef& def = op_def(spec.kind);
  if (const int64_t bytes = def.workspace ? def.workspace(spec.attrs, spec.in_types(), rules_) : 0)
    workspace = operand(kWorkspace, end[kWorkspace], {Dtype::u8, Dims(bytes)});
  stride_.push_back(std::max(end[kNumbers], end[kResults]));
  return op(std::string(def.name).c_str(), spec.kind, spec.attrs, std::move(in), std::move(out),
            workspace);
}

void OpProgram::finish() {
  int64_t& end = layout.tier_bytes[static_cast<int>(Tier::device)];
  for (BufferId pool = 0; pool < kPools; ++pool) {
    int64_t& bytes = set.buffers[static_cast<size_t>(pool)].bytes;
    if (pool == kNumbers || pool == kResults) bytes += kTurn;
    layout.offset[static_cast<size_t>(pool)] = end;
    layout.version_stride[static_cast<size_t>(pool)] = round_up(bytes, 256);
    end += round_up(bytes, 256);
  }
}

int64_t OpProgram::shift(int which, int64_t run) const {
  const int64_t stride = stride_[static_cast<size_t>(which)];
  return run % std::max<int64_t>(1, kTurn / stride) * stride;
}

void OpProgram::fill(LaneBench& bench) const {
  std::mt19937 rng(1);
  std::uniform_int_distribution<uint32_t> mantissa(0, 127);
  const auto whole = [&](BufferId pool) {
    ProgramOperand o;
    o.buffer = pool;
    o.dtype = Dtype::u8;
    o.dims = Dims(set.buffers[static_cast<size_t>(pool)].bytes);
    return o;
  };
  // 0.125 … 0.25 in the upper and in the lower half of each word.
  std::vector<uint32_t> words(size_t{1} << 20);
  for (uint32_t& word : words) {
    const uint32_t bf16 = 0x3e00 + mantissa(rng);
    word = bf16 << 16 | bf16;
  }
  const auto words_bytes = static_cast<int64_t>(4 * words.size());
  for (const BufferId pool : {kNumbers, kResults}) {
    const ProgramOperand o = whole(pool);
    for (int64_t at = 0; at < o.bytes(); at += words_bytes)
      bench.device().upload(bench.at(o) + at, words.data(), std::min(words_bytes, o.bytes() - at));
  }
  const int64_t rows = whole(kTokens).bytes() / 4;
  std::vector<int32_t> tokens(static_cast<size_t>(rows)), order(tokens.size());
  for (size_t r = 0; r < tokens.size(); ++r) {
    // Ascending, so that rows in order are sorted by token for every number of rows.
    tokens[r] = static_cast<int32_t>(std::min<size_t>(r / 16, 255));
    order[r] = static_cast<int32_t>(r);
  }
  if (rows > 0) bench.device().upload(bench.at(whole(kTokens)), tokens.data(), 4 * rows);
  if (const int64_t bytes = whole(kOrder).bytes(); bytes > 0)
    bench.device().upload(bench.at(whole(kOrder)), order.data(), std::min(bytes, 4 * rows));
  if (whole(kScalars).bytes() > 0) {
    StepScalars scalars;
    scalars.step = 1;
    scalars.lr = 1e-6f;
    scalars.beta1_correction = 0.1f;
    scalars.beta2_correction = 0.05f;
    bench.device().upload(bench.at(whole(kScalars)), &scalars, sizeof scalars);
  }
}

}  // namespace spillway
