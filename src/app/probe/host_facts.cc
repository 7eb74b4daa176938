#include "app/probe/host_facts.h"

#include <array>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <sys/statvfs.h>
#include <unistd.h>
#include <vector>

#include "app/bench/machine_description.h"
#include "base/cpu_quota.h"
#include "base/cpu_topology.h"
#include "kernels/cpu/cpu_features.h"
#include "placement/hardware_profile.h"

namespace switchyard::app {
namespace {

// "0-3,8": as Linux lists CPUs.
std::string CpuList(const std::vector<int>& cpus) {
  std::string list;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    list += fmt::format("{}{}", list.empty() ? "" : ",", cpus[i]);
    if (last > i) list += fmt::format("-{}", cpus[last]);
    i = last + 1;
  }
  return list;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "Node 0 MemTotal:  1234 kB" in a node's meminfo; 0 if it is not there.
uint64_t NodeMemoryBytes(int node) {
  std::ifstream file(fmt::format("/sys/devices/system/node/node{}/meminfo", node));
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find("MemTotal:");
    if (at == std::string::npos) continue;
    return std::strtoull(line.c_str() + at + 9, nullptr, 10) << 10;
  }
  return 0;
}

}  // namespace

placement::v1::Host ReadHostFacts() {
  placement::v1::Host host;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) host.set_hostname(name.data());
  const placement::MachineIdentity identity = placement::ReadMachineIdentity();
  host.set_boot_id(identity.boot_id);
  host.set_cpu_model(identity.cpu_model);
  host.set_cpu_level(std::string(CpuLevelName(kernels::cpu::DetectCpuLevel())));
  const MachineDescription machine = ReadMachineDescription("/");
  host.set_kernel(machine.kernel);
  if (machine.memory_bytes > 0) {
    host.set_mem_total_bytes(static_cast<uint64_t>(machine.memory_bytes));
  }
  const CpuTopology topology = ReadCpuTopology();
  host.set_threads(static_cast<uint32_t>(topology.allowed_cpus.size()));
  host.set_cores(static_cast<uint32_t>(topology.cores.size()));
  host.set_cpu_affinity(CpuList(topology.allowed_cpus));
  std::set<int> packages, nodes;
  for (const CpuCore& core : topology.cores) {
    packages.insert(core.package);
    nodes.insert(core.numa_node);
  }
  host.set_sockets(static_cast<uint32_t>(packages.size()));
  if (const auto quota = ReadCpuQuota("/")) host.set_cgroup_cpu_quota(*quota);
  for (const int id : nodes) {
    placement::v1::NumaNode& node = *host.add_numa_nodes();
    node.set_id(static_cast<uint32_t>(id));
    node.set_cpulist(ReadText(fmt::format("/sys/devices/system/node/node{}/cpulist", id)));
    if (const uint64_t bytes = NodeMemoryBytes(id); bytes > 0) node.set_mem_total_bytes(bytes);
  }
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    host.set_shm_size_bytes(static_cast<uint64_t>(shm.f_blocks) * shm.f_frsize);
  }
  return host;
}

}  // namespace switchyard::app
