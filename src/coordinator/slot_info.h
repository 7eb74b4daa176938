// What a slot of the worker does, for people and monitors.
#pragma once

#include <cstdint>

namespace switchyard::coordinator {

enum class SequenceState {
  kWaiting,  // has no slot
  kPrefill,  // part of its tokens is not in a plan yet
  kDecode,   // all its tokens are planned; generates
};

// One row of the slot table.
struct SlotInfo {
  uint32_t slot = 0;
  uint64_t generation_id = 0;  // 0 = the slot is free, and all that follows has no meaning
  SequenceState state = SequenceState::kWaiting;
  int64_t prompt_tokens = 0;
  int64_t num_prefilled = 0;  // of the prompt, computed or reused
  int64_t completion_tokens = 0;
  double decode_per_second = 0;  // tokens after the first one by the time since it
};

}  // namespace switchyard::coordinator
