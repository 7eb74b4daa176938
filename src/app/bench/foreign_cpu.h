// How much CPU other processes took while something was measured.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace switchyard::app {

// Parses the busy ticks of all CPUs out of the text of /proc/stat: all but idle and waiting for
// disks; what a hypervisor took away counts as busy.
std::optional<double> ParseBusyTicks(std::string_view stat_text);

// Measures from its construction on.
class ForeignCpuMeter {
 public:
  explicit ForeignCpuMeter(std::string stat_path = "/proc/stat");

  // CPUs that others used since the start, on average: busy time of the machine less that of this
  // process, by the elapsed time. Nothing if the kernel does not say. The kernel counts in ticks of
  // 10 ms, so an interval below some tenths of a second says little.
  std::optional<double> ForeignCpus() const;

 private:
  std::string stat_path_;
  std::optional<double> busy_seconds_;
  double own_seconds_ = 0;
  double start_seconds_ = 0;
};

}  // namespace switchyard::app
