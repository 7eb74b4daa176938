// The way of step headers from the lead rank to the others.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"

#include "comm/communicator.h"
#include "worker/step_header.h"

namespace switchyard::worker {

// One end of the control channel. Most headers fit the first piece; the rest of a longer one, with
// a chunk of a prompt, follows in a second.
//
// Threads: one at a time.
class StepChannel {
 public:
  // `control` must outlive the object. `root` is the lead rank.
  StepChannel(comm::Communicator& control, int root);

  // Of the lead rank. Does not wait until the others have read it.
  // Errors: those of the communicator.
  absl::Status Send(const StepHeader& header);
  // Of all others; waits for the next one.
  // Errors: those of the communicator, kInvalidArgument (no header).
  absl::Status Receive(StepHeader& header);

 private:
  comm::Communicator& control_;
  const int root_;
  std::vector<std::byte> bytes_;
};

}  // namespace switchyard::worker
