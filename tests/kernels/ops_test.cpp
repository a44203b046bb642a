// The definitions of all ops and their reference kernels: shapes, costs, gradients against finite
// differences, accumulation.
// links: spillway_graph kernels_reference

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "graph/builder.h"
#include "tests/kernels/ops_support.h"

namespace spillway {
namespace {

using test::Call;
using test::Rng;
using test::Values;

class Op : public testing::TestWithParam<OpKind> {
 protected:
  const OpDef& def() const { return op_def(GetParam()); }
};

std::vector<TensorType> types_of(const std::vector<Values>& values) {
  std::vector<TensorType> types;
  for (const Values& v : values) types.push_back(v.type);
  return types;
}

bool same_types(const std::vector<TensorType>& a, const std::vector<TensorType>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.dtype == y.dtype && x.dims == y.dims;
  });
}

class ForwardOp : public Op {};
class DifferentiableOp : public Op {};

TEST_P(ForwardOp, InfersTheShapesOfItsCases) {
  for (const OpCase& c : def().cases()) {
    SCOPED_TRACE(c.label);
    EXPECT_TRUE(same_types(def().infer(c.attrs, c.in), c.out));
    std::vector<TensorType> fewer(c.in.begin(), c.in.end() - 1), more = c.in;
    more.push_back(c.in[0]);
    EXPECT_THROW(def().infer(c.attrs, fewer), Error);
    EXPECT_THROW(def().infer(c.attrs, more), Error);
    for (size_t i = 0; i < c.in.size(); ++i) {
      std::vector<TensorType> wrong = c.in;
      wrong[i].dtype = wrong[i].dtype == Dtype::i32 ? Dtype::f32 : Dtype::i32;
      if (wrong[i].dims.count() == int64_t{sizeof(StepScalars)}) wrong[i].dims = Dims(1);
      EXPECT_THROW(def().infer(c.attrs, wrong), Error) << "operand " << i;
    }
  }
}

TEST_P(Op, StatesCostAndWorkspace) {
  ASSERT_NE(def().cost, nullptr);
  ASSERT_NE(def().cases, nullptr);
  ASSERT_FALSE(def().cases().empty());
  for (const OpCase& c : def().cases()) {
    SCOPED_TRACE(c.label);
    const Cost cost = def().cost(c.attrs, c.in);
    EXPECT_GT(cost.bytes, 0);
    EXPECT_GE(cost.flops, 0);
    if (!def().workspace) continue;
    for (int threads : {1, 2, 7}) {
      const int64_t bytes = def().workspace(c.attrs, c.in, {.threads = threads});
      EXPECT_GE(bytes, 0);
      EXPECT_EQ(bytes % 64, 0);
      EXPECT_LE(bytes, def().workspace(c.attrs, c.in, {.threads = threads + 1}));
      // A plan for CUDA devices runs on the CPU backend too.
      for (const int64_t gemm : {int64_t{0}, int64_t{1000}, int64_t{32} << 20}) {
        const WorkspaceRules cuda = {threads, true, gemm};
        EXPECT_GE(def().workspace(c.attrs, c.in, cuda), bytes);
        EXPECT_EQ(def().workspace(c.attrs, c.in, cuda) % 64, 0);
      }
    }
  }
}

