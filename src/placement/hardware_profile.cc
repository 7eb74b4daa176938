#include "placement/hardware_profile.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include <google/protobuf/util/json_util.h>

#include "base/status.h"
#include "base/status_macros.h"
#include "placement/json_error.h"

namespace switchyard::placement {
namespace {

constexpr int kMaxProfileBytes = 16 << 20;

std::string FirstLine(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

absl::Status CheckSpread(const v1::Spread& spread, std::string_view what) {
  const bool is_good = std::isfinite(spread.median()) && spread.median() > 0 && spread.min() >= 0 &&
                       spread.min() <= spread.median() && spread.max() >= spread.median();
  if (is_good) return absl::OkStatus();
  return InvalidArgument(
      "figure is no rate or time: {}, wanted 0 < min <= median <= max, got: {} {} {}", what,
      spread.min(), spread.median(), spread.max());
}

absl::Status CheckPositive(double value, std::string_view what) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return InvalidArgument("figure is not above zero: {}, got: {}", what, value);
}

absl::Status CheckCpuFigures(const v1::HardwareProfile& profile) {
  for (const v1::MemoryRead& read : profile.memory_reads()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckPositive(read.threads(), "memory_reads.threads"));
    SWITCHYARD_RETURN_IF_ERROR(CheckSpread(read.gb_per_second(), "memory_reads.gb_per_second"));
  }
  for (const v1::KernelRate& rate : profile.kernel_rates()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckPositive(rate.threads(), "kernel_rates.threads"));
    SWITCHYARD_RETURN_IF_ERROR(CheckPositive(rate.num_rows(), "kernel_rates.num_rows"));
    SWITCHYARD_RETURN_IF_ERROR(CheckSpread(rate.gb_per_second(), "kernel_rates.gb_per_second"));
  }
  for (const v1::ForkJoin& fork_join : profile.fork_joins()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckPositive(fork_join.threads(), "fork_joins.threads"));
    SWITCHYARD_RETURN_IF_ERROR(CheckSpread(fork_join.us(), "fork_joins.us"));
  }
  return absl::OkStatus();
}

absl::Status CheckGpuFigures(const v1::HardwareProfile& profile) {
  for (const v1::Gpu& gpu : profile.gpus()) {
    if (gpu.has_memory_gb_per_second()) {
      SWITCHYARD_RETURN_IF_ERROR(
          CheckPositive(gpu.memory_gb_per_second(), "gpus.memory_gb_per_second"));
    }
    if (gpu.has_kernel_efficiency() &&
        !(gpu.kernel_efficiency() > 0 && gpu.kernel_efficiency() <= 1)) {
      return InvalidArgument("figure is no share: gpus.kernel_efficiency, got: {}",
                             gpu.kernel_efficiency());
    }
  }
  for (const v1::Copy& copy : profile.copies()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckSpread(copy.gb_per_second(), "copies.gb_per_second"));
  }
  for (const v1::Latency& latency : profile.latencies()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckSpread(latency.us(), "latencies.us"));
  }
  double last = -1;
  for (const v1::MissPoint& point : profile.misses()) {
    if (!(point.resident_share() > last && point.resident_share() <= 1 && point.miss_share() >= 0 &&
          point.miss_share() <= 1)) {
      return InvalidArgument("curve of misses does not ascend from 0 to 1: misses, got: {} {}",
                             point.resident_share(), point.miss_share());
    }
    last = point.resident_share();
  }
  return absl::OkStatus();
}

absl::Status CheckLinkFigures(const v1::HardwareProfile& profile) {
  for (const v1::Collective& collective : profile.collectives()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckSpread(collective.us(), "collectives.us"));
    if (collective.wrong() != 0) {
      return InvalidArgument(
          "results of a collective were wrong: {} over {} of {} ranks, {} elements",
          collective.op(), collective.backend(), collective.nranks(), collective.wrong());
    }
  }
  for (const v1::CollectiveFit& fit : profile.fits()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckPositive(fit.beta_gb_per_second(), "fits.beta_gb_per_second"));
    if (!(fit.a0_us() >= 0 && fit.a1_us() >= 0)) {
      return InvalidArgument("figure is below zero: fits.a0_us, a1_us, got: {} {}", fit.a0_us(),
                             fit.a1_us());
    }
  }
  for (const v1::Link& link : profile.links()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckSpread(link.rtt_us(), "links.rtt_us"));
    SWITCHYARD_RETURN_IF_ERROR(CheckSpread(link.gb_per_second(), "links.gb_per_second"));
  }
  return absl::OkStatus();
}

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

absl::StatusOr<v1::HardwareProfile> ParseProfile(std::string_view json) {
  if (const auto error = FindJsonError(json)) {
    return InvalidArgument("profile is no JSON: {} at line {}, column {}", error->what, error->line,
                           error->column);
  }
  v1::HardwareProfile profile;
  const auto status = google::protobuf::util::JsonStringToMessage(
      {json.data(), json.size()}, &profile, google::protobuf::util::JsonParseOptions());
  if (!status.ok()) {
    const auto message = status.message();
    return InvalidArgument("profile has a field of another form: {}",
                           FirstLine({message.data(), message.size()}));
  }
  if (profile.schema_version() != kProfileSchemaVersion) {
    return InvalidArgument("profile has an unknown schema_version: {}, known: {}",
                           profile.schema_version(), kProfileSchemaVersion);
  }
  SWITCHYARD_RETURN_IF_ERROR(CheckCpuFigures(profile));
  SWITCHYARD_RETURN_IF_ERROR(CheckGpuFigures(profile));
  SWITCHYARD_RETURN_IF_ERROR(CheckLinkFigures(profile));
  return profile;
}

absl::StatusOr<v1::HardwareProfile> ReadProfile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound("profile cannot be read: {}", path);
  std::string text;
  text.resize(kMaxProfileBytes + 1);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxProfileBytes) {
    return InvalidArgument("{}: profile is longer than {} bytes", path, kMaxProfileBytes);
  }
  absl::StatusOr<v1::HardwareProfile> profile = ParseProfile(text);
  if (!profile.ok()) return WithContext(profile.status(), path);
  return profile;
}

absl::StatusOr<std::string> ProfileJson(const v1::HardwareProfile& profile) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(profile, &json, options);
  if (!status.ok()) {
    const auto message = status.message();
    return Internal("profile cannot be written: {}", FirstLine({message.data(), message.size()}));
  }
  if (json.empty() || json.back() != '\n') json += '\n';
  return json;
}

MachineIdentity ReadMachineIdentity() {
  MachineIdentity identity;
  identity.boot_id = ReadLine("/proc/sys/kernel/random/boot_id");
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    if (begin != std::string::npos) identity.cpu_model = line.substr(begin);
    break;
  }
  return identity;
}

absl::Status CheckProfileIsOf(const v1::HardwareProfile& profile, const MachineIdentity& here) {
  if (profile.is_estimate()) return absl::OkStatus();
  const auto check = [](std::string_view what, const std::string& theirs,
                        const std::string& ours) -> absl::Status {
    if (theirs == ours) return absl::OkStatus();
    return FailedPrecondition(
        "profile was measured on another machine or before its last start: {}, profile: {}, here: "
        "{}; measure again: switchyard probe",
        what, theirs.empty() ? "none" : theirs, ours);
  };
  SWITCHYARD_RETURN_IF_ERROR(check("cpu_model", profile.host().cpu_model(), here.cpu_model));
  return check("boot_id", profile.host().boot_id(), here.boot_id);
}

}  // namespace switchyard::placement
