#include "placement/device_rates.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::placement {
namespace {

using Points = std::vector<std::pair<double, double>>;

// On a line between the two points around x; before the first as the first, beyond the last in
// proportion to x if `grows`, else as the last.
double ValueAt(const Points& points, double x, bool grows) {
  if (points.empty()) return 0;
  if (x <= points.front().first) return points.front().second;
  for (size_t i = 1; i < points.size(); ++i) {
    const auto& [x0, y0] = points[i - 1];
    const auto& [x1, y1] = points[i];
    if (x <= x1) return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
  }
  return grows ? points.back().second * x / points.back().first : points.back().second;
}

// The measured number of threads nearest to `threads`, of the profile's kernel rates.
int NearestThreads(const v1::HardwareProfile& profile, int threads) {
  int nearest = 0;
  for (const v1::KernelRate& rate : profile.kernel_rates()) {
    const auto t = static_cast<int>(rate.threads());
    if (nearest == 0 || std::abs(t - threads) < std::abs(nearest - threads)) nearest = t;
  }
  return nearest;
}

// Elements of weights in a byte of their format.
double ElementsPerByte(DType dtype) {
  return static_cast<double>(Traits(dtype).block_length) / Traits(dtype).block_bytes;
}

constexpr std::array<std::pair<CollectiveOp, std::string_view>, 4> kOps = {{
    {CollectiveOp::kAllReduce, "all_reduce"},
    {CollectiveOp::kBroadcast, "broadcast"},
    {CollectiveOp::kReduce, "reduce"},
    {CollectiveOp::kSend, "sendrecv"},
}};

bool IsOfDevice(std::string_view backend, DeviceKind device) {
  const bool is_gpu = backend == "nccl" || backend == "hostmap" || backend == "p2p";
  return is_gpu == (device == DeviceKind::kGpu);
}

// Measured times of one operation by bytes; those with this number of threads if there are any.
Points MeasuredPoints(const v1::HardwareProfile& profile, std::string_view op,
                      std::string_view backend, int nranks, int threads) {
  for (const bool any_threads : {false, true}) {
    Points points;
    for (const v1::Collective& c : profile.collectives()) {
      if (c.op() != op || c.backend() != backend) continue;
      if (static_cast<int>(c.nranks()) != nranks) continue;
      if (!any_threads && static_cast<int>(c.threads_per_rank()) != threads) continue;
      points.emplace_back(static_cast<double>(c.size_bytes()), c.us().median() * 1e-6);
    }
    std::sort(points.begin(), points.end());
    points.erase(std::unique(points.begin(), points.end(),
                             [](const auto& a, const auto& b) { return a.first == b.first; }),
                 points.end());
    if (!points.empty()) return points;
  }
  return {};
}

}  // namespace

double MemoryReadRate(const v1::HardwareProfile& profile, double threads) {
  Points points;
  for (const v1::MemoryRead& read : profile.memory_reads()) {
    points.emplace_back(read.threads(), read.gb_per_second().median() * 1e9);
  }
  std::sort(points.begin(), points.end());
  return ValueAt(points, threads, /*grows=*/false);
}