// Outputs that accumulate add what an overwriting call writes to what was there; an overwriting
// call leaves nothing of what was there.
TEST_P(Op, AddsOrOverwrites) {
  for (const OpCase& c : def().cases()) {
    SCOPED_TRACE(c.label);
    Rng rng = test::rng_of(GetParam(), c);
    const std::vector<Values> in = test::draw_inputs(GetParam(), c, rng);
    std::vector<Values> written, added, before;
    for (size_t o = 0; o < c.out.size(); ++o) {
      written.push_back(test::blank(c.out[o], test::kNan));
      before.push_back(test::blank(c.out[o], test::kNan));
      if (test::contains(c.accumulate, o)) test::fill_normal(before[o], rng, 0, 1);
    }
    added = before;
    test::run_reference(GetParam(), c.attrs, in, written, c.in_place, test::call_of(c, false));
    test::run_reference(GetParam(), c.attrs, in, added, c.in_place, test::call_of(c, true));
    for (size_t o = 0; o < c.out.size(); ++o) {
      const bool losses = c.out[o].dtype == Dtype::f64 && c.attrs.micro_batches > 1;
      for (size_t i = 0; i < written[o].real.size(); ++i) {
        const double base = test::contains(c.accumulate, o) ? before[o].real[i] : 0;
        if (losses && i + 1 != written[o].real.size()) {
          ASSERT_TRUE(std::isnan(written[o].real[i])) << "loss of another micro-batch " << i;
        } else {
          ASSERT_NEAR(added[o].real[i], base + written[o].real[i],
                      1e-9 * (1 + std::abs(written[o].real[i])))
              << "output " << o << " element " << i;
        }
      }
    }
  }
}

// Finite differences
// -------------------------------------------------------------------------------

// Operands that are parameters: their gradients are accumulators.
bool is_parameter(OpKind kind, const Attrs& attrs, size_t operand) {
  switch (kind) {
    case OpKind::embedding:
      return operand == 0 || (attrs.bias && operand == 2);
    case OpKind::rmsnorm:
    case OpKind::layernorm:
      return operand >= (attrs.residual ? 2u : 1u);
    case OpKind::matmul:
    case OpKind::rope:
    case OpKind::head_loss:
      return operand >= 1;
    default:
      return false;
  }
}

// Outputs that are there for the gradient only and have none themselves.
bool is_statistic(OpKind kind, const OpCase& c, size_t output) {
  const bool norm = kind == OpKind::rmsnorm || kind == OpKind::layernorm;
  return (norm && output + 1 == c.out.size()) || (kind == OpKind::attention && output == 1);
}

// One forward op as a graph, and what its backward rule makes of it.
struct Differentiated {
  GraphBuilder builder;
  std::vector<Values> values;  // by tensor
  std::vector<TensorId> in, out, din;
  size_t first_backward = 0;

  TensorId put(Values v, const std::string& name) {
    Tensor t;
    t.name = name;
    t.dtype = v.type.dtype;
    t.dims = v.type.dims;
    values.resize(builder.graph.tensors.size());
    values.push_back(std::move(v));
    return builder.graph.add(std::move(t));
  }
};

// Gradients of Σ cotangent·out by the op's rule and the reference kernels, by operand; empty where
// the rule gives none. An empty cotangent: no gradient arrives for that output.
std::vector<std::vector<double>> gradients(OpKind kind, const OpCase& c,
                                           const std::vector<Values>& in,
                                           const std::vector<Values>& out,
                                           const std::vector<std::vector<double>>& cotangent) {
  Differentiated d;
  Node node;
  node.name = "op.forward";
  node.op = kind;
  node.attrs = c.attrs;
  for (size_t i = 0; i < in.size(); ++i) {
    d.in.push_back(d.put(in[i], "in" + std::to_string(i)));
    node.in.push_back({d.in[i]});
    if (!is_parameter(kind, c.attrs, i)) continue;
    Param p;
    p.param = d.in[i];
    d.builder.graph.params.push_back(p);
  }
  for (size_t o = 0; o < out.size(); ++o) {
    d.out.push_back(d.put(out[o], "out" + std::to_string(o)));
    node.out.push_back({d.out[o]});
  }
  if (kind == OpKind::embedding) {
    Values order = in[1];
    std::iota(order.integer.begin(), order.integer.end(), 0);
    std::stable_sort(order.integer.begin(), order.integer.end(),
                     [&](int32_t a, int32_t b) { return in[1].integer[a] < in[1].integer[b]; });
    d.put(order, "token_order");
  }
  std::vector<TensorId> dout;
  for (size_t o = 0; o < out.size(); ++o) {
    dout.push_back(kNone);
    if (cotangent[o].empty()) continue;
    Values v = out[o];
    v.real = cotangent[o];
    dout[o] = d.put(v, "dout" + std::to_string(o));
  }
  d.din.assign(in.size(), kNone);
  op_def(kind).backward(d.builder, node, dout, d.din);

  const Graph& g = d.builder.graph;
  d.values.resize(g.tensors.size());
  for (const Node& emitted : g.nodes) {
    std::vector<Values> operands, results;
    for (const Operand& o : emitted.in) operands.push_back(d.values[o.tensor]);
    for (const Operand& o : emitted.out)
      results.push_back(
          test::blank({g.tensors[o.tensor].dtype, g.tensors[o.tensor].dims}, test::kNan));
    const std::vector<TensorType> types = types_of(operands);
    EXPECT_GT(op_def(emitted.op).cost(emitted.attrs, types).bytes, 0);
    test::run_reference(emitted.op, emitted.attrs, operands, results, {}, test::call_of(c, false));
    for (size_t o = 0; o < results.size(); ++o) d.values[emitted.out[o].tensor] = results[o];
  }

  std::vector<std::vector<double>> result(in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    TensorId from = d.din[i];
    for (const Param& p : g.params)
      if (p.param == d.in[i] && !p.grads.empty()) from = p.grads[0];
    if (from != kNone) result[i] = d.values[from].real;
  }
  return result;
}

