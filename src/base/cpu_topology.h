// Which CPUs this process may use, how they are grouped, and how many threads are worth starting.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace switchyard {

// One physical core that has at least one allowed CPU.
struct CpuCore {
  int cpu = 0;        // the lowest allowed CPU (hardware thread) of the core, as Linux numbers it
  int l3_domain = 0;  // cores with the same number share a last-level cache; 0 if none is shown
  int package = 0;    // socket
  int numa_node = 0;
};

// How far apart the caches of two cores are: 0 = they share a last-level cache, 1 = the same memory
// node, 2 = the same socket, 3 = further.
int Distance(const CpuCore& a, const CpuCore& b);

struct CpuTopology {
  std::vector<int> allowed_cpus;  // hardware threads, ascending
  std::vector<CpuCore> cores;     // ascending by cpu; never empty
};

// Hardware threads that the affinity mask of the calling thread allows (cpusets included), in
// ascending order; never empty.
std::vector<int> AllowedCpus();

// Reads the topology of the allowed CPUs. Takes milliseconds; call it once at start. If the
// hardware cannot be read, each allowed CPU counts as a core, all in one domain.
CpuTopology ReadCpuTopology();

// The cores in the order in which threads should take them: round robin over the L3 domains, since
// each domain has a link to memory of its own.
std::vector<CpuCore> SpreadOverDomains(const std::vector<CpuCore>& cores);

// Runs the calling thread on `cpu` only. Returns false, and changes nothing, if that is refused.
// Allocates nothing for the first thousand CPUs.
bool PinThisThread(int cpu);

// How many threads should compute, and why.
struct CpuBudget {
  int num_threads = 1;
  std::string reason;  // for the log: "2 of 2 cores allowed", "CPU quota 1.5 of 8 cores allowed"
  // The allowed cores in the order of use; may be more than num_threads.
  std::vector<CpuCore> cores;
  bool has_siblings = false;  // some core has more than one allowed hardware thread
};

// Derives the budget: one thread per allowed physical core (two hardware threads of a core share
// its arithmetic units), from eight cores on less a reserve of two for what serves the requests,
// and no more than the CPU quota: threads over the quota are stopped together, mid-stage.
//
// Units: `quota` in CPUs, nothing if there is no limit; rounded down, but at least 1.
CpuBudget MakeCpuBudget(const CpuTopology& topology, std::optional<double> quota);

// The budget of this process here and now.
CpuBudget DefaultCpuBudget();

// Returns a warning if `num_threads` is more than the budget, else nothing. A user's number is
// obeyed all the same.
std::optional<std::string> ThreadCountWarning(int num_threads, const CpuBudget& budget);

// Cores to pin `num_threads` threads to. If there are fewer, they are used in turn: a ThreadPool
// runs no more threads than there are CPUs. Empty (do not pin) if that would leave hardware threads
// without use, and for one thread, which has no peers to keep away from and is best moved about by
// the kernel.
std::vector<CpuCore> CoresForThreads(int num_threads, const CpuBudget& budget);

}  // namespace switchyard
