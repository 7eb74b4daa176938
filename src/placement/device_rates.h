// Rates of one rank's device and of its group's collectives, out of a hardware profile.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/hardware_profile.h"
#include "placement/rank_reads.h"

namespace switchyard::placement {

enum class DeviceKind { kCpu, kGpu };

// How fast a rank computes while all ranks of its host do.
//
// CPU workers of a host share its memory: a rank's rate is that of its own threads alone, times
// what is left of the bandwidth when the threads of all ranks read, and times its share of the
// cores where there are more threads than cores.
class DeviceRates {
 public:
  // One of `num_ranks` CPU workers with `threads` threads each.
  //
  // Errors: kFailedPrecondition if the profile lacks memory_reads or kernel_rates.
  static absl::StatusOr<DeviceRates> OfCpu(const v1::HardwareProfile& profile, int threads,
                                           int num_ranks);

  // Errors: kFailedPrecondition if the profile lacks the GPU or its memory's speed.
  static absl::StatusOr<DeviceRates> OfGpu(const v1::HardwareProfile& profile, int index);

  // Time to multiply weights with `num_rows` rows of activations. Formats that were not measured
  // are taken to read at the mean share of the bandwidth of those that were.
  double WeightSeconds(const WeightBytes& bytes, double num_rows) const;

  // Time to read or write other memory: states, keys, values.
  double MemorySeconds(double bytes) const { return bytes / memory_bytes_per_second_; }

  // Time of `ops` multiplications and additions of a large prefill; 0 if not measured.
  double OpsSeconds(double ops) const { return ops_per_second_ > 0 ? ops / ops_per_second_ : 0; }
  bool knows_prefill() const { return ops_per_second_ > 0; }

  // Time of a stage beside its work: forking and joining threads.
  double stage_seconds() const { return stage_seconds_; }

 private:
  // A format's seconds per byte by rows of activations, ascending.
  struct Curve {
    std::string format;
    std::vector<std::pair<double, double>> points;
  };
  double SecondsPerByte(const Curve& curve, double num_rows) const;

  std::vector<Curve> curves_;
  Curve other_;  // of formats without a curve
  double memory_bytes_per_second_ = 0;
  double ops_per_second_ = 0;
  double memory_slowdown_ = 1;   // by other ranks that read
  double compute_slowdown_ = 1;  // by more threads than cores
  double stage_seconds_ = 0;
};

// Bytes a second that `threads` threads of the profile's host read together; between two measured
// numbers of threads on a line, beyond the last as the last. 0 if nothing was measured.
double MemoryReadRate(const v1::HardwareProfile& profile, double threads);

enum class CollectiveOp { kAllReduce, kBroadcast, kReduce, kSend };
std::string_view OpName(CollectiveOp op);  // as in profiles

// Latencies of a group's collectives.
class CommRates {
 public:
  // Of `nranks` ranks. Of several backends that one whose all-reduce of `typical_bytes` is fastest,
  // or the one that is named. `threads` of each rank compute, 0 on GPUs.
  //
  // Errors: kFailedPrecondition if no all-reduce of so many ranks was measured.
  static absl::StatusOr<CommRates> Of(const v1::HardwareProfile& profile, DeviceKind device,
                                      int nranks, int threads, double typical_bytes,
                                      std::string_view wanted_backend = "");

  // Of one operation with `bytes` payload of each rank. An operation that was not measured is taken
  // to last as long as an all-reduce.
  double Seconds(CollectiveOp op, double bytes) const;

  const std::string& backend() const { return backend_; }

 private:
  struct Line {
    CollectiveOp op = CollectiveOp::kAllReduce;
    std::vector<std::pair<double, double>> points;  // bytes, seconds; ascending; or else a fit:
    double base_seconds = 0;
    double seconds_per_byte = 0;
  };
  double SecondsOf(const Line& line, double bytes) const;

  std::string backend_;
  std::vector<Line> lines_;
};

}  // namespace switchyard::placement
