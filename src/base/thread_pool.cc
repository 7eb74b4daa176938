// Fork-join stages on an epoch word, without a barrier that every worker must reach.
//
// A stage is over when all its tasks have run, not when all workers have looked at it: a worker
// that was asleep or preempted costs nothing, because the others take its range. The price is that
// such a worker may arrive when a later stage is being set up. What makes that safe is the range
// word: it carries the epoch of the stage, a claim is a compare-and-swap on the whole word, and so
// a claim can only succeed while its stage is open. A stage with an unfinished claim cannot close,
// hence everything read after a successful claim belongs to the claimed stage.
//
// What can cost is a worker that loses its CPU between a claim and the end of the task: all others
// wait. The caller notices (LateWatch) and has that worker rest.
#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <limits>
#include <optional>
#include <pthread.h>
#include <sys/resource.h>
#include <thread>
#include <time.h>

#include "base/check.h"
#include "base/futex.h"
#include "base/late_watch.h"
#include "base/log.h"

namespace switchyard {
namespace {

using Duration = std::chrono::nanoseconds;

constexpr int kCacheLineBytes = 64;

// Longer than a stage of decode, shorter than a scheduler quantum (1 to 4 ms).
constexpr Duration kSpinTime = std::chrono::microseconds(50);
constexpr Duration kNever = Duration::max();

Duration Now() { return std::chrono::steady_clock::now().time_since_epoch(); }

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Spins until `done()` holds or `limit` has passed; returns what done() said last.
template <typename Done>
bool SpinUntil(Duration limit, Done done) {
  // A clock read costs about as much as one or two pauses; thirty-two of them hide it.
  constexpr int kPausesPerClockRead = 32;
  if (done()) return true;
  if (limit.count() == 0) return false;
  const Duration end = Now() + limit;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      Pause();
      if (done()) return true;
    }
  } while (Now() < end);
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
  int64_t end = 0;  // behind the last task; of the claimed stage once a claim has succeeded
};

// What a thread says of itself; the caller looks at it when a stage takes long.
struct alignas(kCacheLineBytes) Report {
  std::atomic<uint32_t> holds{0};       // the stage whose tasks it has claimed and not handed in
  std::atomic<uint32_t> finished{0};    // the last stage in which it ran tasks,
  std::atomic<int64_t> finished_at{0};  // and when it found no more, in nanoseconds
};

enum RestState : uint32_t {
  kWorks = 0,
  kSpare = 1,  // there are more threads than CPUs
  kLate = 2,   // something else has its CPU
};

struct alignas(kCacheLineBytes) Rest {
  std::atomic<uint32_t> state{kWorks};
};

// Tasks of the ranges of one domain's threads that have not run yet.
struct alignas(kCacheLineBytes) Pending {
  std::atomic<uint32_t> num_tasks{0};
};

// Threads that share a last-level cache.
struct Domain {
  std::vector<int> threads;
  std::vector<int> others;  // the other domains, nearest first
};

std::vector<Domain> MakeDomains(const ThreadPool::Options& options, std::vector<int>& of_thread) {
  std::vector<Domain> domains;
  std::vector<CpuCore> first;  // one core of each
  for (int thread = 0; thread < options.num_threads; ++thread) {
    const CpuCore core =
        options.cores.empty() ? CpuCore() : options.cores[static_cast<size_t>(thread)];
    size_t d = 0;
    while (d < first.size() && first[d].l3_domain != core.l3_domain) ++d;
    if (d == first.size()) {
      first.push_back(core);
      domains.emplace_back();
    }
    domains[d].threads.push_back(thread);
    of_thread.push_back(static_cast<int>(d));
  }
  const int num_domains = static_cast<int>(domains.size());
  for (int d = 0; d < num_domains; ++d) {
    // From the next one on, so that the thieves of several domains do not all begin at one.
    for (int i = 1; i < num_domains; ++i) domains[d].others.push_back((d + i) % num_domains);
    std::stable_sort(domains[d].others.begin(), domains[d].others.end(), [&](int a, int b) {
      return Distance(first[d], first[a]) < Distance(first[d], first[b]);
    });
  }
  return domains;
}

