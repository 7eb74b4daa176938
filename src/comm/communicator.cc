#include "comm/communicator.h"

#include "base/check.h"

namespace switchyard::comm {

int64_t BytesOf(DataType type) {
  switch (type) {
    case DataType::kF32:
    case DataType::kI32:
      return 4;
    case DataType::kF16:
    case DataType::kBF16:
      return 2;
    case DataType::kU8:
      return 1;
  }
  SWITCHYARD_CHECK(false);
}

std::string_view Name(DataType type) {
  switch (type) {
    case DataType::kF32:
      return "f32";
    case DataType::kF16:
      return "f16";
    case DataType::kBF16:
      return "bf16";
    case DataType::kI32:
      return "i32";
    case DataType::kU8:
      return "u8";
  }
  return "unknown";  // as a peer may have sent it
}

std::string_view Name(RedOp op) {
  switch (op) {
    case RedOp::kSum:
      return "sum";
    case RedOp::kMax:
      return "max";
  }
  return "unknown";
}

std::string_view Name(BackendKind kind) {
  switch (kind) {
    case BackendKind::kLocal:
      return "local";
    case BackendKind::kShm:
      return "shm";
    case BackendKind::kUcx:
      return "ucx";
    case BackendKind::kNccl:
      return "nccl";
    case BackendKind::kHostmap:
      return "hostmap";
    case BackendKind::kP2p:
      return "p2p";
  }
  return "unknown";
}

std::string_view Name(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
      return "all_reduce";
    case OpKind::kAllGather:
      return "all_gather";
    case OpKind::kReduceScatter:
      return "reduce_scatter";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kReduce:
      return "reduce";
    case OpKind::kAllToAll:
      return "all_to_all";
    case OpKind::kSend:
      return "send";
    case OpKind::kRecv:
      return "recv";
    case OpKind::kBarrier:
      return "barrier";
  }
  return "unknown";
}

}  // namespace switchyard::comm
