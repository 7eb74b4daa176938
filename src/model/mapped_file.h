// A file that is mapped for reading, and read with pread where a fault must become an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/stat.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace switchyard::model {

// How a range of a mapped file is going to be used.
enum class MapAdvice {
  kRandom,      // single rows, far apart: no read-ahead
  kSequential,  // once, from front to back
  kDrop,        // not again soon: its pages leave this process (they stay in the page cache)
};

// Owns a file descriptor and a private read-only map of the whole file. Nothing is read on opening.
//
// Touching the map where the file has been truncated since ends the process (SIGBUS); ReadAt()
// returns an error instead. A file that is replaced by rename stays what it was when opened.
// Threads: all methods from any thread.
class MappedFile {
 public:
  // Errors: kNotFound if there is no such file, kInvalidArgument if it is not a regular file.
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }
  // First byte of the map; null if the file is empty.
  const std::byte* data() const { return data_; }

  // Fills `out` from the file at `offset`.
  // Errors: kDataLoss if the file ends before (it was truncated), or cannot be read.
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> out) const;

  // Tells the system how `bytes` from `offset` on will be used; whole pages inside the range only.
  // It is a hint: a refusal by the system has no effect and is not reported.
  void Advise(uint64_t offset, uint64_t bytes, MapAdvice advice) const;

  // Errors: kDataLoss if size or time of change are not those found by Open().
  absl::Status CheckUnchanged() const;

 private:
  MappedFile() = default;
  void Close();

  std::string path_;
  int fd_ = -1;
  uint64_t bytes_ = 0;
  const std::byte* data_ = nullptr;
  timespec modified_ = {};
};

}  // namespace switchyard::model
