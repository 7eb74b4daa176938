// The ledgers of all ranks of a step, brought together on the lead rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "switchyard/worker/v1/step.pb.h"

#include "comm/communicator.h"
#include "worker/ledger.h"

namespace switchyard::worker {

// One rank's part. The others send theirs at the end of each step, a few hundred bytes, right
// behind their last exchange: the lead finds them there, or waits for a rank that it would have
// waited for in the next step.
//
// Call order: for each part of a step Close(), then Send(); on the lead rank Collect() for each
//             part, then Close() and Report().
// Threads:    the step thread.
class RankLedgers {
 public:
  // `ranks` must outlive the object.
  RankLedgers(comm::Communicator& ranks, int lead_rank);

  // Takes this rank's ledger, with what the links have brought since the last call.
  void Close(const Ledger& ledger, double seconds, double idle_seconds);

  // Errors: those of the communicator.
  absl::Status Send();
  // Takes what the others have sent for a part.
  // Errors: those of the communicator.
  absl::Status Collect();
  // Adds the sums of all ranks since the last call to the result.
  void Report(v1::StepResult& result);

 private:
  // Travel as bytes: all ranks are the same program.
  struct StageLine {
    double seconds;
    int64_t weight_bytes, peer_bytes;
  };
  struct Head {
    double seconds, idle_seconds;
    std::array<StageLine, v1::Stage_ARRAYSIZE> stages;
  };
  struct PeerLine {
    int64_t num_bytes, num_messages;
    double transfer_seconds, flight_seconds;
  };

  // What a rank has done since the last Report().
  struct Sum {
    Head head = {};
    std::vector<PeerLine> peers;
  };

  static void Fill(int rank, const Sum& sum, v1::RankCost& cost);
  void Add(int rank, const std::vector<std::byte>& bytes);

  comm::Communicator& ranks_;
  const int lead_rank_;
  std::vector<comm::PeerTotals> last_totals_;  // by peer
  std::vector<std::byte> own_, other_;         // Head, then a PeerLine for every rank
  std::vector<Sum> sums_;                      // by rank; on the lead rank
};

}  // namespace switchyard::worker
