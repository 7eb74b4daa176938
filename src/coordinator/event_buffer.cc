#include "coordinator/event_buffer.h"

#include <iterator>
#include <utility>
#include <vector>

namespace switchyard::coordinator {
namespace {

size_t SizeOf(const GenerationEvent& event) {
  size_t bytes = event.text.size() + event.token_ids.size() * sizeof(int32_t) +
                 event.logits.size() * sizeof(float);
  for (const TokenInfo& info : event.logprobs) {
    bytes += sizeof(info) + info.top.size() * sizeof(info.top[0]);
  }
  return bytes;
}

template <typename T>
void Prepend(std::vector<T>& tail, std::vector<T>& head) {
  head.insert(head.end(), std::make_move_iterator(tail.begin()),
              std::make_move_iterator(tail.end()));
  tail = std::move(head);
}

// Puts what `earlier` has before `later`, whose state holds.
void Merge(GenerationEvent earlier, GenerationEvent& later) {
  earlier.text += later.text;
  later.text = std::move(earlier.text);
  Prepend(later.token_ids, earlier.token_ids);
  Prepend(later.logprobs, earlier.logprobs);
  Prepend(later.logits, earlier.logits);
  later.started |= earlier.started;
  if (!later.finished) later.costs += earlier.costs;  // the last one's are totals already
}

}  // namespace

bool EventBuffer::Push(const GenerationEvent& event) {
  std::lock_guard lock(mutex_);
  if (!event.finished && num_bytes_ + SizeOf(event) > max_bytes_) has_overflowed_ = true;
  if (has_overflowed_ && !event.finished) return false;
  GenerationEvent added = event;
  if (has_overflowed_) {
    added.text.clear();
    added.token_ids.clear();
    added.logprobs.clear();
    added.logits.clear();
  }
  if (added.finished && waiting_ && waiting_->costs.num_steps > 0) {
    last_ = std::move(added);
    return !has_overflowed_;
  }
  num_bytes_ += SizeOf(added);
  if (waiting_) Merge(std::move(*waiting_), added);
  waiting_ = std::move(added);
  return !has_overflowed_;
}

std::optional<GenerationEvent> EventBuffer::Take() {
  std::lock_guard lock(mutex_);
  num_bytes_ = 0;
  if (waiting_) return std::exchange(waiting_, std::nullopt);
  return std::exchange(last_, std::nullopt);
}

}  // namespace switchyard::coordinator
