#include "app/doctor/machine_checks.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <iterator>
#include <set>
#include <sys/resource.h>

#include "app/version.h"
#include "base/process_memory.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace switchyard::app {
namespace {

namespace fs = std::filesystem;
using kernels::cpu::CpuLevel;

// Empty if the file cannot be read.
std::string ReadLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

MachineCheck CheckCpuLevel(const MachineFacts& facts) {
  MachineCheck check{"cpu level", CheckResult::kOk, std::string(CpuLevelName(facts.cpu_level)), ""};
  if (facts.cpu_level == CpuLevel::kScalar) {
    check.result = CheckResult::kWarn;
    check.finding += ": no AVX2, the kernels are plain C++";
    check.fix = "use a processor, or a virtual machine type, with AVX2";
  }
  return check;
}

MachineCheck CheckThreads(const MachineFacts& facts) {
  const int num_threads = facts.asked_threads.value_or(facts.budget.num_threads);
  MachineCheck check{"threads", CheckResult::kOk,
                     fmt::format("{} ({})", num_threads,
                                 facts.asked_threads ? "as asked for" : facts.budget.reason),
                     ""};
  if (const auto warning = ThreadCountWarning(num_threads, facts.budget)) {
    check.result = CheckResult::kWarn;
    check.finding += ": " + *warning;
    check.fix = fmt::format("use -t {}", facts.budget.num_threads);
  }
  return check;
}

MachineCheck CheckNuma(const MachineFacts& facts) {
  MachineCheck check{
      "numa", CheckResult::kOk,
      facts.numa_nodes.size() < 2 ? "one node" : fmt::format("{} nodes", facts.numa_nodes.size()),
      ""};
  if (facts.numa_nodes.size() > 1) {
    check.result = CheckResult::kWarn;
    check.finding += ": reading another node's memory is slower";
    check.fix = fmt::format("keep a worker on one node: numactl --cpunodebind={0} --membind={0}",
                            facts.numa_nodes.front());
  }
  return check;
}

MachineCheck CheckMemory(const MachineFacts& facts) {
  if (!facts.memory_bytes) return {"memory", CheckResult::kWarn, "the kernel does not say", ""};
  return {"memory", CheckResult::kOk,
          fmt::format("{} free", FormatBytes(static_cast<double>(*facts.memory_bytes))), ""};
}

// The chosen word of a setting such as "always [madvise] never".
std::string ChosenWord(const std::string& setting) {
  const size_t begin = setting.find('[');
  const size_t end = setting.find(']', begin);
  if (begin == std::string::npos || end == std::string::npos) return "";
  return setting.substr(begin + 1, end - begin - 1);
}

MachineCheck CheckHugePages(const MachineFacts& facts) {
  constexpr char kPath[] = "sys/kernel/mm/transparent_hugepage/enabled";
  const std::string chosen = ChosenWord(ReadLine(fs::path(facts.root) / kPath));
  if (chosen == "always" || chosen == "madvise") {
    return {"huge pages", CheckResult::kOk, fmt::format("{}", chosen), ""};
  }
  return {"huge pages", CheckResult::kWarn,
          chosen.empty() ? "the kernel has none" : fmt::format("{}", chosen),
          chosen.empty() ? "" : fmt::format("echo madvise > /{}", kPath)};
}

MachineCheck CheckMemlock(const MachineFacts& facts) {
  if (!facts.memlock_bytes) return {"memlock", CheckResult::kOk, "unlimited", ""};
  MachineCheck check{"memlock", CheckResult::kOk,
                     FormatBytes(static_cast<double>(*facts.memlock_bytes)), ""};
  if (!facts.devices.empty()) {
    check.result = CheckResult::kWarn;
    check.finding += ": too little to pin host experts";
    check.fix = "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)";
  }
  return check;
}

struct PciGpu {
  std::string address;
  std::string width, max_width;  // lanes
  std::string speed, max_speed;  // "16.0 GT/s PCIe"
};

// NVIDIA's display devices, with or without a driver.
std::vector<PciGpu> FindGpus(const fs::path& root) {
  std::vector<PciGpu> gpus;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "sys/bus/pci/devices", error)) {
    const fs::path& folder = entry.path();
    if (ReadLine(folder / "vendor") != "0x10de") continue;
    if (!ReadLine(folder / "class").starts_with("0x03")) continue;
    gpus.push_back({folder.filename().string(), ReadLine(folder / "current_link_width"),
                    ReadLine(folder / "max_link_width"), ReadLine(folder / "current_link_speed"),
                    ReadLine(folder / "max_link_speed")});
  }
  std::sort(gpus.begin(), gpus.end(),
            [](const PciGpu& a, const PciGpu& b) { return a.address < b.address; });
  return gpus;
}

