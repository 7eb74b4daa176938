// Memory of this process and of the host, as the kernel counts it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

namespace switchyard {

// The resident set by where its pages come from. Units: bytes.
struct ProcessMemory {
  int64_t anonymous_bytes = 0;  // heap, stacks, arenas: what the process really takes
  int64_t file_bytes = 0;       // mapped files; the kernel can drop and re-read clean ones
  int64_t shared_bytes = 0;     // shared memory segments

  int64_t resident_bytes() const { return anonymous_bytes + file_bytes + shared_bytes; }
};

// Parses the text of /proc/<pid>/status.
//
// Errors: kDataLoss if one of the three lines is missing or not understood.
absl::StatusOr<ProcessMemory> ParseProcessMemory(std::string_view status_text);

// Reads the memory of this process now. The kernel counts per thread and adds up late: figures may
// be off by some dozen pages a thread.
absl::StatusOr<ProcessMemory> ReadProcessMemory();

// Parses MemAvailable out of the text of /proc/meminfo.
std::optional<int64_t> ParseAvailableHostBytes(std::string_view meminfo_text);

// Bytes that new allocations can take without swapping; nothing if the kernel does not say.
std::optional<int64_t> AvailableHostBytes();

}  // namespace switchyard
