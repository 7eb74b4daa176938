// Checks of a model file that go beyond what every command checks when it opens one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "model/gguf_file.h"
#include "model/model_spec.h"

namespace switchyard::app {

// One thing that was looked at.
struct VerifyStep {
  std::string name;     // "tensor data"
  std::string finding;  // what was checked and found, in one line
  bool is_warning = false;
};

// Called with the bytes read so far. A status that is not OK stops the work.
using VerifyProgress = std::function<absl::Status(int64_t done_bytes, int64_t total_bytes)>;

// Checks tokenizer and chat template, reads the data of all tensors, and lists what has been
// checked. `spec` was made from `file`: container, metadata and shapes are right by then, and are
// listed, too.
//
// Errors: kDataLoss or kInvalidArgument, naming tensor, block and offset, for the first thing that
//         is wrong; whatever `progress` returns. What does not keep a model from running (a chat
//         template that cannot be read) is a warning among the steps.
absl::StatusOr<std::vector<VerifyStep>> VerifyModel(const model::GgufFile& file,
                                                    const model::ModelSpec& spec,
                                                    const VerifyProgress& progress);

}  // namespace switchyard::app
