// Sizes, rates and counts as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace switchyard {

// Parses a size in bytes: "4096", "8k", "24GiB", "1.5 GB". Case does not matter.
//
// Units:  k, K, M, G, T and KiB, MiB, ... are powers of 1024; kB, MB, GB, TB are powers of 1000.
//         Fractions of a byte are rounded to the nearest.
// Errors: kInvalidArgument for anything else, negative and too large values included.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);

// Parses a count of things: "4096", "16k". k, K, M, G, T are powers of 1024, as in a context of
// "128K" tokens.
//
// Errors: kInvalidArgument for anything else, a fraction that is no whole number included.
absl::StatusOr<int64_t> ParseCount(std::string_view text);

// Prints in powers of 1000 with three significant digits: "512 B", "1.40 GB", "13.2 GB/s".
// A negative size (a difference) keeps its sign.
std::string FormatBytes(double bytes);
std::string FormatBytesPerSecond(double bytes_per_second);

// Prints a count in powers of 1000 with three significant digits: "96", "1.50K", "122G".
std::string FormatCount(double count);

// Prints a duration with a fitting unit and three significant digits: "85.0 us", "1.25 s".
std::string FormatSeconds(double seconds);

}  // namespace switchyard
