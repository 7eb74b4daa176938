// What ranks exchange within a forward pass, with the ledger's lines for it.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

#include "base/tensor_view.h"
#include "comm/communicator.h"
#include "worker/ledger.h"

namespace switchyard::worker {

// Operations on rows of activations, timed: what the slowest peer kept this rank waiting goes to
// STAGE_COLLECTIVE_WAIT, the rest to STAGE_COLLECTIVE.
//
// Threads: the step thread.
// Errors:  of all methods, those of the communicator.
class RankExchange {
 public:
  RankExchange(comm::Communicator& ranks, Ledger& ledger) : ranks_(ranks), ledger_(ledger) {}

  // values = the sum over ranks, with the same bits on all of them.
  // REQUIRES: rows are adjacent.
  absl::Status AllReduce(MatrixView<float> values);
  // Compares a hash of the rows over all ranks.
  // Errors: kInternal names the first two ranks that differ, and `what`.
  absl::Status CheckAlike(const void* values, int64_t num_bytes, std::string_view what, int layer);
  // The sum arrives on `root` only.
  absl::Status Reduce(MatrixView<float> values, int root);
  absl::Status Broadcast(float* values, int64_t count, int root);
  absl::Status Send(MatrixView<const float> values, int peer);
  absl::Status Receive(MatrixView<float> values, int peer);
  absl::Status SendBytes(const void* bytes, int64_t count, int peer);
  absl::Status ReceiveBytes(void* bytes, int64_t count, int peer);

 private:
  template <typename Operation>
  absl::Status Run(Operation operation);

  comm::Communicator& ranks_;
  Ledger& ledger_;
};

}  // namespace switchyard::worker
