#include "comm/wait_plan.h"

#include <sched.h>
#include <set>
#include <unistd.h>

#include "base/cpu_topology.h"

namespace switchyard::comm {

std::vector<int> ProcessCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails on hosts with more CPUs than the set holds.
  if (sched_getaffinity(getpid(), sizeof(set), &set) != 0) return AllowedCpus();
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

int64_t SpinBudgetNs(WaitPolicy policy, const std::vector<RankThreads>& local_ranks, double quota) {
  switch (policy) {
    case WaitPolicy::kBlock:
      return 0;
    case WaitPolicy::kSpin:
      return kSpinNs;
    case WaitPolicy::kAuto:
      break;
  }
  std::set<int> cpus;
  int num_threads = 0;
  for (const RankThreads& rank : local_ranks) {
    cpus.insert(rank.allowed_cpus.begin(), rank.allowed_cpus.end());
    num_threads += rank.num_compute_threads;
  }
  double usable = static_cast<double>(cpus.size());
  if (quota > 0 && quota < usable) usable = quota;
  return num_threads <= usable ? kSpinNs : 0;
}

}  // namespace switchyard::comm
