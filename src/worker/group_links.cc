#include "worker/group_links.h"

#include <utility>

#include <google/protobuf/util/time_util.h>

#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::worker {
namespace {

absl::Duration DurationOf(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

absl::StatusOr<comm::BackendKind> BackendFromName(const std::string& name) {
  for (const comm::BackendKind kind : {comm::BackendKind::kShm, comm::BackendKind::kUcx}) {
    if (comm::Name(kind) == name) return kind;
  }
  return InvalidArgument("ranks cannot be linked this way, there are shm and ucx: backend, got: {}",
                         name);
}

}  // namespace

absl::StatusOr<GroupLinks> MakeGroupLinks(const v1::FormGroup& form, const WorkerOptions& options,
                                          const LinkOptions& link, comm::Rendezvous& rendezvous) {
  SWITCHYARD_ASSIGN_OR_RETURN(const comm::BackendKind backend, BackendFromName(form.backend()));
  comm::CommOptions comm;
  comm.group_id = form.group_id();
  comm.epoch = options.epoch;
  comm.rank = options.rank;
  comm.nranks = static_cast<int>(options.placement.world_size());
  comm.init_timeout = DurationOf(form.timeout());
  comm.op_timeout = DurationOf(form.operation_timeout());
  comm.num_compute_threads = link.num_compute_threads;
  comm.fault_rules = link.faults;
  GroupLinks links;
  SWITCHYARD_ASSIGN_OR_RETURN(links.tensors, comm::CreateCommunicator(backend, comm, rendezvous));
  // The next header comes when somebody asks for something.
  comm.channel = "control";
  comm.slot_bytes = 16 * 1024;  // headers are short, and the memory is shared by all pairs
  comm.op_timeout = absl::InfiniteDuration();
  SWITCHYARD_ASSIGN_OR_RETURN(links.control, comm::CreateCommunicator(backend, comm, rendezvous));
  return links;
}

}  // namespace switchyard::worker