// CPU time that a thread has had, or nothing where the system does not say.
std::optional<Duration> CpuTime(clockid_t clock) {
  timespec time;
  if (clock_gettime(clock, &time) != 0) return std::nullopt;
  return std::chrono::seconds(time.tv_sec) + Duration(time.tv_nsec);
}

// How often the calling thread lost its CPU to another.
int64_t NumPreemptions() {
  rusage usage;
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

}  // namespace

struct ThreadPool::Impl {
  // A worker that holds tasks the caller waits for.
  struct Holder {
    int thread = 0;
    std::optional<Duration> cpu_time;  // that it had had at `noticed_at`
  };

  explicit Impl(const Options& options);

  // Read by waiting workers, written once per stage.
  alignas(kCacheLineBytes) std::atomic<uint32_t> epoch{0};
  std::atomic<uint32_t> num_parked{0};
  std::atomic<bool> stop{false};

  // The open stage. Written by the caller while no claim can succeed.
  alignas(kCacheLineBytes) TaskFunction function = nullptr;
  void* context = nullptr;

  // Domains with pending tasks. Not used where there is one domain: its own counter says it all.
  alignas(kCacheLineBytes) std::atomic<uint32_t> num_pending_domains{0};
  std::atomic<uint32_t> caller_parked{0};

  // Constant after construction.
  alignas(kCacheLineBytes) std::vector<int> domain_of;  // [num_threads]
  std::vector<Domain> domains;
  std::vector<CpuCore> cores;  // [num_threads], or empty
  Duration late_after{};
  std::unique_ptr<Range[]> ranges;     // [num_threads]
  std::unique_ptr<Report[]> reports;   // [num_threads]
  std::unique_ptr<Rest[]> rests;       // [num_threads]
  std::unique_ptr<Pending[]> pending;  // [domains]
  std::vector<std::thread> workers;
  std::vector<std::optional<clockid_t>> cpu_clocks;  // [num_threads]; of the workers

  // The caller's.
  std::atomic<bool> in_stage{false};
  std::vector<int> active;            // threads that work; the caller is the first
  std::vector<uint32_t> num_pending;  // [domains]; while a stage is set up
  std::vector<Holder> holders;
  Duration noticed_at{};
  LateWatch watch;
  RetryTimer retry_timer;
  Duration retry_at = kNever;
  bool caller_pinned = false;
  bool caller_moved = false;  // to the core of a thread that rests
  int64_t num_preemptions = 0;
  // Read by others, written by the caller.
  std::atomic<int> num_running{1};
  std::atomic<int> num_active{1};
  std::atomic<int64_t> num_wakeups{0};
  std::atomic<int64_t> num_late{0};
  std::atomic<bool> has_told{false};

  // Runs one task of `owner`'s range, if one is left and the range is still of this stage.
  bool RunOne(int owner, int thread, uint32_t stage_epoch) {
    Range& range = ranges[owner];
    // Relaxed: the stage's data became visible with its epoch, and its end with the counters.
    uint64_t word = range.word.load(std::memory_order_relaxed);
    do {
      if (EpochOf(word) != stage_epoch || NumLeft(word) == 0) return false;
    } while (!range.word.compare_exchange_weak(word, word - 1, std::memory_order_relaxed));
    reports[thread].holds.store(stage_epoch, std::memory_order_relaxed);
    function(context, range.end - NumLeft(word), thread);
    return true;
  }

  // Runs single tasks of a domain's threads, each time of the one that has most left.
  uint32_t Steal(const Domain& domain, int thread, uint32_t stage_epoch) {
    uint32_t num_run = 0;
    for (;;) {
      int victim = -1;
      uint32_t most = 0;
      for (int owner : domain.threads) {
        const uint64_t word = ranges[owner].word.load(std::memory_order_relaxed);
        if (EpochOf(word) != stage_epoch || NumLeft(word) <= most) continue;
        most = NumLeft(word);
        victim = owner;
      }
      if (victim < 0) return num_run;
      if (RunOne(victim, thread, stage_epoch)) ++num_run;
    }
  }

