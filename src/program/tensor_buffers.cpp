#include "program/tensor_buffers.h"

#include <algorithm>

namespace spillway {
namespace {

constexpr int32_t kInputSlots = 2;  // groups of micro-batches of tokens on the device at once

bool shared_between_programs(const Tensor& t) {
  const Role role = t.role;
  return t.carried || role == Role::param || role == Role::master || role == Role::moment ||
         role == Role::kv_cache;
}

Scope scope_of(const Tensor& t) {
  if (shared_between_programs(t)) return Scope::run;
  return t.role == Role::activation ? Scope::iteration : Scope::step;
}

}  // namespace

TensorBuffers::TensorBuffers(const std::vector<const Schedule*>& schedules)
    : schedules_(schedules) {
  for (const Schedule* s : schedules) fixed_.emplace_back(InstanceIndex(*s).size(), kNone);
}

BufferId TensorBuffers::add_buffer(Buffer b) {
  b.bytes = std::max<int64_t>(b.bytes, 1);
  result_.set.buffers.push_back(std::move(b));
  return static_cast<BufferId>(result_.set.buffers.size()) - 1;
}

const std::string& TensorBuffers::owner() const {
  return schedule().borrows.empty() ? schedule().name : schedule().borrows;
}

std::string TensorBuffers::qualified(const Tensor& t) const {
  return shared_between_programs(t) ? t.name : owner() + "." + t.name;
}

BufferId TensorBuffers::tensor_buffer(TensorId id, Tier tier, int32_t micro) {
  BufferId& known =
      fixed_[current_][InstanceIndex(schedule())({id, static_cast<int32_t>(tier), micro})];
  if (known == kNone) known = find_tensor_buffer(id, tier, micro);
  return known;
}

BufferId TensorBuffers::find_tensor_buffer(TensorId id, Tier tier, int32_t micro) {
  const Tensor& t = schedule().graph.tensors[id];
  std::string name = qualified(t) + of_micro(micro) + (tier == Tier::host ? " (host)" : "");
  auto [it, fresh] = tensor_buffer_.try_emplace(name, -1);
  if (fresh) {
    it->second = add_buffer({.name = name,
                             .place = t.place,
                             .tensor = current_ == 0 ? id : kNone,
                             .tier = tier,
                             .scope = scope_of(t),
                             .bytes = t.bytes()});
    if (t.role == Role::kv_cache) result_.kv_caches[t.name] = it->second;
    if (t.role == Role::scalar && t.carried) result_.io[t.name] = it->second;
  }
  return it->second;
}

BufferId TensorBuffers::host_copy(TensorId id, Dims dims) {
  const Tensor& t = schedule().graph.tensors[id];
  const std::string name = qualified(t) + " (for updates on the host)";
  auto [it, fresh] = tensor_buffer_.try_emplace(name, -1);
  if (fresh)
    it->second = add_buffer({.name = name,
                             .place = t.place,
                             .tier = Tier::host,
                             .scope = scope_of(t),
                             .bytes = dims.count() * size_of(t.dtype)});
  return it->second;
}

std::string TensorBuffers::of_micro(int32_t micro) {
  return micro == 0 ? "" : " of micro-batch +" + std::to_string(micro);
}

BufferId TensorBuffers::host_io(const std::string& name, int64_t bytes, int32_t versions) {
  auto [it, fresh] = result_.io.try_emplace(name, -1);
  if (fresh)
    it->second = add_buffer({.name = name + " (host)",
                             .place = "batch",
                             .tier = Tier::host,
                             .scope = Scope::run,
                             .bytes = bytes,
                             .versions = versions});
  return it->second;
}

BufferId TensorBuffers::input_buffer(const Tensor& t) {
  const std::string name = owner() + "." + t.name;
  auto [it, fresh] = tensor_buffer_.try_emplace(name, -1);
  if (fresh)
    it->second = add_buffer({.name = name,
                             .place = "batch",
                             .scope = Scope::step,
                             .bytes = t.bytes(),
                             .versions = kInputSlots * schedule().choice.group});
  return it->second;
}

}  // namespace spillway
