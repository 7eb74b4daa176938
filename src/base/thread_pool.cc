// Fork-join stages on an epoch word, without a barrier that every worker must reach.
//
// A stage is over when all its tasks have run, not when all workers have looked at it: a worker
// that was asleep or preempted costs nothing, because the others take its range. The price is that
// such a worker may arrive when a later stage is being set up. What makes that safe is the range
// word: it carries the epoch of the stage, a claim is a compare-and-swap on the whole word, and so
// a claim can only succeed while its stage is open. A stage with an unfinished claim cannot close,
// hence everything read after a successful claim belongs to the claimed stage.
#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <limits>
#include <pthread.h>
#include <thread>

#include "base/check.h"
#include "base/cpu_topology.h"
#include "base/futex.h"
#include "base/log.h"

namespace switchyard {
namespace {

constexpr int kCacheLineBytes = 64;

// Longer than a stage of decode, shorter than a scheduler quantum (1 to 4 ms).
constexpr std::chrono::nanoseconds kSpinTime = std::chrono::microseconds(50);

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Spins until `done()` holds or `limit` has passed; returns what done() said last.
template <typename Done>
bool SpinUntil(std::chrono::nanoseconds limit, Done done) {
  // A clock read costs about as much as one or two pauses; thirty-two of them hide it.
  constexpr int kPausesPerClockRead = 32;
  if (done()) return true;
  if (limit.count() == 0) return false;
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      Pause();
      if (done()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// One thread's share of a stage: high half the epoch, low half the number of tasks left in it.
// Tasks are taken from the front, so that the owner walks forward through memory; thieves take
// from the same end.
constexpr uint64_t PackRange(uint32_t epoch, uint32_t num_left) {
  return static_cast<uint64_t>(epoch) << 32 | num_left;
}
constexpr uint32_t EpochOf(uint64_t range) { return static_cast<uint32_t>(range >> 32); }
constexpr uint32_t NumLeft(uint64_t range) { return static_cast<uint32_t>(range); }

struct alignas(kCacheLineBytes) Range {
  std::atomic<uint64_t> word{0};
};

}  // namespace

struct ThreadPool::Impl {
  // Read by waiting workers, written once per stage.
  alignas(kCacheLineBytes) std::atomic<uint32_t> epoch{0};
  std::atomic<uint32_t> num_parked{0};
  std::atomic<bool> stop{false};

  // The open stage. Written by the caller while no claim can succeed.
  alignas(kCacheLineBytes) TaskFunction function = nullptr;
  void* context = nullptr;
  int64_t num_tasks = 0;

  // Tasks that have not run yet; a thread subtracts what it ran when it finds nothing more.
  alignas(kCacheLineBytes) std::atomic<uint32_t> num_pending{0};
  std::atomic<uint32_t> caller_parked{0};

  alignas(kCacheLineBytes) std::atomic<bool> in_stage{false};
  int num_threads = 1;
  std::chrono::nanoseconds spin_time = kSpinTime;
  std::unique_ptr<Range[]> ranges;  // [num_threads]
  std::vector<std::thread> workers;

  int64_t RangeEnd(int thread) const { return (thread + 1) * num_tasks / num_threads; }
  int64_t RangeBegin(int thread) const { return thread * num_tasks / num_threads; }

  // Runs tasks of `owner`'s range until it is empty or no longer of this stage. The owner takes
  // them one after another; so do thieves, hence the last tasks spread over all idle threads.
  uint32_t RunRange(int owner, int thread, uint32_t stage_epoch) {
    std::atomic<uint64_t>& word = ranges[owner].word;
    uint32_t num_run = 0;
    // Relaxed: the stage's data became visible with its epoch, and its end with num_pending.
    uint64_t range = word.load(std::memory_order_relaxed);
    while (EpochOf(range) == stage_epoch && NumLeft(range) > 0) {
      if (!word.compare_exchange_weak(range, range - 1, std::memory_order_relaxed)) continue;
      function(context, RangeEnd(owner) - NumLeft(range), thread);
      ++num_run;
      range = word.load(std::memory_order_relaxed);
    }
    return num_run;
  }

  // Runs this thread's range, then what it can take from the others, nearest neighbour first.
  void RunStage(int thread, uint32_t stage_epoch) {
    uint32_t num_run = 0;
    for (int i = 0; i < num_threads; ++i) {
      num_run += RunRange((thread + i) % num_threads, thread, stage_epoch);
    }
    if (num_run == 0) return;
    const uint32_t before = num_pending.fetch_sub(num_run, std::memory_order_seq_cst);
    // Ordered with WaitForTasks(): either we see that the caller sleeps or it sees zero.
    if (before == num_run && caller_parked.load(std::memory_order_seq_cst) != 0) {
      FutexWakeAll(num_pending);
    }
  }

  void WaitForTasks() {
    const auto done = [this] { return num_pending.load(std::memory_order_acquire) == 0; };
    if (SpinUntil(spin_time, done)) return;
    caller_parked.store(1, std::memory_order_seq_cst);
    for (;;) {
      const uint32_t pending = num_pending.load(std::memory_order_seq_cst);
      if (pending == 0) break;
      FutexWait(num_pending, pending);
    }
    caller_parked.store(0, std::memory_order_relaxed);
  }

  // Makes everything written before visible to the workers and wakes up to `num_wanted` of those
  // that sleep. Ordered with WaitForEpoch(): either we see it parked or it sees the new epoch.
  void Publish(uint32_t new_epoch, int num_wanted) {
    epoch.store(new_epoch, std::memory_order_seq_cst);
    if (num_parked.load(std::memory_order_seq_cst) != 0) FutexWake(epoch, num_wanted);
  }

  // Returns the newest epoch once it differs from `last`.
  uint32_t WaitForEpoch(uint32_t last) {
    const auto changed = [this, last] { return epoch.load(std::memory_order_acquire) != last; };
    if (!SpinUntil(spin_time, changed)) {
      num_parked.fetch_add(1, std::memory_order_seq_cst);
      while (epoch.load(std::memory_order_seq_cst) == last) FutexWait(epoch, last);
      num_parked.fetch_sub(1, std::memory_order_relaxed);
    }
    return epoch.load(std::memory_order_acquire);
  }

  void WorkerMain(int thread, int cpu) {
    char name[16];  // the kernel's limit
    std::snprintf(name, sizeof(name), "pool-%d", thread);
    pthread_setname_np(pthread_self(), name);
    if (cpu >= 0 && !PinThisThread(cpu)) {
      LogWarning("pool thread {} runs unpinned: CPU {} is not allowed", thread, cpu);
    }
    uint32_t seen = 0;
    for (;;) {
      seen = WaitForEpoch(seen);
      if (stop.load(std::memory_order_relaxed)) return;
      RunStage(thread, seen);
    }
  }
};

ThreadPool::ThreadPool(const Options& options)
    : num_threads_(options.num_threads), impl_(std::make_unique<Impl>()) {
  SWITCHYARD_CHECK(num_threads_ >= 1);
  SWITCHYARD_CHECK(options.cpus.empty() ||
                   options.cpus.size() >= static_cast<size_t>(num_threads_));
  impl_->num_threads = num_threads_;
  if (num_threads_ == 1) return;
  impl_->ranges = std::make_unique<Range[]>(num_threads_);
  // With more threads than CPUs a spinning thread keeps another from its work.
  if (num_threads_ > static_cast<int>(AllowedCpus().size())) {
    impl_->spin_time = std::chrono::nanoseconds(0);
  }
  impl_->workers.reserve(num_threads_ - 1);
  for (int thread = 1; thread < num_threads_; ++thread) {
    const int cpu = options.cpus.empty() ? -1 : options.cpus[thread];
    impl_->workers.emplace_back([this, thread, cpu] { impl_->WorkerMain(thread, cpu); });
  }
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true, std::memory_order_relaxed);
  impl_->Publish(impl_->epoch.load(std::memory_order_relaxed) + 1, num_threads_);
  for (std::thread& worker : impl_->workers) worker.join();
}

void ThreadPool::Run(int64_t num_tasks, TaskFunction function, void* context) {
  Impl& impl = *impl_;
  SWITCHYARD_CHECK(num_tasks >= 0 && num_tasks <= std::numeric_limits<uint32_t>::max());
  // A stage inside a task, or of a second thread, would overwrite the open one.
  const bool nested = impl.in_stage.exchange(true, std::memory_order_acquire);
  SWITCHYARD_CHECK(!nested);
  if (num_threads_ == 1 || num_tasks <= 1) {
    for (int64_t task = 0; task < num_tasks; ++task) function(context, task, 0);
  } else {
    ++num_barriers_;
    const uint32_t stage_epoch = impl.epoch.load(std::memory_order_relaxed) + 1;
    impl.function = function;
    impl.context = context;
    impl.num_tasks = num_tasks;
    impl.num_pending.store(static_cast<uint32_t>(num_tasks), std::memory_order_relaxed);
    for (int thread = 0; thread < num_threads_; ++thread) {
      const int64_t num_own = impl.RangeEnd(thread) - impl.RangeBegin(thread);
      impl.ranges[thread].word.store(PackRange(stage_epoch, static_cast<uint32_t>(num_own)),
                                     std::memory_order_relaxed);
    }
    impl.Publish(stage_epoch, static_cast<int>(std::min<int64_t>(num_threads_ - 1, num_tasks - 1)));
    impl.RunStage(0, stage_epoch);
    impl.WaitForTasks();
  }
  impl.in_stage.store(false, std::memory_order_release);
}

}  // namespace switchyard
