// Reads a whole input of a command.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace switchyard::app {

// What is at `path`: a file, a pipe, a device that ends.
// Errors: kNotFound if it cannot be opened, kDataLoss if it cannot be read (a folder), kCancelled
// after an interrupt.
absl::StatusOr<std::string> ReadInputFile(const std::string& path);

// Standard input up to its end. Errors: as above.
absl::StatusOr<std::string> ReadStandardInput();

}  // namespace switchyard::app
