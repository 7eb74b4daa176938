// Chooses the backend.
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/local_group.h"
#include "comm/shm_communicator.h"
#include "comm/ucx_communicator.h"

namespace switchyard::comm {

absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(BackendKind kind,
                                                                 const CommOptions& options,
                                                                 Rendezvous& rendezvous) {
  switch (kind) {
    case BackendKind::kLocal:
      return CreateLocalCommunicator(options, rendezvous);
    case BackendKind::kShm:
      return CreateShmCommunicator(options, rendezvous);
    case BackendKind::kUcx:
      return CreateUcxCommunicator(options, rendezvous);
    case BackendKind::kNccl:
    case BackendKind::kHostmap:
    case BackendKind::kP2p:
      break;
  }
  return Unimplemented("this build has no backend {}; it has local, shm and ucx", Name(kind));
}

}  // namespace switchyard::comm