double objective(OpKind kind, const OpCase& c, const std::vector<Values>& in,
                 const std::vector<std::vector<double>>& cotangent) {
  std::vector<Values> out;
  for (const TensorType& t : c.out) out.push_back(test::blank(t));
  test::run_reference(kind, c.attrs, in, out, c.in_place, test::call_of(c, false));
  double sum = 0;
  for (size_t o = 0; o < out.size(); ++o)
    for (size_t i = 0; i < cotangent[o].size(); ++i) sum += cotangent[o][i] * out[o].real[i];
  return sum;
}

// Central difference along `direction` of operand i against the gradient's component.
void expect_derivative(OpKind kind, const OpCase& c, const std::vector<Values>& in,
                       const std::vector<std::vector<double>>& cotangent, size_t operand,
                       const std::vector<double>& direction, const std::vector<double>& gradient) {
  constexpr double kStep = 1e-4;
  std::vector<Values> up = in, down = in;
  double expected = 0, norm = 0;
  for (size_t i = 0; i < direction.size(); ++i) {
    up[operand].real[i] += kStep * direction[i];
    down[operand].real[i] -= kStep * direction[i];
    expected += direction[i] * gradient[i];
    norm += gradient[i] * gradient[i];
  }
  const double measured =
      (objective(kind, c, up, cotangent) - objective(kind, c, down, cotangent)) / (2 * kStep);
  ASSERT_NEAR(measured, expected, 2e-6 * (std::abs(expected) + std::sqrt(norm) + 1e-3))
      << "operand " << operand;
}

