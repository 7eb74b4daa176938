// Writes a synthetic model: random weights, a working tokenizer, any size and any types.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "app/synth/synth_options.h"

namespace switchyard::app {

// Called before the first and after each piece of data. A status that is not OK stops the work.
using SynthProgress = std::function<absl::Status(int64_t done_bytes, int64_t total_bytes)>;

struct SynthResult {
  std::vector<std::string> paths;  // one, or one for each shard
  int64_t file_bytes = 0;          // of all files, holes included
  int64_t num_tensors = 0;
};

// Writes the model to `path`, or with several shards to files beside it that are named
// `<stem>-00001-of-00004.gguf`. All files appear at the end, complete; until then what was there
// stays, and nothing stays behind if it fails. The same options make the same bytes.
//
// `overwrite`: replace files that exist.
// Errors: kInvalidArgument (see CheckSynthOptions(), TypeRules); kFailedPrecondition if a file
//         exists or cannot be created; kNotFound without the folder; kResourceExhausted, with
//         wanted and free bytes, if the disk is too full, also when that shows only while writing;
//         kDataLoss for other failures to write; whatever `progress` returns.
absl::StatusOr<SynthResult> WriteSyntheticModel(const SynthOptions& options,
                                                const std::string& path, bool overwrite,
                                                const SynthProgress& progress);

}  // namespace switchyard::app
