#include "app/output_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

absl::Status WriteError(const std::string& path, int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return ResourceExhausted("no space left to write {}", path);
  }
  return DataLoss("cannot write {}: {}", path, std::strerror(error));
}

}  // namespace

OutputFile::OutputFile(std::string path, int file_descriptor)
    : path_(std::move(path)), partial_path_(path_ + ".partial"), file_descriptor_(file_descriptor) {
  buffer_.reserve(kBufferBytes);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      partial_path_(std::move(other.partial_path_)),
      file_descriptor_(std::exchange(other.file_descriptor_, -1)),
      buffer_(std::move(other.buffer_)) {}

OutputFile::~OutputFile() {
  if (file_descriptor_ < 0) return;
  close(file_descriptor_);
  unlink(partial_path_.c_str());
}

absl::StatusOr<OutputFile> OutputFile::Create(const std::string& path) {
  // A device or folder must not be replaced by a file. A link stays: what it names is replaced.
  std::string target = path;
  std::error_code error;
  if (const auto status = std::filesystem::status(path, error); std::filesystem::exists(status)) {
    if (!std::filesystem::is_regular_file(status)) {
      return FailedPrecondition("cannot write {}: it is not a regular file", path);
    }
    target = std::filesystem::canonical(path, error).string();
    if (error) return FailedPrecondition("cannot write {}: {}", path, error.message());
  }
  const std::string partial = target + ".partial";
  const int fd = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return FailedPrecondition("cannot create {}: {}", partial, std::strerror(errno));
  return OutputFile(target, fd);
}

absl::Status OutputFile::WriteThrough(const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = write(file_descriptor_, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return WriteError(path_, written < 0 ? errno : ENOSPC);
    data += written;
    bytes -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Flush() {
  SWITCHYARD_RETURN_IF_ERROR(WriteThrough(buffer_.data(), buffer_.size()));
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status OutputFile::Write(const void* data, size_t bytes) {
  if (buffer_.size() + bytes > kBufferBytes) SWITCHYARD_RETURN_IF_ERROR(Flush());
  if (bytes >= kBufferBytes) return WriteThrough(static_cast<const char*>(data), bytes);
  buffer_.append(static_cast<const char*>(data), bytes);
  return absl::OkStatus();
}

absl::Status OutputFile::Skip(size_t bytes) {
  SWITCHYARD_RETURN_IF_ERROR(Flush());
  if (lseek(file_descriptor_, static_cast<off_t>(bytes), SEEK_CUR) < 0) {
    return WriteError(path_, errno);
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  SWITCHYARD_RETURN_IF_ERROR(Flush());
  // A hole at the end does not make the file longer by itself.
  const off_t end = lseek(file_descriptor_, 0, SEEK_CUR);
  if (end < 0 || ftruncate(file_descriptor_, end) != 0) return WriteError(path_, errno);
  // The name must not appear before the data.
  if (fsync(file_descriptor_) != 0 && errno != EINVAL) return WriteError(path_, errno);
  if (close(std::exchange(file_descriptor_, -1)) != 0) {
    const int error = errno;
    unlink(partial_path_.c_str());
    return WriteError(path_, error);
  }
  if (std::rename(partial_path_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    unlink(partial_path_.c_str());
    return FailedPrecondition("cannot name {}: {}", path_, std::strerror(error));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::app
