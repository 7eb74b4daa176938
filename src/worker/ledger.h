// Where the time of one step went: one line for each stage of worker/v1/step.proto.
#pragma once

#include <array>
#include <cstddef>

#include "switchyard/worker/v1/step.pb.h"

#include "kernels/ledger_slot.h"

namespace switchyard::worker {

class Ledger {
 public:
  kernels::LedgerSlot& operator[](v1::Stage stage) { return slots_[static_cast<size_t>(stage)]; }
  const kernels::LedgerSlot& operator[](v1::Stage stage) const {
    return slots_[static_cast<size_t>(stage)];
  }

  void Reset() { slots_.fill({}); }

  // Adds a line to `result` for every stage that took part. What no stage covers of
  // `step_seconds` goes to STAGE_UNSPECIFIED.
  void Report(double step_seconds, v1::StepResult& result) {
    double covered = 0;
    for (const kernels::LedgerSlot& slot : slots_) covered += slot.seconds;
    (*this)[v1::STAGE_UNSPECIFIED].seconds += step_seconds > covered ? step_seconds - covered : 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].seconds == 0 && slots_[i].weight_bytes == 0) continue;
      v1::StageCost& cost = *result.add_costs();
      cost.set_stage(static_cast<v1::Stage>(i));
      cost.set_seconds(slots_[i].seconds);
      cost.set_weight_bytes(static_cast<uint64_t>(slots_[i].weight_bytes));
      cost.set_peer_bytes(static_cast<uint64_t>(slots_[i].peer_bytes));
    }
  }

 private:
  std::array<kernels::LedgerSlot, v1::Stage_ARRAYSIZE> slots_;
};

}  // namespace switchyard::worker
