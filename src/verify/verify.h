// Proof or error for a lowered, packed and synchronised set of programs. Shares only data types
// with the stages that made it, and trusts none of what they say: what an instruction touches is
// derived again from its operands, what is ordered from lanes and waits alone.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace spillway {

struct Limits {
  // Capacity of each tier in bytes.
  int64_t tier_bytes[kTierCount] = {std::numeric_limits<int64_t>::max(),
                                    std::numeric_limits<int64_t>::max()};
};

// One violation. Fields that do not apply are empty.
struct Finding {
  std::string what;
  std::string program;
  std::string instr, other;    // the instruction at fault, and the one it collides with
  std::string buffer;          // the buffer that `instr` touches
  int64_t begin = 0, end = 0;  // bytes [begin, end) of the tier's arena; equal: not about bytes
};
std::string describe(const Finding& finding);  // one line

constexpr int kMaxFindings = 20;  // what one call reports at most

// One rank. Empty: for every order in which the programs may follow each other,
// - the layout is aligned, fits, and gives no bytes away twice that must be a buffer's own;
// - every instruction declares exactly the bytes of its operands, inside their buffers;
// - of any two conflicting accesses on different lanes the one issued first happens before the
//   other;
// - no byte of a step or iteration buffer is read that this run of the program did not write
//   through the same buffer and version, with nothing else written over it since;
// - waits refer to other lanes and to something issued before, exchanges are numbered in order.
std::vector<Finding> verify(const ProgramSet& set, const ArenaLayout& layout, const Limits& limits);

// The same program as one rank has it.
struct RankProgram {
  int32_t rank = 0;
  const Program* program = nullptr;
};

// Several ranks that run one program together: all of them, or one a role. Empty: the exchanges of
// any two of them match in order, sequence, name and bytes, and no set of ranks waits in a circle.
// Messages to and from ranks that are not given are not judged.
std::vector<Finding> verify_ranks(std::span<const RankProgram> ranks);

}  // namespace spillway
