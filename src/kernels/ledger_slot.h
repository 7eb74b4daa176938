// One line of a step's ledger, stamped by the stage that it is handed to.
#pragma once

#include <cstdint>

namespace switchyard::kernels {

struct LedgerSlot {
  double seconds = 0;        // on the step thread
  int64_t weight_bytes = 0;  // bytes of weights read, as stored in memory
  int64_t peer_bytes = 0;    // received from other ranks
};

}  // namespace switchyard::kernels
