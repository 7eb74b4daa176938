// Carries the events of one generation from the engine's thread to a slower writer.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>

#include "coordinator/generator.h"

namespace switchyard::coordinator {

// What waits is merged into one event, so that a stream never blocks a step, and memory is bounded.
//
// Threads: Push() from one thread, Take() from another.
class EventBuffer {
 public:
  // `max_bytes`: text, tokens and their details that may wait.
  explicit EventBuffer(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Adds an event. False: more than max_bytes would wait. From then on the stream has a hole, so
  // nothing more is taken but the last event, and that without its text and tokens. A last event
  // that is itself the one too many is taken whole.
  bool Push(const GenerationEvent& event);

  // Everything that waits: text and tokens appended, usage, timings and progress the latest, costs
  // added. The last event comes by itself where both have costs, since its costs are totals: so
  // call until nothing is returned.
  std::optional<GenerationEvent> Take();

 private:
  const size_t max_bytes_;
  std::mutex mutex_;
  std::optional<GenerationEvent> waiting_;
  std::optional<GenerationEvent> last_;  // only where it must not be merged
  size_t num_bytes_ = 0;                 // of waiting_
  bool has_overflowed_ = false;
};

}  // namespace switchyard::coordinator
