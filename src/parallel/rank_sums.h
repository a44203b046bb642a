// From the gradients of one rank to their sum over ranks, unit by unit: exchanges on each level,
// the sums, norm partials, and in ZeRO-0 the gather of everyone's sums.
#pragma once

#include <vector>

#include "parallel/schedule_nodes.h"

namespace spillway {

class RankSums : protected ScheduleNodes {
 protected:
  using ScheduleNodes::ScheduleNodes;

  // What happens to one unit when its gradients are complete.
  struct UnitSteps {
    std::vector<NodeId> send;    // sum of the uses, and the exchange
    std::vector<NodeId> across;  // of two levels: sum over the node's ranks, exchange across nodes
    std::vector<NodeId> sum;     // sum over ranks, or over nodes
    std::vector<NodeId>
        finish_step;  // only after the step's last group: norm partials, ZeRO-0 gather
  };

  // Where the sum over ranks of this rank's part of a piece stands.
  Operand summed(const Piece& piece) const;
  // Where the sums stand that a parameter's update reads: this rank's, or every rank's.
  TensorId updated_from(int32_t param) const;
  UnitSteps unit_steps(const Unit& unit);  // adds its nodes

  std::vector<TensorId> reduced_;        // by parameter; kNone: the sum stands in grads[0]
  std::vector<int64_t> partials_begin_;  // by parameter, into norm_partials
  TensorId partials_ = kNone;

 private:
  void add_gradient_gather(const Unit& unit, UnitSteps& steps);
  // A parameter used twice: the second use's gradient is added to the first's.
  void add_uses(const Unit& unit, UnitSteps& steps);
  // Elements of all pieces when a rank has `parts` parts of each.
  static int64_t capacity(const Unit& unit, int64_t parts);
  // Every peer of the first level gets the part of this rank's gradients that it stands for; the
  // pieces of this rank's part arrive in the staging tensor: parameter by parameter, peer by peer.
  // Returns it; its size is every rank's.
  TensorId add_sum_exchange(const Unit& unit, UnitSteps& steps);
  // Sends each member of the level its part of a piece from `from`, which holds the parameter's
  // elements from `shift` on, and receives what they have of this rank's in `to` from `at` on.
  // Returns where that ends.
  int64_t exchange_piece(Node& node, const Piece& piece, const Level& level, TensorId from,
                         int64_t shift, TensorId to, int64_t at) const;
  // The level's sum of a piece: `own` and what stands in `staging` from `at` on, which moves on.
  Node level_sum(const Piece& piece, const Level& level, Operand own, TensorId staging,
                 int64_t& at) const;
  void add_rank_sums(const Unit& unit, TensorId staging, UnitSteps& steps);
  void add_last_sum(const Piece& piece, Node node, const Unit& unit, UnitSteps& steps);
  // Sums over the ranks of this node, which then go across nodes, and the sums of those in order of
  // nodes: what rank_sum gives when it sees the pieces of all ranks at once.
  void add_node_sums(const Unit& unit, TensorId staging, UnitSteps& steps);
  void add_norm_partials(const Unit& unit, UnitSteps& steps);
};

}  // namespace spillway
