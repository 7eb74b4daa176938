#include "app/bench/machine_description.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>

#include "base/status.h"
#include "base/units.h"
#include "kernels/cpu/cpu_features.h"

namespace switchyard::app {
namespace {

namespace fs = std::filesystem;

// More than most processors have, so that what is sized by it does not fit a cache.
constexpr int64_t kUnknownCacheBytes = int64_t{64} << 20;

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string ReadLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The rest of the first line that starts with `name`, a colon behind it, spaces around both.
std::string Field(std::string_view text, std::string_view name) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    std::string_view key = line.substr(0, colon);
    while (!key.empty() && (key.back() == ' ' || key.back() == '\t')) key.remove_suffix(1);
    if (key != name) continue;
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
    return std::string(value);
  }
  return "";
}

// The number that `text` starts with, 0 if none.
int64_t Number(std::string_view text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::vector<CpuCache> ReadCaches(const fs::path& folder) {
  std::vector<CpuCache> caches;
  for (int i = 0;; ++i) {
    const fs::path cache = folder / fmt::format("index{}", i);
    const auto bytes = ParseBytes(ReadLine(cache / "size"));
    if (!bytes.ok()) break;
    caches.push_back({static_cast<int>(Number(ReadLine(cache / "level"))), ReadLine(cache / "type"),
                      *bytes, ReadLine(cache / "shared_cpu_list")});
  }
  return caches;
}

}  // namespace

int64_t MachineDescription::last_level_cache_bytes() const {
  int64_t bytes = 0;
  for (const CpuCache& cache : caches) bytes = std::max(bytes, cache.bytes);
  return bytes > 0 ? bytes : kUnknownCacheBytes;
}

MachineDescription ReadMachineDescription(const fs::path& root) {
  MachineDescription machine;
  const std::string cpu = ReadAll(root / "proc/cpuinfo");
  machine.cpu_model = Field(cpu, "model name");
  machine.cpu_family = static_cast<int>(Number(Field(cpu, "cpu family")));
  machine.cpu_model_number = static_cast<int>(Number(Field(cpu, "model")));
  machine.num_cpus_online = static_cast<int>(std::thread::hardware_concurrency());
  machine.budget = DefaultCpuBudget();
  machine.caches = ReadCaches(root / "sys/devices/system/cpu/cpu0/cache");
  const std::string memory = ReadAll(root / "proc/meminfo");
  machine.memory_bytes = Number(Field(memory, "MemTotal")) << 10;
  machine.available_bytes = Number(Field(memory, "MemAvailable")) << 10;
  machine.kernel = ReadLine(root / "proc/sys/kernel/osrelease");
  machine.huge_pages = ReadLine(root / "sys/kernel/mm/transparent_hugepage/enabled");
  return machine;
}

nlohmann::ordered_json ToJson(const MachineDescription& machine) {
  nlohmann::ordered_json levels = nlohmann::ordered_json::array();
  for (const auto level : {kernels::cpu::CpuLevel::kScalar, kernels::cpu::CpuLevel::kAvx2,
                           kernels::cpu::CpuLevel::kAvxVnni, kernels::cpu::CpuLevel::kAvx512Vnni}) {
    if (RunsCpuLevel(level)) levels.push_back(CpuLevelName(level));
  }
  nlohmann::ordered_json caches = nlohmann::ordered_json::array();
  for (const CpuCache& cache : machine.caches) {
    caches.push_back({{"level", cache.level},
                      {"type", cache.type},
                      {"bytes", cache.bytes},
                      {"cpus", cache.cpus}});
  }
  return {{"cpu", machine.cpu_model},
          {"cpu_family", machine.cpu_family},
          {"cpu_model", machine.cpu_model_number},
          {"cpu_levels", std::move(levels)},
          {"cpus_online", machine.num_cpus_online},
          {"cores_allowed", machine.budget.cores.size()},
          {"threads", machine.budget.num_threads},
          {"threads_reason", machine.budget.reason},
          {"caches", std::move(caches)},
          {"memory_bytes", machine.memory_bytes},
          {"available_bytes", machine.available_bytes},
          {"huge_pages", machine.huge_pages},
          {"kernel", machine.kernel}};
}

}  // namespace switchyard::app
