// Internal to lowering: the buffers of a program set, found again by the names of what they hold,
// so that schedules share them.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "program/sequence.h"
#include "program/stages.h"

namespace spillway {

class TensorBuffers {
 protected:
  explicit TensorBuffers(const std::vector<const Schedule*>& schedules);

  const Schedule& schedule() const { return *schedules_[current_]; }
  const std::vector<Buffer>& buffers() const { return result_.set.buffers; }
  BufferId add_buffer(Buffer b);
  // A schedule that has asked once need not ask again.
  BufferId tensor_buffer(TensorId id, Tier tier, int32_t micro = 0);
  // What an update on the host has of a tensor whose home is on the device: step scalars, and of
  // parameters, whose f32 truth may be among them, the part that this rank updates, laid out as its
  // moments are.
  BufferId host_copy(TensorId id, Dims dims);
  BufferId host_io(const std::string& name, int64_t bytes, int32_t versions);
  BufferId input_buffer(const Tensor& t);
  static std::string of_micro(int32_t micro);

  const std::vector<const Schedule*>& schedules_;
  size_t current_ = 0;  // schedule being lowered
  Lowered result_;

 private:
  const std::string& owner() const;  // of step and iteration buffers
  std::string qualified(const Tensor& t) const;
  BufferId find_tensor_buffer(TensorId id, Tier tier, int32_t micro);

  std::unordered_map<std::string, BufferId> tensor_buffer_;
  // Buffers found by tensor, tier and micro-batch, by schedule; kNone: not asked for yet.
  std::vector<std::vector<BufferId>> fixed_;
};

}  // namespace spillway