absl::StatusOr<DeviceRates> DeviceRates::OfCpu(const v1::HardwareProfile& profile, int threads,
                                               int num_ranks) {
  if (profile.memory_reads().empty() || profile.kernel_rates().empty()) {
    return FailedPrecondition(
        "profile has no rates of CPU memory and kernels: memory_reads, kernel_rates; measure: "
        "switchyard probe");
  }
  DeviceRates rates;
  const double all_threads = static_cast<double>(threads) * num_ranks;
  const double alone = MemoryReadRate(profile, threads);
  rates.memory_bytes_per_second_ = MemoryReadRate(profile, all_threads) / num_ranks;
  rates.memory_slowdown_ = std::max(1.0, alone / rates.memory_bytes_per_second_);
  if (profile.host().has_cores()) {
    rates.compute_slowdown_ = std::max(1.0, all_threads / profile.host().cores());
  }
  const int measured_threads = NearestThreads(profile, threads);
  // From the rates at that number of threads to ours: by what memory gives.
  const double scale = MemoryReadRate(profile, measured_threads) / alone;
  double share_sum = 0;
  for (const v1::KernelRate& rate : profile.kernel_rates()) {
    if (static_cast<int>(rate.threads()) != measured_threads) continue;
    auto it = std::find_if(rates.curves_.begin(), rates.curves_.end(),
                           [&](const Curve& curve) { return curve.format == rate.format(); });
    if (it == rates.curves_.end()) {
      it = rates.curves_.insert(rates.curves_.end(), Curve{rate.format(), {}});
    }
    const double seconds_per_byte = scale / (rate.gb_per_second().median() * 1e9);
    it->points.emplace_back(rate.num_rows(), seconds_per_byte);
    const auto dtype = DTypeFromName(rate.format());
    if (dtype.has_value()) {
      const double ops = 2 * ElementsPerByte(*dtype) * rate.num_rows() / seconds_per_byte;
      rates.ops_per_second_ = std::max(rates.ops_per_second_, ops / rates.compute_slowdown_);
    }
  }
  for (Curve& curve : rates.curves_) {
    std::sort(curve.points.begin(), curve.points.end());
    share_sum += 1 / (curve.points.front().second * alone);
  }
  const double share = share_sum / static_cast<double>(rates.curves_.size());
  rates.other_.points = {{1, 1 / (alone * share)}};
  Points fork_joins;
  for (const v1::ForkJoin& fork_join : profile.fork_joins()) {
    fork_joins.emplace_back(fork_join.threads(), fork_join.us().median() * 1e-6);
  }
  std::sort(fork_joins.begin(), fork_joins.end());
  rates.stage_seconds_ = ValueAt(fork_joins, threads, /*grows=*/true);
  return rates;
}

absl::StatusOr<DeviceRates> DeviceRates::OfGpu(const v1::HardwareProfile& profile, int index) {
  if (index >= profile.gpus_size()) {
    return FailedPrecondition("profile has too few GPUs: {}, wanted: {}", profile.gpus_size(),
                              index + 1);
  }
  const v1::Gpu& gpu = profile.gpus(index);
  if (!gpu.has_memory_gb_per_second() || !gpu.has_kernel_efficiency()) {
    return FailedPrecondition(
        "profile has no speed of the GPU's memory: gpus.memory_gb_per_second, kernel_efficiency, "
        "GPU: {}",
        gpu.index());
  }
  DeviceRates rates;
  rates.memory_bytes_per_second_ = gpu.memory_gb_per_second() * 1e9 * gpu.kernel_efficiency();
  rates.ops_per_second_ = gpu.tera_ops_per_second() * 1e12;
  rates.other_.points = {{1, 1 / rates.memory_bytes_per_second_}};
  return rates;
}

double DeviceRates::SecondsPerByte(const Curve& curve, double num_rows) const {
  const double one_row = curve.points.front().second;
  const double rows = ValueAt(curve.points, num_rows, /*grows=*/true);
  // With few rows memory is the limit; what more rows cost is arithmetic.
  return one_row * memory_slowdown_ + std::max(0.0, rows - one_row) * compute_slowdown_;
}

double DeviceRates::WeightSeconds(const WeightBytes& bytes, double num_rows) const {
  double seconds = 0;
  for (const auto& [dtype, count] : bytes.formats()) {
    const std::string_view name = Traits(dtype).name;
    const auto it = std::find_if(curves_.begin(), curves_.end(),
                                 [&](const Curve& curve) { return curve.format == name; });
    const auto num_bytes = static_cast<double>(count);
    if (it != curves_.end()) {
      seconds += num_bytes * SecondsPerByte(*it, num_rows);
      continue;
    }
    const double memory = num_bytes * other_.points.front().second * memory_slowdown_;
    const double arithmetic = OpsSeconds(2 * num_bytes * ElementsPerByte(dtype) * num_rows);
    seconds += std::max(memory, arithmetic);
  }
  return seconds;
}

