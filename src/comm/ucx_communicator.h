// Ranks that are processes of any hosts and exchange messages through UCX.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "comm/communicator.h"

namespace switchyard::comm {

// Creates one rank; see CreateCommunicator(). UCX chooses devices and transports; its settings can
// be changed by its own environment variables (UCX_NET_DEVICES, UCX_TLS). A lost peer is reported
// by its endpoint, a silent link by the deadline of the operation.
absl::StatusOr<std::unique_ptr<Communicator>> CreateUcxCommunicator(const CommOptions& options,
                                                                    Rendezvous& rendezvous);

}  // namespace switchyard::comm
