// A file that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace switchyard::app {

// Writes to `<path>.partial` beside the target. Without Commit() that file is removed and what
// stood at `path` stays.
class OutputFile {
 public:
  // Errors: kFailedPrecondition if the file cannot be made, or what stands at `path` is a folder or
  // a device.
  static absl::StatusOr<OutputFile> Create(const std::string& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  // Errors: kResourceExhausted if the disk is full, kDataLoss otherwise.
  absl::Status Write(const void* data, size_t bytes);

  // Moves the cursor on by `bytes` without writing: a hole that reads as zeros.
  absl::Status Skip(size_t bytes);

  // Puts the file in place of `path`. Nothing may be written afterwards.
  absl::Status Commit();

 private:
  OutputFile(std::string path, int file_descriptor);
  absl::Status Flush();
  absl::Status WriteThrough(const char* data, size_t bytes);

  std::string path_;
  std::string partial_path_;
  int file_descriptor_;
  std::string buffer_;
};

}  // namespace switchyard::app