MachineCheck CheckGpus(const MachineFacts& facts, const std::vector<PciGpu>& gpus) {
  if (gpus.empty()) return {"gpu", CheckResult::kOk, "none on the PCI bus", ""};
  if (!facts.has_cuda) {
    return {"gpu", CheckResult::kWarn,
            fmt::format("{} on the PCI bus, but this build has no CUDA", gpus.size()),
            "build with -DSWITCHYARD_CUDA=ON"};
  }
  if (facts.devices.empty()) {
    return {"gpu", CheckResult::kFail,
            fmt::format("{} on the PCI bus, but CUDA sees none", gpus.size()),
            "install NVIDIA's driver; see nvidia-smi"};
  }
  return {"gpu", CheckResult::kOk,
          fmt::format("{} of {} usable", facts.devices.size(), gpus.size()), ""};
}

// The speed of a link falls while it is idle; its width does not.
MachineCheck CheckLink(const PciGpu& gpu) {
  MachineCheck check{
      "pcie " + gpu.address, CheckResult::kOk,
      fmt::format("x{} of x{}, {} of {}", gpu.width, gpu.max_width, gpu.speed, gpu.max_speed), ""};
  if (gpu.width != gpu.max_width) {
    check.result = CheckResult::kWarn;
    check.fix = "another slot, riser or BIOS setting may give all lanes";
  }
  return check;
}

std::optional<MachineCheck> CheckPeers(const MachineFacts& facts) {
  if (facts.devices.size() < 2) return std::nullopt;
  std::vector<std::string> missing;
  for (const auto& device : facts.devices) {
    for (const auto& peer : facts.devices) {
      if (device.device == peer.device) continue;
      if (std::find(device.peers.begin(), device.peers.end(), peer.device) == device.peers.end()) {
        missing.push_back(fmt::format("{}->{}", device.device, peer.device));
      }
    }
  }
  if (missing.empty()) return MachineCheck{"peer access", CheckResult::kOk, "all pairs", ""};
  return MachineCheck{
      "peer access", CheckResult::kWarn,
      fmt::format("not for {}: data goes through host memory", fmt::join(missing, ", ")),
      "consumer cards need a driver that allows it; check IOMMU and ACS"};
}

std::optional<MachineCheck> CheckIommu(const MachineFacts& facts, size_t num_gpus) {
  if (num_gpus < 2) return std::nullopt;
  std::error_code error;
  const fs::directory_iterator units(fs::path(facts.root) / "sys/class/iommu", error);
  if (error || units == fs::directory_iterator()) {
    return MachineCheck{"iommu", CheckResult::kOk, "off", ""};
  }
  return MachineCheck{"iommu", CheckResult::kWarn, "on: traffic between cards may take a detour",
                      "iommu=pt on the kernel's command line, ACS off in the BIOS"};
}

}  // namespace

absl::StatusOr<MachineFacts> ReadMachineFacts() {
  MachineFacts facts;
  facts.cpu_level = kernels::cpu::DetectCpuLevel();
  facts.budget = DefaultCpuBudget();
  std::set<int> nodes;
  for (const CpuCore& core : ReadCpuTopology().cores) nodes.insert(core.numa_node);
  facts.numa_nodes.assign(nodes.begin(), nodes.end());
  facts.memory_bytes = AvailableHostBytes();
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    facts.memlock_bytes = limit.rlim_cur;
  }
  facts.has_cuda = HasCuda();
  SWITCHYARD_ASSIGN_OR_RETURN(facts.devices, device::ListDevices());
  return facts;
}

std::vector<MachineCheck> CheckMachine(const MachineFacts& facts) {
  const std::vector<PciGpu> gpus = FindGpus(facts.root);
  std::vector<MachineCheck> checks = {
      CheckCpuLevel(facts),  CheckThreads(facts), CheckNuma(facts),      CheckMemory(facts),
      CheckHugePages(facts), CheckMemlock(facts), CheckGpus(facts, gpus)};
  for (const PciGpu& gpu : gpus) checks.push_back(CheckLink(gpu));
  if (auto check = CheckPeers(facts)) checks.push_back(*check);
  if (auto check = CheckIommu(facts, gpus.size())) checks.push_back(*check);
  return checks;
}

}  // namespace switchyard::app
