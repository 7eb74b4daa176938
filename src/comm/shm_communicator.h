// Ranks that are processes of one host and share a POSIX shared memory segment.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "comm/communicator.h"

namespace switchyard::comm {

// Creates one rank; see CreateCommunicator(). Rank 0 creates the segment, whose name goes through
// the rendezvous; it is unlinked as soon as all have mapped it, so that nothing is left of a killed
// process. Peers are watched by pidfd where process ids mean the same.
absl::StatusOr<std::unique_ptr<Communicator>> CreateShmCommunicator(const CommOptions& options,
                                                                    Rendezvous& rendezvous);

}  // namespace switchyard::comm