  std::atomic<uint32_t>& LastWord() {
    return domains.size() == 1 ? pending[0].num_tasks : num_pending_domains;
  }

  // Counts tasks of a domain as done and, behind the last of all, wakes the caller.
  void HandIn(int domain, uint32_t num_run) {
    if (num_run == 0) return;
    if (pending[domain].num_tasks.fetch_sub(num_run, std::memory_order_seq_cst) != num_run) return;
    if (domains.size() > 1 && num_pending_domains.fetch_sub(1, std::memory_order_seq_cst) != 1) {
      return;
    }
    // Ordered with WaitForTasks(): either we see that the caller sleeps or it sees zero.
    if (caller_parked.load(std::memory_order_seq_cst) != 0) FutexWakeAll(LastWord());
  }

  // Runs this thread's range, then what it can take from the others. Returns whether it ran any.
  bool RunStage(int thread, uint32_t stage_epoch) {
    const int home = domain_of[thread];
    uint32_t num_run = 0;
    while (RunOne(thread, thread, stage_epoch)) ++num_run;
    num_run += Steal(domains[home], thread, stage_epoch);
    HandIn(home, num_run);
    bool any = num_run != 0;
    for (int other : domains[home].others) {
      num_run = Steal(domains[other], thread, stage_epoch);
      HandIn(other, num_run);
      any |= num_run != 0;
    }
    return any;
  }

  // ---- the caller's side ----------------------------------------------------------------------

  void RunAsCaller(int64_t num_tasks, TaskFunction task_function, void* task_context);
  void OpenStage(uint32_t stage_epoch, int64_t num_tasks);
  Duration WaitForTasks(Duration ran_at, Duration patience, uint32_t stage_epoch);
  void NoticeHolders(uint32_t stage_epoch);
  void JudgeHolders(Duration ran_at, Duration ended_at);
  void JudgeCaller(Duration started_at, Duration ran_at, int64_t num_tasks, uint32_t stage_epoch);
  void SendToRest(int thread, Duration now);
  void UseAllThreads();

  // How long tasks may take that were claimed at most `elapsed` after the start of their stage,
  // before their thread counts as late: twice the mean of the stage's tasks is no news.
  Duration Patience(Duration elapsed, int64_t num_tasks) const {
    if (late_after.count() == 0) return kNever;
    return late_after + 2 * elapsed * static_cast<int64_t>(active.size()) / num_tasks;
  }

  // Makes everything written before visible to the workers and wakes up to `num_wanted` of those
  // that sleep. Ordered with WaitForEpoch(): either we see it parked or it sees the new epoch.
  void Publish(uint32_t new_epoch, int num_wanted) {
    epoch.store(new_epoch, std::memory_order_seq_cst);
    if (num_parked.load(std::memory_order_seq_cst) == 0) return;
    num_wakeups.fetch_add(FutexWake(epoch, num_wanted), std::memory_order_relaxed);
  }

  // ---- a worker's side ------------------------------------------------------------------------

  // Returns the newest epoch once it differs from `last`.
  uint32_t WaitForEpoch(uint32_t last) {
    const auto changed = [this, last] { return epoch.load(std::memory_order_acquire) != last; };
    if (!SpinUntil(kSpinTime, changed)) {
      num_parked.fetch_add(1, std::memory_order_seq_cst);
      while (epoch.load(std::memory_order_seq_cst) == last) FutexWait(epoch, last);
      num_parked.fetch_sub(1, std::memory_order_relaxed);
    }
    return epoch.load(std::memory_order_acquire);
  }

  // Sleeps while the thread is to rest. It is the worker that tells the user: a step logs nothing.
  void RestIfTold(int thread) {
    std::atomic<uint32_t>& state = rests[thread].state;
    for (;;) {
      const uint32_t told = state.load(std::memory_order_acquire);
      if (told == kWorks) return;
      if (told == kLate && !has_told.exchange(true, std::memory_order_relaxed)) {
        LogInfo("other work has the CPU of a pool thread: {} of {} threads compute for a while",
                num_active.load(std::memory_order_relaxed), domain_of.size());
      }
      FutexWait(state, told);
    }
  }

