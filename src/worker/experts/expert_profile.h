// Use counts of experts in a file: what one run has learned warms the next start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace switchyard::worker {

// The file, all integers little endian:
//   8 bytes  "SYEXPROF"
//   uint32   format version, 1
//   uint32   layers, uint32 experts of a layer
//   uint32   length of the digest, then the digest of the model (model/model_digest.h)
//   uint64   uses of each expert, [layers, experts]
//   uint64   FNV-1a of all bytes before
struct ExpertProfile {
  std::string model_digest;
  int num_layers = 0;
  int num_experts = 0;
  std::vector<uint64_t> uses;  // [num_layers, num_experts]
};

// Errors: kNotFound (no such file), kDataLoss (truncated or damaged, with what is missing),
//         kInvalidArgument (no profile, or of another version of the format).
absl::StatusOr<ExpertProfile> ReadExpertProfile(const std::string& path);

// Whether the profile is of this model. Errors: kFailedPrecondition names both digests or shapes.
absl::Status CheckExpertProfile(const ExpertProfile& profile, const std::string& path,
                                const std::string& model_digest, int num_layers, int num_experts);

// Replaces the file as a whole: whoever reads finds the old one or the new one.
// Errors: kFailedPrecondition with the system's reason.
absl::Status WriteExpertProfile(const std::string& path, const ExpertProfile& profile);

}  // namespace switchyard::worker
