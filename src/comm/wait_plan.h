// How long a rank spins before it sleeps, from the wait policy and the CPUs of the host.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "comm/monotonic_clock.h"

namespace switchyard::comm {

// Spinning longer than this never pays: a sleeping peer takes 5 to 20 us to wake.
inline constexpr int64_t kSpinNs = 20'000;

// What one rank of this host says of itself when the group is formed.
struct RankThreads {
  int num_compute_threads = 1;
  std::vector<int> allowed_cpus;  // of the process
};

// CPUs that the affinity mask of this process's main thread allows. The calling thread may be bound
// to one of them already.
std::vector<int> ProcessCpus();

// Returns the spin budget. With kAuto it is zero if the threads that compute on this host are more
// than the CPUs that its ranks may use, or than the CPU quota: a spinning thread would then hold
// the core that the awaited rank needs.
//
// Units: `quota` in CPUs; zero or less = no limit.
int64_t SpinBudgetNs(WaitPolicy policy, const std::vector<RankThreads>& local_ranks, double quota);

// Spins before a sleep, for as long as that has helped lately. Where it does not help, as when
// something else has the peer's core, it is tried again only now and then.
class SpinGauge {
 public:
  explicit SpinGauge(int64_t budget_ns) : budget_ns_(budget_ns) {}

  // Returns true as soon as `ready` holds, false when the caller should sleep.
  template <typename Ready>
  bool SpinUntil(Ready ready) {
    if (ready()) return true;
    if (budget_ns_ == 0) return false;
    if (num_failures_ >= kMostFailures && ++num_skipped_ < kSkip) return false;
    num_skipped_ = 0;
    const int64_t end_ns = NowNs() + budget_ns_;
    do {
      for (int i = 0; i < 16; ++i) {
        if (ready()) {
          num_failures_ = 0;
          return true;
        }
        Pause();
      }
    } while (NowNs() < end_ns);
    ++num_failures_;
    return false;
  }

 private:
  static constexpr int kMostFailures = 8;
  static constexpr int kSkip = 64;

  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  const int64_t budget_ns_;
  int num_failures_ = 0;
  int num_skipped_ = 0;
};

}  // namespace switchyard::comm