  void WorkerMain(int thread) {
    char name[16];  // the kernel's limit
    std::snprintf(name, sizeof(name), "pool-%d", thread);
    pthread_setname_np(pthread_self(), name);
    if (!cores.empty() && !PinThisThread(cores[thread].cpu)) {
      LogWarning("pool thread {} runs unpinned: CPU {} is not allowed", thread, cores[thread].cpu);
    }
    uint32_t seen = 0;
    for (;;) {
      RestIfTold(thread);
      seen = WaitForEpoch(seen);
      if (stop.load(std::memory_order_relaxed)) return;
      if (rests[thread].state.load(std::memory_order_relaxed) != kWorks) {
        // Told to rest while it slept here. Whom the caller meant to wake may still sleep.
        if (num_parked.load(std::memory_order_seq_cst) != 0) FutexWake(epoch, 1);
        continue;
      }
      if (!RunStage(thread, seen)) continue;
      Report& report = reports[thread];
      report.holds.store(0, std::memory_order_relaxed);
      report.finished_at.store(Now().count(), std::memory_order_relaxed);
      report.finished.store(seen, std::memory_order_release);
    }
  }
};

ThreadPool::Impl::Impl(const Options& options)
    : domains(MakeDomains(options, domain_of)),  // fills domain_of, which comes before
      cores(options.cores),
      late_after(options.late_after),
      watch(options.num_threads),
      retry_timer(options.retry_after) {
  const int num_threads = options.num_threads;
  const int most =
      options.num_running > 0 ? options.num_running : static_cast<int>(AllowedCpus().size());
  ranges = std::make_unique<Range[]>(num_threads);
  reports = std::make_unique<Report[]>(num_threads);
  rests = std::make_unique<Rest[]>(num_threads);
  pending = std::make_unique<Pending[]>(domains.size());
  num_pending.resize(domains.size());
  holders.reserve(num_threads);
  active.reserve(num_threads);
  num_running = std::min(num_threads, most);
  UseAllThreads();
}

ThreadPool::ThreadPool(const Options& options) : num_threads_(options.num_threads) {
  SWITCHYARD_CHECK(num_threads_ >= 1);
  SWITCHYARD_CHECK(options.cores.empty() ||
                   options.cores.size() >= static_cast<size_t>(num_threads_));
  impl_ = std::make_unique<Impl>(options);
  impl_->workers.reserve(num_threads_ - 1);
  impl_->cpu_clocks.resize(num_threads_);
  for (int thread = 1; thread < num_threads_; ++thread) {
    impl_->workers.emplace_back([impl = impl_.get(), thread] { impl->WorkerMain(thread); });
    clockid_t clock;
    if (pthread_getcpuclockid(impl_->workers.back().native_handle(), &clock) == 0) {
      impl_->cpu_clocks[thread] = clock;
    }
  }
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true, std::memory_order_relaxed);
  for (int thread = 1; thread < num_threads_; ++thread) {
    impl_->rests[thread].state.store(kWorks, std::memory_order_release);
    FutexWakeAll(impl_->rests[thread].state);
  }
  impl_->Publish(impl_->epoch.load(std::memory_order_relaxed) + 1, num_threads_);
  for (std::thread& worker : impl_->workers) worker.join();
}

void ThreadPool::SetNumRunning(int num_running) {
  SWITCHYARD_CHECK(num_running >= 1 && num_running <= num_threads_);
  impl_->num_running.store(num_running, std::memory_order_relaxed);
  impl_->UseAllThreads();
}

int ThreadPool::num_running() const { return impl_->num_running.load(std::memory_order_relaxed); }

int ThreadPool::num_active() const { return impl_->num_active.load(std::memory_order_relaxed); }

int64_t ThreadPool::num_wakeups() const {
  return impl_->num_wakeups.load(std::memory_order_relaxed);
}

int64_t ThreadPool::num_late() const { return impl_->num_late.load(std::memory_order_relaxed); }

