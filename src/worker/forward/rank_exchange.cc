#include "worker/forward/rank_exchange.h"

#include "base/check.h"

namespace switchyard::worker {
namespace {

int64_t CountOf(MatrixView<const float> values) {
  SWITCHYARD_DCHECK(values.rows <= 1 || values.row_stride == values.cols);
  return values.rows * values.cols;
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
