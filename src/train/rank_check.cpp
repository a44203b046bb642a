#include "train/rank_check.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

#include "base/hash.h"
#include "parallel/build.h"
#include "train/together.h"

namespace spillway {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Name {
  char host[64];
};

}  // namespace

RankCheck::RankCheck(Session& session, Communicator& communicator)
    : session_(session), communicator_(communicator), program_(session.program("check")) {
  if (program_ < 0) return;

  Name own{};
  gethostname(own.host, sizeof own.host - 1);
  std::vector<Name> names(static_cast<size_t>(communicator.size()));
  communicator.gather(&own, sizeof own, names.data());
  for (const Name& name : names) hosts_.push_back(name.host);

  std::string device;
  for (const auto& [key, value] : session.device().fingerprint()) device += key + "=" + value + " ";
  const auto hash = static_cast<int64_t>(hash_bytes(device.data(), device.size()) >> 1);
  same_bits_ = communicator.min(hash) == communicator.max(hash);
  if (!same_bits_)
    note_ =
        "ranks run on different devices, instruction sets or library versions, whose results agree "
        "within rounding only: weights are compared, gradients are not";

  const Schedule& train = session.train_schedule();
  for (const Home& home : session.homes())
    for (const Param& p : train.graph.params) {
      if (home.copy) continue;
      const bool weights = home.tensor == p.param && p.shard == kNone;
      const bool state =
          home.tensor == p.master || home.tensor == p.moment1 || home.tensor == p.moment2;
      if (weights || (state && p.own.empty())) replicated_.push_back(home);
    }
  gradients_ = digested_tensors(session.workload().train.check(session.report().plan.schedule));
  row_size_ = replicated_.size() + 2 * gradients_.size();
  own_.resize(row_size_);
  all_.resize(row_size_ * static_cast<size_t>(communicator.size()));
  chunk_.resize(kChunkBytes);
  sequences_.resize(static_cast<size_t>(session.workload().config.train.micro_batch));
}

void RankCheck::hash_weights(uint64_t* out) {
  const Graph& g = session_.train_schedule().graph;
  for (const Home& home : replicated_) {
    const int64_t bytes = home.count * size_of(g.tensors[home.tensor].dtype);
    Hasher hasher;
    for (int64_t at = 0; at < bytes; at += kChunkBytes) {
      const int64_t n = std::min(kChunkBytes, bytes - at);
      session_.device().download(chunk_.data(),
                                 session_.executor().address(home.buffer, 0, home.offset + at), n);
      hasher.bytes(chunk_.data(), static_cast<size_t>(n));
    }
    *out++ = hasher.digest();
  }
}

void RankCheck::digest_gradients(int rank, int64_t micro, const Fill& fill, uint64_t* out) {
  const auto& config = session_.workload().config;
  const auto rows = static_cast<size_t>(config.train.micro_batch * config.model.context);
  fill(rank, micro,
       {{session_.io<int32_t>("check.tokens"), rows},
        {session_.io<int32_t>("check.targets"), rows},
        {session_.io<int32_t>("check.token_order"), rows},
        sequences_});
  session_.executor().run(program_);
  session_.executor().finish();
  const double* digests = session_.io<double>("check.digests");
  for (size_t i = 0; i < gradients_.size(); ++i) std::memcpy(out + i, digests + i, sizeof(double));
}

void RankCheck::run(int64_t step, const Fill& fill) {
  if (program_ < 0) return;
  session_.flush_updates();  // the check's backward pass overwrites what pending updates read
  const double begin = now();
  hash_weights(own_.data());
  const double hashed = now();
  if (same_bits_) {
    // Any micro-batch of the step, another one each time.
    const int64_t micros = session_.train_schedule().spec.micro_batches;
    const auto micro =
        static_cast<int64_t>(static_cast<uint64_t>(step) * 0x9E3779B97F4A7C15u >> 33) % micros;
    const int ranks = communicator_.size(), rank = communicator_.rank();
    uint64_t* digests = own_.data() + replicated_.size();
    digest_gradients(rank, micro, fill, digests);
    digest_gradients(neighbour(rank, ranks), micro, fill, digests + gradients_.size());
  }
  communicator_.gather(own_.data(), static_cast<int64_t>(row_size_ * sizeof(uint64_t)),
                       all_.data());
  compare_weights(step);
  if (same_bits_) compare_gradients(step);
  ++runs_;
  weights_seconds_ += hashed - begin;
  gradients_seconds_ += now() - hashed;
}

std::string RankCheck::who(int rank) const {
  return fmt::format("rank {} (host {})", rank, hosts_[static_cast<size_t>(rank)]);
}

void RankCheck::compare_weights(int64_t step) const {
  const int ranks = communicator_.size();
  for (size_t i = 0; i < replicated_.size(); ++i) {
    std::map<uint64_t, std::vector<int>> holders;
    for (int r = 0; r < ranks; ++r) holders[row(r)[i]].push_back(r);
    if (holders.size() == 1) continue;
    const auto most = std::max_element(
        holders.begin(), holders.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    const bool majority = 2 * most->second.size() > static_cast<size_t>(ranks);
    std::string named;
    for (const auto& [hash, group] : holders)
      for (const int r : group)
        if (!majority || hash != most->first) named += (named.empty() ? "" : ", ") + who(r);
    const std::string& tensor = session_.train_schedule().graph.tensors[replicated_[i].tensor].name;
    const std::string told =
        majority ? fmt::format("{} of {} contradicts the {} other copies", tensor, named,
                               most->second.size())
                 : fmt::format("{} differs between {}, and no majority tells who is right", tensor,
                               named);
    throw SharedError(
        ExitCode::no_progress,
        fmt::format("step {}: ranks diverged: {}; a memory or processor there is suspect: resume "
                    "from a checkpoint before this step, without that host if it happens again",
                    step, told));
  }
}

void RankCheck::compare_gradients(int64_t step) const {
  const int ranks = communicator_.size();
  std::vector<int> bad;  // ranks whose micro-batch came out otherwise on the next rank
  std::string first;
  for (int r = 0; r < ranks; ++r) {
    const uint64_t* mine = row(r) + replicated_.size();
    const uint64_t* again = row((r + 1) % ranks) + replicated_.size() + gradients_.size();
    for (size_t i = 0; i < gradients_.size(); ++i) {
      if (mine[i] == again[i]) continue;
      if (first.empty()) first = gradients_[i];
      bad.push_back(r);
      break;
    }
  }
  if (bad.empty()) return;
  std::string pairs, culprit;
  for (const int r : bad) {
    const int next = (r + 1) % ranks;
    pairs +=
        (pairs.empty() ? "" : "; ") + (ranks == 1 ? fmt::format("{} computed it twice", who(r))
                                                  : fmt::format("{} and {}", who(r), who(next)));
    if (ranks > 2 && std::find(bad.begin(), bad.end(), next) != bad.end())
      culprit += fmt::format("; {} is in two of these pairs", who(next));
  }
  throw SharedError(
      ExitCode::no_progress,
      fmt::format("step {}: silent corruption: {} of one micro-batch has other bits on two ranks: "
                  "{}{}; a memory or processor there is suspect: resume from a checkpoint, without "
                  "that host if it happens again",
                  step, first, pairs, culprit));
}

}  // namespace spillway
