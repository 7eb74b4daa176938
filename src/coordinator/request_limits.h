// Limits on what clients send, the same for every API, and checked conversions of their numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/generator.h"

namespace switchyard::coordinator {

struct RequestInfo;

inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 256;  // of one stop string
inline constexpr size_t kMaxStopTokenIds = 1024;
inline constexpr size_t kMaxLogitBias = 1024;    // entries
inline constexpr double kMaxAbsLogitBias = 100;  // of one entry
inline constexpr double kMaxAbsPenalty = 2;      // presence and frequency
inline constexpr size_t kMaxLabels = 8;
inline constexpr size_t kMaxLabelBytes = 64;  // of a key, of a value
inline constexpr size_t kMaxMessages = 4096;  // of one conversation
inline constexpr size_t kMaxTools = 1024;
inline constexpr int kMaxLogprobs = 20;
inline constexpr size_t kMaxCacheSaltBytes = 256;

// Checks a request against the limits above. RequestGate::Start() calls it, so no API can forget.
// Errors: kInvalidArgument with the field at fault.
absl::Status CheckRequestLimits(const RequestInfo& info, const GenerationRequest& request);

// Each converts a number of a request that must be in [low, high].
// Errors: kInvalidArgument that names `field` and the range, and has the field as a detail; for
//         floating-point numbers also if it is none, or has a fraction where an integer is wanted.
absl::StatusOr<int64_t> CheckedInteger(std::string_view field, int64_t value, int64_t low,
                                       int64_t high);
absl::StatusOr<int64_t> CheckedInteger(std::string_view field, uint64_t value, int64_t low,
                                       int64_t high);
absl::StatusOr<int64_t> CheckedInteger(std::string_view field, double value, int64_t low,
                                       int64_t high);
absl::StatusOr<float> CheckedFloat(std::string_view field, double value, double low, double high);

}  // namespace switchyard::coordinator