std::string_view OpName(CollectiveOp op) {
  for (const auto& [known, name] : kOps) {
    if (known == op) return name;
  }
  return "unknown";
}

absl::StatusOr<CommRates> CommRates::Of(const v1::HardwareProfile& profile, DeviceKind device,
                                        int nranks, int threads, double typical_bytes,
                                        std::string_view wanted_backend) {
  std::set<std::string> backends;
  std::set<int> known;
  const auto is_wanted = [&](const std::string& backend) {
    return IsOfDevice(backend, device) && (wanted_backend.empty() || backend == wanted_backend);
  };
  for (const v1::Collective& c : profile.collectives()) {
    if (!is_wanted(c.backend())) continue;
    backends.insert(c.backend());
    if (c.op() == "all_reduce") known.insert(static_cast<int>(c.nranks()));
  }
  for (const v1::CollectiveFit& fit : profile.fits()) {
    if (is_wanted(fit.backend())) backends.insert(fit.backend());
  }
  const double n = nranks;
  CommRates best;
  for (const std::string& backend : backends) {
    CommRates rates;
    rates.backend_ = backend;
    for (const auto& [op, name] : kOps) {
      Line line;
      line.op = op;
      // A message between two ranks does not depend on how many there are.
      line.points =
          MeasuredPoints(profile, name, backend, op == CollectiveOp::kSend ? 2 : nranks, threads);
      if (!line.points.empty()) {
        rates.lines_.push_back(line);
        continue;
      }
      for (const v1::CollectiveFit& fit : profile.fits()) {
        if (fit.backend() != backend || fit.op() != name) continue;
        if (fit.nranks() != 0 && static_cast<int>(fit.nranks()) != nranks) continue;
        const bool is_ring = backend == "nccl";
        const double steps = op == CollectiveOp::kSend ? 0 : is_ring ? 2 * (n - 1) : 1;
        const double wire = op == CollectiveOp::kSend ? 1 : is_ring ? 2 * (n - 1) / n : n - 1;
        line.base_seconds = (fit.a0_us() + steps * fit.a1_us()) * 1e-6;
        line.seconds_per_byte = wire / (fit.beta_gb_per_second() * 1e9);
        rates.lines_.push_back(line);
        break;
      }
    }
    if (rates.lines_.empty() || rates.lines_.front().op != CollectiveOp::kAllReduce) continue;
    if (best.lines_.empty() || rates.Seconds(CollectiveOp::kAllReduce, typical_bytes) <
                                   best.Seconds(CollectiveOp::kAllReduce, typical_bytes)) {
      best = std::move(rates);
    }
  }
  if (!best.lines_.empty()) return best;
  return FailedPrecondition(
      "profile has no all_reduce of {} {} ranks{}{}; measured: {}; measure: switchyard probe",
      nranks, device == DeviceKind::kCpu ? "CPU" : "GPU", wanted_backend.empty() ? "" : " over ",
      wanted_backend, known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")));
}

double CommRates::SecondsOf(const Line& line, double bytes) const {
  if (line.points.empty()) return line.base_seconds + bytes * line.seconds_per_byte;
  const auto& [last_bytes, last_seconds] = line.points.back();
  if (bytes <= last_bytes || line.points.size() < 2) {
    return ValueAt(line.points, bytes, /*grows=*/true);
  }
  // Beyond the last by the line through the last two.
  const auto& [x0, y0] = line.points[line.points.size() - 2];
  return last_seconds +
         std::max(0.0, (last_seconds - y0) / (last_bytes - x0)) * (bytes - last_bytes);
}

double CommRates::Seconds(CollectiveOp op, double bytes) const {
  for (const Line& line : lines_) {
    if (line.op == op) return SecondsOf(line, bytes);
  }
  return SecondsOf(lines_.front(), bytes);
}

}  // namespace switchyard::placement
