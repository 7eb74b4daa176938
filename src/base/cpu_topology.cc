#include "base/cpu_topology.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fmt/format.h>
#include <hwloc.h>
#include <map>
#include <memory>
#include <pthread.h>
#include <sched.h>
#include <type_traits>

#include "base/check.h"
#include "base/cpu_quota.h"

namespace switchyard {
namespace {

// cpu_set_t holds 1024 CPUs; larger hosts need a set of the size that the kernel asks for.
class CpuSet {
 public:
  explicit CpuSet(int num_cpus)
      : num_cpus_(num_cpus), bytes_(CPU_ALLOC_SIZE(num_cpus)), set_(CPU_ALLOC(num_cpus)) {
    SWITCHYARD_CHECK(set_ != nullptr);
    CPU_ZERO_S(bytes_, set_);
  }
  ~CpuSet() { CPU_FREE(set_); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;

  int num_cpus() const { return num_cpus_; }
  size_t bytes() const { return bytes_; }
  cpu_set_t* get() { return set_; }
  void Add(int cpu) { CPU_SET_S(cpu, bytes_, set_); }
  bool Has(int cpu) const { return CPU_ISSET_S(cpu, bytes_, set_); }

 private:
  int num_cpus_;
  size_t bytes_;
  cpu_set_t* set_;
};

using Topology =
    std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, decltype(&hwloc_topology_destroy)>;

Topology LoadTopology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return Topology(nullptr, hwloc_topology_destroy);
  Topology topology(raw, hwloc_topology_destroy);
  if (hwloc_topology_load(raw) != 0) topology.reset();
  return topology;
}

int AncestorIndex(hwloc_topology_t topology, hwloc_obj_type_t type, hwloc_obj_t object) {
  const hwloc_obj_t ancestor = hwloc_get_ancestor_obj_by_type(topology, type, object);
  return ancestor == nullptr ? 0 : static_cast<int>(ancestor->logical_index);
}

std::vector<CpuCore> OneCorePerCpu(const std::vector<int>& cpus) {
  std::vector<CpuCore> cores;
  for (int cpu : cpus) cores.push_back({.cpu = cpu});
  return cores;
}

// Two decimals at most, without trailing zeros but with at least one digit: 1.0, 1.5, 0.25.
std::string FormatQuota(double quota) {
  std::string text = fmt::format("{:.2f}", quota);
  if (text.back() == '0') text.pop_back();
  return text;
}

}  // namespace

std::vector<int> AllowedCpus() {
  // The kernel refuses a set smaller than its own with EINVAL.
  constexpr int kMostCpus = 1 << 20;
  for (int num_cpus = 1024; num_cpus <= kMostCpus; num_cpus *= 2) {
    CpuSet set(num_cpus);
    if (sched_getaffinity(0, set.bytes(), set.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < num_cpus; ++cpu) {
      if (set.Has(cpu)) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {0};
}

CpuTopology ReadCpuTopology() {
  CpuTopology result;
  result.allowed_cpus = AllowedCpus();
  const Topology topology = LoadTopology();
  std::map<hwloc_obj_t, CpuCore> cores;  // keyed by core, so that its other CPUs are left out
  for (int cpu : result.allowed_cpus) {
    hwloc_obj_t unit =
        topology == nullptr ? nullptr : hwloc_get_pu_obj_by_os_index(topology.get(), cpu);
    if (unit == nullptr) {  // the map does not show this CPU: trust none of it
      cores.clear();
      break;
    }
    hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology.get(), HWLOC_OBJ_CORE, unit);
    if (core == nullptr) core = unit;
    const hwloc_obj_t node = hwloc_get_next_obj_covering_cpuset_by_type(
        topology.get(), unit->cpuset, HWLOC_OBJ_NUMANODE, nullptr);
    cores.try_emplace(core,
                      CpuCore{.cpu = cpu,
                              .l3_domain = AncestorIndex(topology.get(), HWLOC_OBJ_L3CACHE, unit),
                              .package = AncestorIndex(topology.get(), HWLOC_OBJ_PACKAGE, unit),
                              .numa_node = node == nullptr ? 0 : static_cast<int>(node->os_index)});
  }
  for (const auto& [object, core] : cores) result.cores.push_back(core);
  if (result.cores.empty()) result.cores = OneCorePerCpu(result.allowed_cpus);
  std::sort(result.cores.begin(), result.cores.end(),
            [](const CpuCore& a, const CpuCore& b) { return a.cpu < b.cpu; });
  return result;
}

int Distance(const CpuCore& a, const CpuCore& b) {
  if (a.l3_domain == b.l3_domain) return 0;
  if (a.package != b.package) return 3;
  return a.numa_node == b.numa_node ? 1 : 2;
}

std::vector<CpuCore> SpreadOverDomains(const std::vector<CpuCore>& cores) {
  std::map<int, std::vector<CpuCore>> domains;
  for (const CpuCore& core : cores) domains[core.l3_domain].push_back(core);
  std::vector<CpuCore> spread;
  for (size_t round = 0; spread.size() < cores.size(); ++round) {
    for (const auto& [number, members] : domains) {
      if (round < members.size()) spread.push_back(members[round]);
    }
  }
  return spread;
}

bool PinThisThread(int cpu) {
  if (cpu < 0) return false;
  if (cpu < CPU_SETSIZE) {
    cpu_set_t small;
    CPU_ZERO(&small);
    CPU_SET(cpu, &small);
    return pthread_setaffinity_np(pthread_self(), sizeof(small), &small) == 0;
  }
  CpuSet set(cpu + 1);
  set.Add(cpu);
  return pthread_setaffinity_np(pthread_self(), set.bytes(), set.get()) == 0;
}

CpuBudget MakeCpuBudget(const CpuTopology& topology, std::optional<double> quota) {
  constexpr int kReserveFromCores = 8;
  constexpr int kReservedCores = 2;
  const int num_cores = static_cast<int>(topology.cores.size());
  CpuBudget budget;
  budget.cores = SpreadOverDomains(topology.cores);
  budget.has_siblings = topology.allowed_cpus.size() > topology.cores.size();
  budget.num_threads = num_cores;
  if (num_cores >= kReserveFromCores) budget.num_threads -= kReservedCores;
  // Compared as doubles: a huge quota would not fit an int.
  const double most = quota.has_value() ? std::max(1.0, std::floor(*quota)) : num_cores;
  if (most < budget.num_threads) {
    budget.num_threads = static_cast<int>(most);
    budget.reason = fmt::format("CPU quota {} of {} cores allowed", FormatQuota(*quota), num_cores);
  } else {
    budget.reason = fmt::format("{} of {} cores allowed", budget.num_threads, num_cores);
  }
  return budget;
}

CpuBudget DefaultCpuBudget() { return MakeCpuBudget(ReadCpuTopology(), ReadCpuQuota("/")); }

std::optional<std::string> ThreadCountWarning(int num_threads, const CpuBudget& budget) {
  if (num_threads <= budget.num_threads) return std::nullopt;
  return fmt::format(
      "{} threads are more than this process can use at once ({}: {}); expect less "
      "speed, not more",
      num_threads, budget.num_threads, budget.reason);
}

std::vector<CpuCore> CoresForThreads(int num_threads, const CpuBudget& budget) {
  if (num_threads <= 1 || budget.cores.empty()) return {};
  if (budget.has_siblings && num_threads > static_cast<int>(budget.cores.size())) return {};
  std::vector<CpuCore> cores;
  for (int i = 0; i < num_threads; ++i) {
    cores.push_back(budget.cores[static_cast<size_t>(i) % budget.cores.size()]);
  }
  return cores;
}

}  // namespace switchyard
