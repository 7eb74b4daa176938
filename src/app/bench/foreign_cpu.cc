#include "app/bench/foreign_cpu.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <unistd.h>
#include <utility>

#include "base/clock.h"

namespace switchyard::app {
namespace {

std::optional<double> BusySeconds(const std::string& stat_path) {
  std::ifstream file(stat_path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto ticks = ParseBusyTicks(text);
  if (!ticks) return std::nullopt;
  return *ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double OwnSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

std::optional<double> ParseBusyTicks(std::string_view stat_text) {
  std::istringstream line{std::string(stat_text.substr(0, stat_text.find('\n')))};
  std::string name;
  line >> name;
  if (name != "cpu") return std::nullopt;
  // user nice system idle iowait irq softirq steal; guest time behind them is part of user.
  constexpr int kNumFields = 8, kIdle = 3, kWaiting = 4;
  double busy = 0;
  for (int i = 0; i < kNumFields; ++i) {
    double ticks = 0;
    if (!(line >> ticks)) return std::nullopt;
    if (i != kIdle && i != kWaiting) busy += ticks;
  }
  return busy;
}

ForeignCpuMeter::ForeignCpuMeter(std::string stat_path)
    : stat_path_(std::move(stat_path)),
      busy_seconds_(BusySeconds(stat_path_)),
      own_seconds_(OwnSeconds()),
      start_seconds_(MonotonicClock::Get().NowSeconds()) {}

std::optional<double> ForeignCpuMeter::ForeignCpus() const {
  const double elapsed = MonotonicClock::Get().NowSeconds() - start_seconds_;
  const auto busy = BusySeconds(stat_path_);
  if (!busy || !busy_seconds_ || elapsed <= 0) return std::nullopt;
  return std::max(0.0, (*busy - *busy_seconds_) - (OwnSeconds() - own_seconds_)) / elapsed;
}

}  // namespace switchyard::app