TEST_P(DifferentiableOp, GradientMatchesFiniteDifferences) {
  for (const OpCase& c : def().cases()) {
    if (c.attrs.decode || c.in[0].dtype != Dtype::f32) continue;
    int64_t elements = 0;
    for (const TensorType& t : c.in) elements += t.dims.count();
    if (elements > 30000) continue;
    SCOPED_TRACE(c.label);
    Rng rng = test::rng_of(GetParam(), c);
    std::vector<Values> in = test::draw_inputs(GetParam(), c, rng);
    for (Values& v : in)  // far from a multiple of f32's spacing, so that no rounding hides
      for (double& x : v.real) x += 1e-9 * x;
    std::vector<Values> out;
    for (const TensorType& t : c.out) out.push_back(test::blank(t));
    test::run_reference(GetParam(), c.attrs, in, out, c.in_place, test::call_of(c, false));
    std::vector<std::vector<double>> cotangent(out.size());
    for (size_t o = 0; o < out.size(); ++o) {
      if (is_statistic(GetParam(), c, o)) continue;
      Values v = out[o];
      test::fill_normal(v, rng, 0, 1);
      cotangent[o] = v.real;
      if (GetParam() == OpKind::head_loss) {  // the loss itself is what is differentiated
        std::fill(cotangent[o].begin(), cotangent[o].end(), 0.0);
        cotangent[o].back() = 1;
      }
    }
    // A sum that nothing else reads gets no gradient of its own.
    const bool norm_of_sum = c.attrs.residual;
    for (int variant = 0; variant < (norm_of_sum ? 2 : 1); ++variant) {
      if (variant == 1) cotangent[0].clear();
      const auto grads = gradients(GetParam(), c, in, out, cotangent);
      for (size_t operand = 0; operand < in.size(); ++operand) {
        if (in[operand].real.empty()) continue;
        ASSERT_EQ(grads[operand].size(), in[operand].real.size()) << "operand " << operand;
        const int64_t size = static_cast<int64_t>(in[operand].real.size());
        std::vector<double> direction(size);
        for (int64_t probe = 0; probe < std::min<int64_t>(size, 12); ++probe) {
          std::fill(direction.begin(), direction.end(), 0.0);
          direction[size <= 12 ? probe : test::between(rng, 0, size - 1)] = 1;
          expect_derivative(GetParam(), c, in, cotangent, operand, direction, grads[operand]);
          if (HasFatalFailure()) return;
        }
        for (int probe = 0; probe < 3; ++probe) {
          Values random = in[operand];
          test::fill_normal(random, rng, 0, 1 / std::sqrt(static_cast<double>(size)));
          expect_derivative(GetParam(), c, in, cotangent, operand, random.real, grads[operand]);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

std::vector<OpKind> ops_with(bool (*property)(const OpDef&)) {
  std::vector<OpKind> all = test::all_ops();
  std::erase_if(all, [&](OpKind kind) { return !property(op_def(kind)); });
  return all;
}

std::string name_of_op(const testing::TestParamInfo<OpKind>& info) {
  return std::string(op_def(info.param).name);
}

INSTANTIATE_TEST_SUITE_P(All, Op, testing::ValuesIn(test::all_ops()), name_of_op);
INSTANTIATE_TEST_SUITE_P(All, ForwardOp, testing::ValuesIn(ops_with([](const OpDef& def) {
                           return def.infer != nullptr;
                         })),
                         name_of_op);
INSTANTIATE_TEST_SUITE_P(All, DifferentiableOp, testing::ValuesIn(ops_with([](const OpDef& def) {
                           return def.backward != nullptr;
                         })),
                         name_of_op);

// Ops without a gradient
// -----------------------------------------------------------------------------

TEST(Ops, TableHoldsEveryOpUnderItsName) {
#define OP(op) EXPECT_EQ(op_def(OpKind::op).name, #op);
#include "graph/op_list.h"
}

// Tokens fed through the cache in calls of random sizes see what the whole sequence sees.
TEST(Ops, CachedAttentionIsAttention) {
  Rng rng(test::test_seed());
  for (const OpCase& c : op_def(OpKind::attention).cases()) {
    if (c.attrs.batch != 1 || c.in[0].dtype != Dtype::f32) continue;
    SCOPED_TRACE(c.label);
    const std::vector<Values> in = test::draw_inputs(OpKind::attention, c, rng);
    const Values whole = test::forward_outputs(OpKind::attention, c.attrs, in, c.out)[0];
    const int64_t context = c.attrs.context, width = in[0].type.dims[1];
    const int64_t o_width = c.out[0].dims[1];
    const TensorType cache_type = {Dtype::f32,
                                   Dims(context, int64_t{c.attrs.kv_heads} * c.attrs.head_dim)};
    Values k_cache = test::blank(cache_type, test::kNan), v_cache = k_cache;
    for (int64_t position = 0; position < context;) {
      const int64_t live = test::between(rng, 1, context - position);
      const int64_t rows = live + test::between(rng, 0, 2);
      Values qkv = test::blank({Dtype::f32, Dims(rows, width)}, test::kNan);
      std::copy_n(in[0].real.begin() + position * width, live * width, qkv.real.begin());
      Values scalars = test::blank({Dtype::u8, Dims(sizeof(StepScalars))});
      scalars.scalars.position = static_cast<int32_t>(position);
      scalars.scalars.count = static_cast<int32_t>(live);
      std::vector<Values> out = {test::blank({Dtype::f32, Dims(rows, o_width)}, test::kNan),
                                 k_cache, v_cache};
      test::run_reference(OpKind::attention_cached, c.attrs, {qkv, k_cache, v_cache, scalars}, out,
                          {{1, 1}, {2, 2}}, {});
      for (int64_t i = 0; i < rows * o_width; ++i)
        ASSERT_NEAR(out[0].real[i], i < live * o_width ? whole.real[position * o_width + i] : 0,
                    1e-6);
      k_cache = out[1];
      v_cache = out[2];
      position += live;
    }
  }
}

// Huge and tiny pieces make the tree visible: only the stated order gives these sums.
TEST(Ops, RankSumAddsInItsTree) {
  Attrs attrs;
  attrs.ranks = 5;
  attrs.rank = 3;
  attrs.inner = 2;
  // Ranks 0 … 4: 1e17 | 1, -1e17 | 1, 2 as groups (0 1)(2 3)(4); the capacity is 2 elements.
  Values own = test::blank({Dtype::f32, Dims(1)});
  Values staging = test::blank({Dtype::f32, Dims(8)}, test::kNan);
  own.real = {1};                                  // rank 3
  staging.real = {1e17, 9, 1, 9, -1e17, 9, 2, 9};  // ranks 0, 1, 2, 4
  std::vector<Values> out = {test::blank(own.type, test::kNan)};
  test::run_reference(OpKind::rank_sum, attrs, {own, staging}, out, {}, {});
  EXPECT_EQ(out[0].real[0], ((1e17 + 1) + (-1e17 + 1)) + 2);
  EXPECT_NE(out[0].real[0], (((1e17 + 1) - 1e17) + 1) + 2);
}

// The same bits from the sums over the ranks of each node, added up node by node.
TEST(Ops, RankSumInTwoLevelsIsTheTree) {
  std::mt19937_64 random(5);
  for (const auto& [nodes, inner] : {std::pair{2, 2}, {3, 2}, {2, 4}, {5, 3}}) {
    std::vector<double> pieces(nodes * inner);
    for (double& p : pieces)
      p = std::ldexp(static_cast<double>(random() % 1000) - 500, random() % 99);
    const auto sum = [&](const std::vector<double>& of, int rank, int width) {
      Attrs attrs;
      attrs.ranks = static_cast<int32_t>(of.size());
      attrs.rank = rank;
      attrs.inner = width;
      Values own = test::blank({Dtype::f32, Dims(1)});
      Values staging = test::blank({Dtype::f32, Dims(attrs.ranks - 1)});
      own.real = {of[rank]};
      staging.real.clear();
      for (int p = 0; p < attrs.ranks; ++p)
        if (p != rank) staging.real.push_back(of[p]);
      std::vector<Values> out = {test::blank(own.type, test::kNan)};
      test::run_reference(OpKind::rank_sum, attrs, {own, staging}, out, {}, {});
      return out[0].real[0];
    };
    std::vector<double> of_node;
    for (int n = 0; n < nodes; ++n)
      of_node.push_back(sum({pieces.begin() + n * inner, pieces.begin() + (n + 1) * inner},
                            static_cast<int>(random() % inner), inner));
    EXPECT_EQ(sum(of_node, static_cast<int>(random() % nodes), 1),
              sum(pieces, static_cast<int>(random() % pieces.size()), inner));
  }
}

TEST(Ops, NormFinishClipsAndJudges) {
  Attrs attrs;
  attrs.clip = 1;
  Values partials = test::blank({Dtype::f64, Dims(2)}), losses = test::blank({Dtype::f64, Dims(2)});
  Values scalars = test::blank({Dtype::u8, Dims(sizeof(StepScalars))});
  scalars.scalars.lr = 0.5f;
  scalars.scalars.skip_update = 7;
  std::vector<Values> out = {scalars};
  const auto run = [&](std::vector<double> p, std::vector<double> l) {
    partials.real = p;
    losses.real = l;
    test::run_reference(OpKind::norm_finish, attrs, {partials, losses, scalars}, out, {{0, 2}}, {});
    return out[0].scalars;
  };
  StepScalars s = run({9, 16}, {1.5, 2});
  EXPECT_EQ(s.norm, 5);
  EXPECT_EQ(s.loss, 3.5);
  EXPECT_NEAR(s.clip_scale, 0.2, 1e-6);
  EXPECT_EQ(s.skip_update, 0u);
  EXPECT_EQ(s.lr, 0.5f);
  EXPECT_EQ(run({0.09, 0.16}, {1, 2}).clip_scale, 1.0f);
  EXPECT_EQ(run({9, test::kNan}, {1, 2}).skip_update, 1u);
  EXPECT_EQ(run({9, HUGE_VAL}, {1, 2}).skip_update, 1u);
  EXPECT_EQ(run({9, 16}, {1, -HUGE_VAL}).skip_update, 1u);
  attrs.clip = 0;
  EXPECT_EQ(run({9, 16}, {1, 2}).clip_scale, 1.0f);
}

TEST(Ops, AdamwTakesTheStepOfItsFormula) {
  Attrs attrs;
  attrs.eps = 1e-8f;
  attrs.weight_decay = 0.1f;
  const TensorType one = {Dtype::f32, Dims(1)};
  Values grad = test::blank(one), state = test::blank(one), m = test::blank(one), v = m;
  Values scalars = test::blank({Dtype::u8, Dims(sizeof(StepScalars))});
  scalars.scalars.lr = 0.5f;
  scalars.scalars.clip_scale = 0.25f;
  scalars.scalars.beta1_correction = 1 - attrs.beta1;  // the first update
  scalars.scalars.beta2_correction = 1 - attrs.beta2;
  grad.real = {8};
  state.real = {3};
  const std::vector<std::pair<int32_t, int32_t>> in_place = {{0, 2}, {1, 3}, {2, 4}};
  std::vector<Values> out = {state, m, v};
  test::run_reference(OpKind::adamw, attrs, {grad, scalars, state, m, v}, out, in_place, {});
  EXPECT_NEAR(out[0].real[0], 3 - 0.5 * (0.1 * 3 + 1), 1e-6);  // the first step has length lr
  EXPECT_NEAR(out[1].real[0], 0.1 * 2, 1e-6);
  EXPECT_NEAR(out[2].real[0], 0.05 * 4, 1e-6);
  scalars.scalars.skip_update = 1;
  test::run_reference(OpKind::adamw, attrs, {grad, scalars, state, m, v}, out, in_place, {});
  EXPECT_EQ(out[0].real[0], 3);
}

// Norms give out only what is asked for.
TEST(Ops, NormsLeaveOutWhatIsNotWanted) {
  for (OpKind kind : {OpKind::rmsnorm, OpKind::layernorm})
    for (const OpCase& c : op_def(kind).cases()) {
      if (!c.attrs.residual) continue;
      SCOPED_TRACE(c.label);
      Rng rng = test::rng_of(kind, c);
      std::vector<Values> in = test::draw_inputs(kind, c, rng), whole;
      for (const TensorType& t : c.out) whole.push_back(test::blank(t));
      test::run_reference(kind, c.attrs, in, whole, {}, {});
      for (size_t left_out = 0; left_out < c.out.size(); ++left_out) {
        KernelArgs args;
        args.attrs = &c.attrs;
        args.in_count = static_cast<int32_t>(in.size());
        args.out_count = static_cast<int32_t>(c.out.size());
        std::vector<Values> out;
        for (const TensorType& t : c.out) out.push_back(test::blank(t, test::kNan));
        for (size_t i = 0; i < in.size(); ++i) args.in[i] = test::reference_arg(in[i]);
        for (size_t o = 0; o < out.size(); ++o) args.out[o] = test::reference_arg(out[o]);
        args.out[left_out].data = nullptr;
        reference::kernel(kind)(args);
        for (size_t o = 0; o < out.size(); ++o) {
          if (o == left_out) continue;
          ASSERT_EQ(out[o].real, whole[o].real);
        }
      }
    }
}

}  // namespace
}  // namespace spillway
