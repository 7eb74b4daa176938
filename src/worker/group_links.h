// Makes what connects a rank with the others of its group.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "switchyard/worker/v1/session.pb.h"

#include "comm/communicator.h"
#include "worker/worker.h"

namespace switchyard::worker {

// What a rank knows of itself when it links up.
struct LinkOptions {
  int num_compute_threads = 1;  // the step thread included
  std::string faults;           // for tests and experiments: comm/fault_injector.h
};

// Links up as `form` says, as the rank of `options` and in their epoch. Blocks until all ranks have
// done so.
//
// Errors: kInvalidArgument (unknown backend), those of comm::CreateCommunicator().
absl::StatusOr<GroupLinks> MakeGroupLinks(const switchyard::worker::v1::FormGroup& form,
                                          const WorkerOptions& options, const LinkOptions& link,
                                          comm::Rendezvous& rendezvous);

}  // namespace switchyard::worker
