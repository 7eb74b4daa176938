#include "base/late_watch.h"

#include <algorithm>

namespace switchyard {
namespace {

// A share of one in a hundred shows in five of these; a step of decode has some hundred stages.
constexpr int kWindowStages = 512;
constexpr int kMostLate = kWindowStages / 100;
// Short stages of small models: a neighbour that takes the CPU every few milliseconds delays few of
// them, but for most of the time.
constexpr LateWatch::Duration kWindowTime = std::chrono::milliseconds(100);

// The longest time between two trials of all threads: a trial costs some late stages.
constexpr int kMostDelays = 64;

}  // namespace

void LateWatch::OnLate(int thread, Duration lost) {
  Thread& late = threads_[static_cast<size_t>(thread)];
  ++late.num_late;
  late.lost += lost;
  any_late_ = true;
  ++num_late_;
}

std::optional<int> LateWatch::OnStage(Duration elapsed, int num_active) {
  ++num_stages_;
  elapsed_ += elapsed;
  std::optional<int> worst;
  if (any_late_) {
    const auto most =
        std::max_element(threads_.begin(), threads_.end(),
                         [](const Thread& a, const Thread& b) { return a.num_late < b.num_late; });
    // One of k threads does a k-th of the work while it has a CPU. One that shares its CPU has it
    // half of the time at most, so it is worth at most 1 / 2k of the pool's time.
    if (most->num_late > kMostLate && most->lost * (2 * num_active) > elapsed_) {
      worst = static_cast<int>(most - threads_.begin());
    }
  }
  const bool is_over = num_stages_ >= kWindowStages && elapsed_ >= kWindowTime;
  if (worst.has_value() || is_over) Restart();
  return worst;
}

void LateWatch::Restart() {
  if (any_late_) std::fill(threads_.begin(), threads_.end(), Thread());
  num_stages_ = 0;
  any_late_ = false;
  elapsed_ = Duration(0);
}

RetryTimer::Duration RetryTimer::OnRest(Duration now) {
  // Soon after a trial: what disturbed is still there.
  const bool failed = retried_.has_value() && now - *retried_ < delay_;
  delay_ = failed ? std::min(2 * delay_, kMostDelays * first_) : first_;
  return now + delay_;
}

}  // namespace switchyard
