// Steps of start-up that all ranks take together: what fails on one fails on all, with one message.
#pragma once

#include <functional>

#include "base/error.h"
#include "runtime/device.h"

namespace spillway {

// An Error that every rank throws alike, so that one of them is enough to print it.
class SharedError : public Error {
 public:
  using Error::Error;
};

// Runs `body` on every rank and agrees: if it threw an Error anywhere, all ranks throw the lowest
// such rank's as a SharedError. `body` must not communicate.
void together(Communicator& communicator, const std::function<void()>& body);

// The same where only rank 0 has something to do.
void on_rank_0(Communicator& communicator, const std::function<void()>& body);

// Of all ranks' values, none negative.
double highest(Communicator& communicator, double value);
double lowest(Communicator& communicator, double value);

}  // namespace spillway