void ThreadPool::PinCaller() {
  if (impl_->cores.empty()) return;
  impl_->caller_pinned = PinThisThread(impl_->cores[0].cpu);
  if (impl_->caller_pinned) return;
  LogWarning("the step thread runs unpinned: CPU {} is not allowed", impl_->cores[0].cpu);
}

void ThreadPool::Run(int64_t num_tasks, TaskFunction function, void* context) {
  Impl& impl = *impl_;
  SWITCHYARD_CHECK(num_tasks >= 0 && num_tasks <= std::numeric_limits<uint32_t>::max());
  // A stage inside a task, or of a second thread, would overwrite the open one.
  const bool nested = impl.in_stage.exchange(true, std::memory_order_acquire);
  SWITCHYARD_CHECK(!nested);
  const bool divides = num_threads_ > 1 && num_tasks > 1;
  if (divides) ++num_barriers_;
  if (divides && num_running() > 1) {
    impl.RunAsCaller(num_tasks, function, context);
  } else {
    for (int64_t task = 0; task < num_tasks; ++task) function(context, task, 0);
  }
  impl.in_stage.store(false, std::memory_order_release);
}

void ThreadPool::Impl::RunAsCaller(int64_t num_tasks, TaskFunction task_function,
                                   void* task_context) {
  const Duration started_at = Now();
  if (started_at >= retry_at) {
    retry_timer.OnRetry(started_at);
    UseAllThreads();
  }
  if (active.size() == 1) {
    for (int64_t task = 0; task < num_tasks; ++task) task_function(task_context, task, 0);
    return;
  }
  function = task_function;
  context = task_context;
  const uint32_t stage_epoch = epoch.load(std::memory_order_relaxed) + 1;
  OpenStage(stage_epoch, num_tasks);
  const int64_t num_workers = static_cast<int64_t>(active.size()) - 1;
  Publish(stage_epoch, static_cast<int>(std::min(num_workers, num_tasks - 1)));
  RunStage(0, stage_epoch);
  const Duration ran_at = Now();
  const Duration patience = Patience(ran_at - started_at, num_tasks);
  const Duration ended_at = WaitForTasks(ran_at, patience, stage_epoch);
  if (late_after.count() == 0) return;
  if (!holders.empty()) JudgeHolders(ran_at, ended_at);
  if (ran_at - started_at > late_after) JudgeCaller(started_at, ran_at, num_tasks, stage_epoch);
  const auto resting = watch.OnStage(ended_at - started_at, static_cast<int>(active.size()));
  if (resting.has_value()) SendToRest(*resting, ended_at);
}

// Divides the tasks into one range for each thread that works.
void ThreadPool::Impl::OpenStage(uint32_t stage_epoch, int64_t num_tasks) {
  const int64_t num_ranges = static_cast<int64_t>(active.size());
  std::fill(num_pending.begin(), num_pending.end(), 0);
  int64_t begin = 0;
  for (int64_t i = 0; i < num_ranges; ++i) {
    const int thread = active[static_cast<size_t>(i)];
    const int64_t end = (i + 1) * num_tasks / num_ranges;
    const auto num_own = static_cast<uint32_t>(end - begin);
    num_pending[domain_of[thread]] += num_own;
    ranges[thread].end = end;
    ranges[thread].word.store(PackRange(stage_epoch, num_own), std::memory_order_relaxed);
    begin = end;
  }
  uint32_t num_domains = 0;
  for (size_t d = 0; d < domains.size(); ++d) {
    pending[d].num_tasks.store(num_pending[d], std::memory_order_relaxed);
    if (num_pending[d] != 0) ++num_domains;
  }
  num_pending_domains.store(num_domains, std::memory_order_relaxed);
}

