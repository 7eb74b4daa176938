// Says whether two processes have the same model file in front of them.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "model/gguf_file.h"

namespace switchyard::model {

// SHA-256 of the headers of all parts and of their sizes, as "sha256:" and 64 hexadecimal digits.
//
// Headers hold all metadata, the vocabulary and the place of every tensor, so files of different
// models, formats or conversions differ. The weights themselves are not read: that takes
// milliseconds whatever the size of the model, and does not see a damaged tensor, or weights that
// were replaced by others of the same shapes under the same metadata. Where the file lies and how
// it is called has no influence.
// Errors: kDataLoss if a file cannot be read.
absl::StatusOr<std::string> ModelDigest(const GgufFile& file);

}  // namespace switchyard::model
