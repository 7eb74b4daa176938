#include "worker/step_channel.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::worker {
namespace {

// A decode step of a dozen slots.
constexpr size_t kFirstBytes = 1024;
// Far above a step's rows and page tables.
constexpr uint64_t kMostBytes = uint64_t{1} << 30;

}  // namespace

StepChannel::StepChannel(comm::Communicator& control, int root) : control_(control), root_(root) {
  bytes_.reserve(64 * kFirstBytes);
}

absl::Status StepChannel::Send(const StepHeader& header) {
  bytes_.resize(sizeof(uint64_t));
  header.Encode(bytes_);
  const uint64_t length = bytes_.size();
  std::memcpy(bytes_.data(), &length, sizeof(length));
  bytes_.resize(std::max<size_t>(length, kFirstBytes));
  SWITCHYARD_RETURN_IF_ERROR(
      control_.Broadcast(bytes_.data(), kFirstBytes, comm::DataType::kU8, root_));
  if (length <= kFirstBytes) return absl::OkStatus();
  return control_.Broadcast(bytes_.data() + kFirstBytes, static_cast<int64_t>(length - kFirstBytes),
                            comm::DataType::kU8, root_);
}

absl::Status StepChannel::Receive(StepHeader& header) {
  bytes_.resize(kFirstBytes);
  SWITCHYARD_RETURN_IF_ERROR(
      control_.Broadcast(bytes_.data(), kFirstBytes, comm::DataType::kU8, root_));
  uint64_t length = 0;
  std::memcpy(&length, bytes_.data(), sizeof(length));
  if (length < sizeof(length) || length > kMostBytes) {
    return InvalidArgument("step header is damaged: length {}", length);
  }
  if (length > kFirstBytes) {
    bytes_.resize(length);
    SWITCHYARD_RETURN_IF_ERROR(control_.Broadcast(bytes_.data() + kFirstBytes,
                                                  static_cast<int64_t>(length - kFirstBytes),
                                                  comm::DataType::kU8, root_));
  }
  return header.Decode(absl::MakeSpan(bytes_).subspan(sizeof(length), length - sizeof(length)));
}

}  // namespace switchyard::worker