// Returns when all tasks have run, and the time. What keeps them longer than `patience` after
// `ran_at` is in `holders` then.
Duration ThreadPool::Impl::WaitForTasks(Duration ran_at, Duration patience, uint32_t stage_epoch) {
  std::atomic<uint32_t>& word = LastWord();
  const auto done = [&word] { return word.load(std::memory_order_acquire) == 0; };
  holders.clear();
  if (done()) return ran_at;
  if (SpinUntil(kSpinTime, done)) return Now();
  bool is_patient = patience != kNever;
  caller_parked.store(1, std::memory_order_seq_cst);
  for (;;) {
    const uint32_t num_left = word.load(std::memory_order_seq_cst);
    if (num_left == 0) break;
    if (!is_patient) {
      FutexWait(word, num_left);
      continue;
    }
    const Duration left = ran_at + patience - Now();
    if (left.count() > 0) {
      FutexWaitFor(word, num_left, left);
    } else {
      NoticeHolders(stage_epoch);
      is_patient = false;
    }
  }
  caller_parked.store(0, std::memory_order_relaxed);
  return Now();
}

void ThreadPool::Impl::NoticeHolders(uint32_t stage_epoch) {
  noticed_at = Now();
  for (int thread : active) {
    if (thread == 0 || reports[thread].holds.load(std::memory_order_relaxed) != stage_epoch) {
      continue;
    }
    const auto clock = cpu_clocks[thread];
    holders.push_back({thread, clock.has_value() ? CpuTime(*clock) : std::nullopt});
  }
}

// A long task is no delay: late is who had no CPU for most of the time it was waited for.
void ThreadPool::Impl::JudgeHolders(Duration ran_at, Duration ended_at) {
  for (const Holder& holder : holders) {
    if (holder.cpu_time.has_value()) {
      const auto cpu_time = CpuTime(*cpu_clocks[holder.thread]);
      if (cpu_time.has_value() && 2 * (*cpu_time - *holder.cpu_time) > ended_at - noticed_at) {
        continue;
      }
    }
    watch.OnLate(holder.thread, ended_at - ran_at);
    num_late.fetch_add(1, std::memory_order_relaxed);
  }
}

// The caller is late if the workers had nothing left to do long before it ended its last task, and
// it has lost its CPU since the last look.
void ThreadPool::Impl::JudgeCaller(Duration started_at, Duration ran_at, int64_t num_tasks,
                                   uint32_t stage_epoch) {
  Duration idle_since{};
  for (int thread : active) {
    const Report& report = reports[thread];
    if (report.finished.load(std::memory_order_acquire) != stage_epoch) continue;
    const Duration finished_at(report.finished_at.load(std::memory_order_relaxed));
    idle_since = std::max(idle_since, finished_at);
  }
  if (idle_since < started_at) return;  // no worker took part
  if (ran_at - idle_since <= Patience(idle_since - started_at, num_tasks)) return;
  const int64_t before = std::exchange(num_preemptions, NumPreemptions());
  if (num_preemptions == before) return;
  watch.OnLate(0, ran_at - idle_since);
  num_late.fetch_add(1, std::memory_order_relaxed);
}

// The caller cannot rest; if it is the one that is late, it takes the core of another.
void ThreadPool::Impl::SendToRest(int thread, Duration now) {
  if (active.size() == 1) return;
  if (thread == 0) {
    thread = active.back();
    if (caller_pinned) caller_moved = PinThisThread(cores[thread].cpu);
  }
  active.erase(std::find(active.begin(), active.end(), thread));
  num_active.store(static_cast<int>(active.size()), std::memory_order_relaxed);
  rests[thread].state.store(kLate, std::memory_order_release);
  retry_at = retry_timer.OnRest(now);
}

// All that are to run, that is.
void ThreadPool::Impl::UseAllThreads() {
  const int num_wanted = num_running.load(std::memory_order_relaxed);
  if (caller_moved) caller_moved = !PinThisThread(cores[0].cpu);
  active.clear();
  for (int thread = 0; thread < static_cast<int>(domain_of.size()); ++thread) {
    const bool works = thread < num_wanted;
    if (works) active.push_back(thread);
    std::atomic<uint32_t>& state = rests[thread].state;
    if (state.exchange(works ? kWorks : kSpare, std::memory_order_release) != kWorks) {
      FutexWakeAll(state);
    }
  }
  num_active.store(num_wanted, std::memory_order_relaxed);
  retry_at = kNever;
}

}  // namespace switchyard
