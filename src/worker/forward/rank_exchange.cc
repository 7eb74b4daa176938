#include "worker/forward/rank_exchange.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "placement/placement.h"

namespace switchyard::worker {
namespace {

int64_t CountOf(MatrixView<const float> values) {
  SWITCHYARD_DCHECK(values.rows <= 1 || values.row_stride == values.cols);
  return values.rows * values.cols;
}

// FNV-1a over words; sizes are multiples of four bytes.
uint64_t HashOf(const void* values, int64_t num_bytes) {
  const auto* bytes = static_cast<const std::byte*>(values);
  uint64_t hash = 0xcbf29ce484222325;
  for (int64_t i = 0; i + 4 <= num_bytes; i += 4) {
    uint32_t word;
    std::memcpy(&word, bytes + i, sizeof(word));
    hash = (hash ^ word) * 0x100000001b3;
  }
  return hash;
}

}  // namespace

template <typename Operation>
absl::Status RankExchange::Run(Operation operation) {
  const comm::CommTotals before = ranks_.Totals();
  const absl::Status status = operation();
  const comm::CommTotals after = ranks_.Totals();
  kernels::LedgerSlot& transfer = ledger_[v1::STAGE_COLLECTIVE];
  transfer.seconds += after.transfer_seconds - before.transfer_seconds;
  transfer.peer_bytes += after.received_bytes - before.received_bytes;
  ledger_[v1::STAGE_COLLECTIVE_WAIT].seconds += after.wait_seconds - before.wait_seconds;
  return status;
}

absl::Status RankExchange::AllReduce(MatrixView<float> values) {
  return Run([&] {
    return ranks_.AllReduce(values.data, values.data, CountOf(values), comm::DataType::kF32,
                            comm::RedOp::kSum);
  });
}

absl::Status RankExchange::CheckAlike(const void* values, int64_t num_bytes, std::string_view what,
                                      int layer) {
  const uint64_t own = HashOf(values, num_bytes);
  std::array<uint64_t, placement::kMaxWorldSize> all{};
  SWITCHYARD_RETURN_IF_ERROR(
      Run([&] { return ranks_.AllGather(&own, all.data(), sizeof(own), comm::DataType::kU8); }));
  for (int rank = 1; rank < ranks_.nranks(); ++rank) {
    if (all[static_cast<size_t>(rank)] == all[0]) continue;
    return Internal("ranks differ in {}: layer {}, ranks 0 and {}", what, layer, rank);
  }
  return absl::OkStatus();
}

absl::Status RankExchange::Reduce(MatrixView<float> values, int root) {
  return Run([&] {
    return ranks_.Reduce(values.data, values.data, CountOf(values), comm::DataType::kF32,
                         comm::RedOp::kSum, root);
  });
}

absl::Status RankExchange::Broadcast(float* values, int64_t count, int root) {
  return Run([&] { return ranks_.Broadcast(values, count, comm::DataType::kF32, root); });
}

absl::Status RankExchange::Send(MatrixView<const float> values, int peer) {
  return Run([&] { return ranks_.Send(values.data, CountOf(values), comm::DataType::kF32, peer); });
}

absl::Status RankExchange::Receive(MatrixView<float> values, int peer) {
  return Run([&] { return ranks_.Recv(values.data, CountOf(values), comm::DataType::kF32, peer); });
}

absl::Status RankExchange::SendBytes(const void* bytes, int64_t count, int peer) {
  return Run([&] { return ranks_.Send(bytes, count, comm::DataType::kU8, peer); });
}

absl::Status RankExchange::ReceiveBytes(void* bytes, int64_t count, int peer) {
  return Run([&] { return ranks_.Recv(bytes, count, comm::DataType::kU8, peer); });
}

}  // namespace switchyard::worker
